#include "neighbours.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "launch.hpp"
#include "shingle/base/error.hpp"

namespace shingle {
namespace {

namespace fs = std::filesystem;

/// Variables that distinguish one job of a launcher from another.
constexpr std::array job_variables{
    "MASTER_ADDR",   "MASTER_PORT",  "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
    "SLURM_STEP_ID", "SLURM_JOB_ID", "PMI_JOBID"};

using Variables = std::map<std::string, std::string, std::less<>>;

std::string content(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Variables variables_of(const fs::path& process) {
  Variables variables;
  const std::string all = content(process / "environ");
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find('\0', begin), all.size());
    const std::string one = all.substr(begin, end - begin);
    if (const auto equals = one.find('='); equals != std::string::npos)
      variables.emplace(one.substr(0, equals), one.substr(equals + 1));
    begin = end + 1;
  }
  return variables;
}

/// How a process was started. Empty if its variables are invalid.
std::optional<Launched> launch_of(const Variables& variables) {
  try {
    return find_launcher([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

bool same_job(const Variables& own, const Variables& other) {
  for (const char* name : job_variables) {
    const auto a = own.find(name), b = other.find(name);
    if ((a == own.end()) != (b == other.end())) return false;
    if (a != own.end() && a->second != b->second) return false;
  }
  return true;
}

/// Reads the state letter after the name. The name is in parentheses and may contain some itself.
char state_of(const fs::path& process) {
  const std::string stat = content(process / "stat");
  const auto name_end = stat.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= stat.size() ? '?' : stat[name_end + 2];
}

}  // namespace

std::vector<Neighbour> neighbours() {
  std::vector<Neighbour> found;
  const Variables own = variables_of("/proc/self");
  const std::optional<Launched> self = launch_of(own);
  if (!self || !self->several()) return found;
  // Processes may come and go meanwhile. The calling thread only watches, so errors must not end this
  // process.
  std::error_code error_of;
  for (fs::directory_iterator at("/proc", error_of), end_of; !error_of && at != end_of;
       at.increment(error_of)) {
    const fs::directory_entry& entry = *at;
    const std::string name = entry.path().filename();
    int process = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (error != std::errc{} || end != name.data() + name.size() || process == ::getpid()) continue;
    const Variables variables = variables_of(entry.path());  // empty for another user's process
    const std::optional<Launched> launched = launch_of(variables);
    if (!launched || launched->by != self->by || launched->size != self->size || !same_job(own, variables))
      continue;
    found.push_back({launched->rank, process, state_of(entry.path()) == 'T'});
  }
  return found;
}

std::string stopped_neighbours() {
  std::string text;
  std::set<int> named;
  for (const Neighbour& one : neighbours())
    if (one.stopped && named.insert(one.rank).second)
      text += fmt::format("; rank {} is stopped (process {})", one.rank, one.process);
  return text;
}

}  // namespace shingle
