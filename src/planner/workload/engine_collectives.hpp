// Collectives of a workload by copy engines: their commands, and the sums that few workers make beside the
// computations.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "planner/copy_engine/transfers.hpp"

namespace shingle::planner {

class EngineCollectives {
 public:
  /// The reason why engines cannot carry out the collectives whose configs say so, or nullopt.
  static std::optional<Reason> infeasible(const Workload& workload, const Machine& machine,
                                          const std::vector<CollectiveConfig>& configs, bool symmetric);
  static bool sums(CollectiveKind kind) {
    return kind == CollectiveKind::allreduce || kind == CollectiveKind::reducescatter;
  }

  /// Declares buffers and counters of all of them. If there are any, ranks tell each other that they begin.
  EngineCollectives(CopyEngineBuilder& build, const Workload& workload, const Machine& machine,
                    const std::vector<CollectiveConfig>& configs);

  /// True if engines carry out a collective.
  bool move(std::size_t collective) const { return all_.contains(collective); }
  /// Appends a collective on a rank, after these counts.
  void begin(CopyEngineBuilder& build, int rank, std::size_t collective,
             const std::vector<CounterRef>& after);
  /// A lane waits until the result of a collective is complete on a rank.
  void await(CopyEngineBuilder& build, int rank, std::int32_t lane, std::size_t collective) const;

 private:
  struct Shape {
    CollectiveKind kind{};
    WorkloadRows::Result to;
    std::int64_t shard = 0;     ///< rows of a rank's part
    std::int64_t slice = 0;     ///< rows of a part that are summed at a time
    std::int32_t workers = 0;   ///< that sum
    std::int32_t staging = -1;  ///< parts of the other ranks
  };
  struct One : Shape {
    std::vector<Transfer> exchange{};  ///< of all parts; by slice
    std::vector<Transfer> gather{};    ///< of an all-reduce: of the sums
  };

  /// Rows of a slice of a rank's part, from its first row on; the last may be short or empty.
  static WorkloadRows::Result slice_of(const Shape& shape, int rank, std::size_t slice);
  void declare(CopyEngineBuilder& build, One& one, const CopyEngineParams& params) const;
  void sum(CopyEngineBuilder& build, One& one, int rank) const;

  std::map<std::size_t, One> all_;
  std::optional<Handshake> handshake_;
  std::int32_t sum_lane_ = -1;  // on every rank
  std::size_t sum_engine_ = 0;  // the first engine of sums; those before it move gathers and exchanges
  std::int32_t kept_ = -1, summed_ = -1;  // counters by collective: own parts copied, and sums complete
};

}  // namespace shingle::planner
