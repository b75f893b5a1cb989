#include "cotune/nccl_environment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "shingle/base/units.hpp"

namespace shingle {
namespace {

// Constants of NCCL 2.28.9.
constexpr std::int64_t steps = 8;                         // pieces of a buffer
constexpr std::int64_t ll128_line = 16, ll128_data = 15;  // words of a line, and data words of it
constexpr std::int64_t buffer_granularity = 4096;         // 8 steps of 512 bytes; chunks are aligned to it
constexpr int least_threads = 64, most_threads = 512;
constexpr int least_ll128_threads = 160, most_ll128_threads = 640;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// A value that an entry needs in a variable of the process.
struct Wish {
  const char* variable;
  std::int64_t value;
};

/// An entry without a protocol is assumed to run on rings with Simple, as large collectives do by default.
bool is_simple(const CollectiveConfig& config) {
  return config.protocol == Protocol::simple || config.protocol == Protocol::automatic;
}

/// The buffer size at which a chunk may be as large as the entry says. A chunk is half of the buffer if a
/// ring's chunk has several steps, else one step. With LL half of a step is flags, with LL128 a sixteenth.
Wish buffer_wish(const TunedEntry& entry) {
  const std::int64_t chunk = entry.config.chunk_bytes;
  const auto wish = [](const char* variable, std::int64_t bytes) {
    return Wish{variable, round_up(bytes, buffer_granularity)};
  };
  if (entry.config.protocol == Protocol::ll) return wish("NCCL_LL_BUFFSIZE", chunk * 2 * steps);
  if (entry.config.protocol == Protocol::ll128)
    return wish("NCCL_LL128_BUFFSIZE", (chunk + ll128_data - 1) / ll128_data * ll128_line * steps);
  const bool ring =
      entry.config.algorithm == Algorithm::ring || entry.config.algorithm == Algorithm::automatic;
  const bool one_step =
      entry.key.collective == NcclCollective::broadcast || entry.key.collective == NcclCollective::reduce;
  return wish("NCCL_BUFFSIZE", chunk * (ring && !one_step ? 2 : steps));
}

Wish threads_wish(const CollectiveConfig& config) {
  return config.protocol == Protocol::ll128
             ? Wish{"NCCL_LL128_NTHREADS",
                    std::clamp(config.threads, least_ll128_threads, most_ll128_threads)}
             : Wish{"NCCL_NTHREADS", std::clamp(config.threads, least_threads, most_threads)};
}

/// Order of entries by size, largest first: the larger size fills the larger buffer.
bool comes_first(const TunedEntry* a, const TunedEntry* b) {
  return a->key.size_class > b->key.size_class;
}

/// Gives each variable the value of the first entry that needs one.
void grant(NcclEnvironment& environment, const TunedEntry& entry, const Wish& wish) {
  const auto found = std::ranges::find(environment.variables, wish.variable, &NcclVariable::name);
  if (found == environment.variables.end()) {
    environment.variables.push_back({wish.variable, std::to_string(wish.value), describe(entry.key)});
  } else if (found->value != std::to_string(wish.value)) {
    environment.conflicts.push_back(
        fmt::format("{} needs {}={}", describe(entry.key), wish.variable, wish.value));
  }
}

/// Lowers NCCL's thread thresholds (bytes for each thread, for tree and ring, by protocol). NCCL halves the
/// threads of a message below the threshold. So an entry with a number of threads needs a threshold that its
/// size reaches.
void grant_thresholds(NcclEnvironment& environment, const std::vector<const TunedEntry*>& entries) {
  constexpr std::array<std::int64_t, 3> standard{8, 8, 64};  // ll, ll128, simple
  std::array<std::int64_t, 6> thresholds;
  thresholds.fill(-1);  // NCCL takes -1 as "unchanged"
  std::string why;
  for (const TunedEntry* entry : entries) {
    const CollectiveConfig& config = entry->config;
    if (config.threads == 0 || config.algorithm == Algorithm::pat) continue;
    const auto protocol = is_simple(config) ? 2u : config.protocol == Protocol::ll128 ? 1u : 0u;
    const bool tree = config.algorithm == Algorithm::tree;
    const std::int64_t allowed = (std::int64_t{1} << entry->key.size_class) / config.threads;
    const std::int64_t ranks = protocol == 0 && !tree ? entry->key.ranks : 1;  // LL on rings: for each rank
    std::int64_t& threshold = thresholds[(tree ? 0 : 3) + protocol];
    if (allowed >= standard[protocol] * ranks || (threshold >= 0 && allowed >= threshold)) continue;
    threshold = allowed;
    why = describe(entry->key);
  }
  if (why.empty()) return;
  environment.variables.push_back({"NCCL_THREAD_THRESHOLDS",
                                   fmt::format("{}", fmt::join(thresholds.begin(), thresholds.end(), " ")),
                                   why});
}

void add_limits(NcclEnvironment& environment, const TunedEntry& entry) {
  auto& limits = environment.communicators;
  auto found = std::ranges::find_if(limits, [&](const CommunicatorLimits& of) {
    return of.communicator == *entry.key.communicator && of.ranks == entry.key.ranks;
  });
  if (found == limits.end())
    found = limits.insert(limits.end(), {*entry.key.communicator, entry.key.ranks, 0, 0, {}});
  found->max_ctas = std::max(found->max_ctas, entry.config.channels);
  found->min_ctas = found->max_ctas;
  if (std::ranges::find(found->collectives, entry.key.collective) == found->collectives.end())
    found->collectives.push_back(entry.key.collective);
}

}  // namespace

NcclEnvironment nccl_environment(const TunedTable& table) {
  std::vector<const TunedEntry*> entries;
  for (const TunedEntry& entry : table.entries) entries.push_back(&entry);
  std::ranges::stable_sort(entries, comes_first);

  NcclEnvironment environment;
  const TunedEntry* widest = nullptr;  // of the entries for any communicator
  for (const TunedEntry* entry : entries) {
    if (entry->config.chunk_bytes > 0) grant(environment, *entry, buffer_wish(*entry));
    if (entry->config.threads > 0) grant(environment, *entry, threads_wish(entry->config));
    if (entry->config.channels == 0) continue;
    if (entry->key.communicator)
      add_limits(environment, *entry);
    else if (widest == nullptr || entry->config.channels > widest->config.channels)
      widest = entry;
  }
  grant_thresholds(environment, entries);
  // A communicator limits the plugin's channels to the number that it has.
  if (widest != nullptr)
    environment.variables.push_back(
        {"NCCL_MIN_CTAS", std::to_string(widest->config.channels), describe(widest->key)});
  return environment;
}

std::string shell_text(const NcclEnvironment& environment) {
  std::string text;
  for (const NcclVariable& variable : environment.variables)
    text += fmt::format("export {}='{}'  # {}\n", variable.name, variable.value, variable.why);
  for (const CommunicatorLimits& limits : environment.communicators) {
    std::vector<std::string_view> served;
    for (const NcclCollective collective : limits.collectives) served.push_back(name(collective));
    text += fmt::format("# communicator {} of {} ranks ({}): ncclConfig_t minCTAs = {}, maxCTAs = {}\n",
                        limits.communicator, limits.ranks, fmt::join(served.begin(), served.end(), ", "),
                        limits.min_ctas, limits.max_ctas);
  }
  for (const std::string& conflict : environment.conflicts)
    text += fmt::format("# not served, as a process has one value: {}\n", conflict);
  return text;
}

}  // namespace shingle
