// NCCL as a tuner plugin sees it: opens the library, makes communicators and asks how to carry out calls, as
// ncclCommInitRank and enqueue.cc of 2.28.9 do, and of 2.30.7 with version 6 of the interface.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cotune/tuned_table.hpp"
#include "nccl_tuner/abi.hpp"
#include "support/variable.hpp"

namespace shingle::test {

namespace abi = nccl_tuner::abi;

/// Warnings that plugins logged in this process.
class NcclLog {
 public:
  static std::vector<std::string> take() {
    const std::lock_guard guard(mutex_);
    return std::exchange(lines_, {});
  }
  static bool empty() {
    const std::lock_guard guard(mutex_);
    return lines_.empty();
  }
  static void log(int level, unsigned long, const char*, int, const char* format, ...) {
    if (level != abi::log_warning) return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    const std::lock_guard guard(mutex_);
    lines_.emplace_back(line);
  }

 private:
  static inline std::mutex mutex_;
  static inline std::vector<std::string> lines_;
};

/// The plugin, freshly loaded: its process-wide state is its own.
class NcclPlugin {
 public:
  explicit NcclPlugin(const std::string& path) : library_(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw std::runtime_error(::dlerror());
  }
  ~NcclPlugin() { ::dlclose(library_); }
  NcclPlugin(const NcclPlugin&) = delete;
  NcclPlugin& operator=(const NcclPlugin&) = delete;

  template <class Tuner>
  Tuner& symbol(const char* name) const {
    void* found = ::dlsym(library_, name);
    if (found == nullptr) throw std::runtime_error(::dlerror());
    return *static_cast<Tuner*>(found);
  }

 private:
  void* library_;
};

using Costs = std::array<std::array<float, abi::protocols>, abi::algorithms>;

/// On one node with NVLink but without NVLS: CollNet, NVLS and PAT cannot run, trees only for all-reduce.
inline Costs usual_costs(NcclCollective collective) {
  Costs costs;
  for (auto& row : costs) row.fill(abi::ignored);
  costs[abi::ring] = {91.5f, 60.25f, 52.75f};
  if (collective == NcclCollective::allreduce) costs[abi::tree] = {95.f, 70.f, 61.5f};
  return costs;
}

/// What NCCL does with an answer.
struct NcclDecision {
  int algorithm = -1, protocol = -1;
  int channels = 0;             ///< 0: NCCL's own number
  std::size_t chunk_bytes = 0;  ///< 0: NCCL's own size
  bool operator==(const NcclDecision&) const = default;
};

inline NcclDecision decide(const Costs& costs, int channels) {
  NcclDecision decision{-1, -1, channels};
  float least = 3600000000.0f;
  for (int algorithm = 0; algorithm < abi::algorithms; ++algorithm) {
    for (int protocol = 0; protocol < abi::protocols; ++protocol) {
      const float cost = costs[static_cast<std::size_t>(algorithm)][static_cast<std::size_t>(protocol)];
      if (cost < 0 || cost >= least) continue;
      least = cost;
      decision.algorithm = algorithm;
      decision.protocol = protocol;
    }
  }
  return decision;
}

/// NCCL 2.30's own chunk size on rings with Simple, which is also the largest; and its grain.
inline constexpr std::size_t usual_chunk = std::size_t{2} << 20, simple_grain = 512;

/// One rank's communicator. `interface`: 5 or 6.
class NcclCommunicator {
 public:
  NcclCommunicator(const NcclPlugin& plugin, std::uint64_t id, std::size_t ranks, std::size_t nodes = 1,
                   int interface = 5)
      : tuner_(tuner_of(plugin, interface)) {
    abi::NvlinkDomains domains{1, static_cast<int>(ranks), static_cast<int>(ranks)};
    if (tuner_.init(&context_, id, ranks, nodes, NcclLog::log, &domains, nullptr) != abi::success)
      throw std::runtime_error("init failed the communicator");
  }
  ~NcclCommunicator() { tuner_.finalize(context_); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  struct Part {
    NcclCollective collective = NcclCollective::allreduce;
    std::size_t bytes = 0;
  };
  NcclDecision call(NcclCollective collective, std::size_t bytes) {
    return call_group({{collective, bytes}}).front();
  }
  /// As between ncclGroupStart and ncclGroupEnd: all choices first, then the chunks of each call's channels.
  std::vector<NcclDecision> call_group(const std::vector<Part>& group) {
    std::vector<NcclDecision> decisions;
    for (const Part& part : group) {
      Costs costs = usual_costs(part.collective);
      int channels = 0;
      ask(static_cast<int>(part.collective), part.bytes, costs, channels);
      decisions.push_back(decide(costs, channels));
    }
    if (tuner_.get_chunk_size != nullptr)
      for (std::size_t i = 0; i < group.size(); ++i) decide_chunk(group[i], decisions[i]);
    return decisions;
  }
  void ask(int function, std::size_t bytes, Costs& costs, int& channels) {
    if (tuner_.get_coll_info(context_, function, bytes, 1, reinterpret_cast<float**>(costs.data()),
                             abi::algorithms, abi::protocols, 0, &channels) != abi::success)
      throw std::runtime_error("getCollInfo failed the collective");
  }
  void* context() const { return context_; }

 private:
  static abi::TunerV6 tuner_of(const NcclPlugin& plugin, int interface) {
    if (interface == 6) return plugin.symbol<abi::TunerV6>("ncclTunerPlugin_v6");
    const auto& five = plugin.symbol<abi::TunerV5>("ncclTunerPlugin_v5");
    return {five.name, five.init, five.get_coll_info, five.finalize, nullptr};
  }
  void decide_chunk(const Part& part, NcclDecision& decision) const {
    const int channels = std::max(decision.channels, 2);
    for (int channel = 0; channel < std::min(channels, 3); ++channel) {  // the first, the last, all others
      std::size_t chunk = usual_chunk;
      if (tuner_.get_chunk_size(context_, static_cast<int>(part.collective),
                                part.bytes / static_cast<std::size_t>(channels), decision.algorithm,
                                decision.protocol, 1, &chunk) != abi::success)
        throw std::runtime_error("getChunkSize failed the collective");
      const std::size_t taken = std::min(chunk, usual_chunk) / simple_grain * simple_grain;
      if (taken == 0) throw std::runtime_error("a chunk below a grain divides by zero");
      if (channel > 0 && decision.chunk_bytes != (chunk == usual_chunk ? 0 : taken))
        throw std::runtime_error("channels of a call have different chunks");
      decision.chunk_bytes = chunk == usual_chunk ? 0 : taken;
    }
  }

  const abi::TunerV6 tuner_;
  void* context_ = nullptr;
};

}  // namespace shingle::test
