#include "cache.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/file.hpp"
#include "cache_json.hpp"
#include "file_lock.hpp"
#include "shingle/base/error.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/version.hpp"

namespace shingle {
namespace {

constexpr std::size_t most_bytes = std::size_t{1} << 26;
constexpr std::chrono::seconds longest_wait{10};

void warn_on_stderr(const std::string& line) {
  fmt::print(stderr, "shingle: {}\n", line);
}

/// Returns an environment variable that holds an absolute path. Other values are ignored (XDG Base
/// Directory).
std::optional<std::filesystem::path> directory_in(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || !std::filesystem::path(value).is_absolute()) return std::nullopt;
  return value;
}

}  // namespace

std::string fingerprint(const Machine& machine) {
  // The hash counts every figure and no source. The profile's text omits figures without a source.
  Machine figures = machine;
  figures.sources = {{.of = "tile", .note = {}}, {.of = "peer_memory", .note = {}}};
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : to_json(figures)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("{:016x}", hash);
}

std::string default_cache_directory() {
  if (const auto cache = directory_in("XDG_CACHE_HOME")) return (*cache / "shingle").string();
  if (const auto home = directory_in("HOME")) return (*home / ".cache" / "shingle").string();
  throw IoError("no folder for the cache: set XDG_CACHE_HOME or HOME to an absolute path");
}

std::string why_not_kept(const std::string& directory) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  if (failure) return fmt::format("{}: {}", directory, failure.message());
  // Writes a probe file: permissions do not show a full or read-only disk.
  const std::filesystem::path probe = std::filesystem::path(directory) / fmt::format(".probe-{}", ::getpid());
  try {
    write_file_atomically(probe.string(), "?");
  } catch (const IoError& error) {
    return error.what();
  }
  std::filesystem::remove(probe, failure);
  return {};
}

TuneCache::TuneCache(const Machine& machine, const std::string& directory, Warn warn)
    : fingerprint_(fingerprint(machine)),
      path_((std::filesystem::path(directory) / fmt::format("{}-{}.json", fingerprint_, SHINGLE_VERSION))
                .string()),
      warn_(warn ? std::move(warn) : warn_on_stderr),
      entries_(load()) {}

TuneCache::Entries TuneCache::load() const {
  std::error_code unknown;
  if (!std::filesystem::exists(path_, unknown)) return {};
  try {
    return tuning::cache_entries(fingerprint_, read_file(path_, most_bytes));
  } catch (const IoError& error) {
    warn_(fmt::format("{} (ignored)", error.what()));
  } catch (const InvalidArgument& error) {
    warn_(fmt::format("{}: {} (ignored)", path_, error.what()));
  }
  return {};
}

std::optional<TuneEntry> TuneCache::find(const Problem& problem, Mechanism mechanism) const {
  const std::string key = tuning::key_of(problem, mechanism);
  const std::lock_guard guard(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

std::vector<TuneEntry> TuneCache::entries() const {
  const std::lock_guard guard(mutex_);
  std::vector<TuneEntry> all;
  for (const auto& [key, entry] : entries_) all.push_back(entry);
  return all;
}

void TuneCache::store(TuneEntry entry) {
  for (const double us : {entry.predicted_us, entry.measured_us})
    if (!std::isfinite(us) || us < 0)
      throw InvalidArgument(fmt::format("a time of {} us must be finite and not negative", us));
  entry.problem.routing.reset();
  std::string key = tuning::key_of(entry.problem, mechanism_of(entry.params));
  const std::filesystem::path directory = std::filesystem::path(path_).parent_path();
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  if (failure) throw IoError(fmt::format("{}: {}", directory.string(), failure.message()));

  const std::lock_guard guard(mutex_);
  const tuning::FileLock lock(path_ + ".lock", longest_wait);
  Entries merged = load();  // includes what other processes have stored since
  merged.insert_or_assign(std::move(key), std::move(entry));
  write_file_atomically(path_, tuning::cache_text(fingerprint_, merged));
  entries_ = std::move(merged);
}

}  // namespace shingle
