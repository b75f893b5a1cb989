#include "cotune/nccl_environment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "shingle/base/units.hpp"

namespace shingle {
namespace {

// Constants of NCCL 2.28.9 and 2.30.7.
constexpr std::int64_t steps = 8;                         // pieces of a buffer
constexpr std::int64_t ll128_line = 16, ll128_data = 15;  // words of a line, and data words of it
constexpr std::int64_t buffer_granularity = 4096;         // 8 steps of 512 bytes; chunks are aligned to it
constexpr int least_threads = 64, most_threads = 512;
constexpr int least_ll128_threads = 160, most_ll128_threads = 640;
constexpr std::int64_t usual_buffer = 4 << 20, usual_ll_buffer = 512 << 10, usual_ll128_buffer = 4915200;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// A value that an entry needs in a variable of the process.
struct Wish {
  const char* variable;
  std::string value;
};

/// A buffer that holds chunks of an entry's size.
struct Buffer {
  const char* variable;
  std::int64_t bytes, usual_bytes;
};

/// An entry without a protocol is assumed to run on rings with Simple, as large collectives do by default.
bool is_simple(const CollectiveConfig& config) {
  return config.protocol == Protocol::simple || config.protocol == Protocol::automatic;
}

/// The buffer size at which a chunk may be as large as the entry says. A chunk is half of the buffer if a
/// ring's chunk has several steps, else one step. With LL half of a step is flags, with LL128 a sixteenth.
Buffer buffer_for(const TunedEntry& entry) {
  const std::int64_t chunk = entry.config.chunk_bytes;
  const auto buffer = [](const char* variable, std::int64_t bytes, std::int64_t usual) {
    return Buffer{variable, round_up(bytes, buffer_granularity), usual};
  };
  if (entry.config.protocol == Protocol::ll)
    return buffer("NCCL_LL_BUFFSIZE", chunk * 2 * steps, usual_ll_buffer);
  if (entry.config.protocol == Protocol::ll128)
    return buffer("NCCL_LL128_BUFFSIZE", (chunk + ll128_data - 1) / ll128_data * ll128_line * steps,
                  usual_ll128_buffer);
  const bool ring =
      entry.config.algorithm == Algorithm::ring || entry.config.algorithm == Algorithm::automatic;
  const bool one_step =
      entry.key.collective == NcclCollective::broadcast || entry.key.collective == NcclCollective::reduce;
  return buffer("NCCL_BUFFSIZE", chunk * (ring && !one_step ? 2 : steps), usual_buffer);
}

Wish threads_wish(const CollectiveConfig& config) {
  const auto within = [&](int least, int most) {
    return std::to_string(std::clamp(config.threads, least, most));
  };
  return config.protocol == Protocol::ll128
             ? Wish{"NCCL_LL128_NTHREADS", within(least_ll128_threads, most_ll128_threads)}
             : Wish{"NCCL_NTHREADS", within(least_threads, most_threads)};
}

/// Forbids the transports that NCCL would prefer. Level SYS allows P2P at any distance, LOC at none.
std::vector<Wish> transport_wishes(Transport transport) {
  switch (transport) {
    case Transport::p2p:
      return {{"NCCL_P2P_LEVEL", "SYS"}};
    case Transport::shm:
      return {{"NCCL_P2P_LEVEL", "LOC"}, {"NCCL_SHM_DISABLE", "0"}};
    case Transport::net:
      return {{"NCCL_P2P_LEVEL", "LOC"}, {"NCCL_SHM_DISABLE", "1"}};
    case Transport::automatic:
    case Transport::engines:  // of no table
      break;
  }
  return {};
}

/// Order of entries by size, largest first: the larger size fills the larger buffer.
bool comes_first(const TunedEntry* a, const TunedEntry* b) {
  return a->key.size_class > b->key.size_class;
}

/// Gives each variable the value of the first entry that needs one.
void grant(NcclEnvironment& environment, const TunedEntry& entry, const Wish& wish) {
  const auto found = std::ranges::find(environment.variables, wish.variable, &NcclVariable::name);
  if (found == environment.variables.end()) {
    environment.variables.push_back({wish.variable, wish.value, describe(entry.key)});
  } else if (found->value != wish.value) {
    environment.conflicts.push_back(
        fmt::format("{} needs {}={}", describe(entry.key), wish.variable, wish.value));
  }
}

/// The largest of each buffer that entries need beyond NCCL's own.
std::vector<const TunedEntry*> largest_chunks(const std::vector<const TunedEntry*>& entries) {
  std::vector<const TunedEntry*> largest;
  for (const TunedEntry* entry : entries) {
    const Buffer buffer = buffer_for(*entry);
    if (buffer.bytes <= buffer.usual_bytes) continue;
    const auto known = std::ranges::find_if(largest, [&](const TunedEntry* other) {
      return std::string_view(buffer_for(*other).variable) == buffer.variable;
    });
    if (known == largest.end())
      largest.push_back(entry);
    else if (buffer_for(**known).bytes < buffer.bytes)
      *known = entry;
  }
  return largest;
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

NcclEnvironment nccl_environment(const TunedTable& table, bool asks_chunks) {
  std::vector<const TunedEntry*> entries;
  for (const TunedEntry& entry : table.entries) entries.push_back(&entry);
  std::ranges::stable_sort(entries, comes_first);

  NcclEnvironment environment;
  for (const TunedEntry* entry : asks_chunks ? largest_chunks(entries) : entries)
    if (const Buffer buffer = buffer_for(*entry); buffer.bytes > 0)
      grant(environment, *entry, {buffer.variable, std::to_string(buffer.bytes)});
  const TunedEntry* widest = nullptr;  // of the entries for any communicator
  for (const TunedEntry* entry : entries) {
    for (const Wish& wish : transport_wishes(entry->config.transport)) grant(environment, *entry, wish);
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
    text += fmt::format("# not served, as a process has one value for all calls: {}\n", conflict);
  return text;
}

}  // namespace shingle
