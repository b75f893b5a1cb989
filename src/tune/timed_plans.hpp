// The small plans whose times make a profile. Their results are not used. Any backend that supports their
// steps can run them.
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/backend/backend.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::tuning {

inline constexpr std::int64_t kibi = 1024;

/// The steps of one kind on a rank, in order of the lanes.
template <class Kind>
std::vector<Step> steps_of(const Plan& plan, int rank) {
  std::vector<Step> steps;
  for (const Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
    for (const Step& step : lane.steps)
      if (std::holds_alternative<Kind>(step)) steps.push_back(step);
  return steps;
}

/// A product in waves of tiles.
struct Tiled {
  Plan plan;
  std::int64_t waves = 0;
};

/// A product or another computation, and collectives beside it on a matrix of their own.
struct Beside {
  int products = 1;  ///< or other computations
  int calls = 0;
  CollectiveKind kind = CollectiveKind::allreduce;
  double bytes = 0;              ///< of a call, as in Sample
  std::int32_t workers = 0;      ///< of a call
  std::int64_t chunk_bytes = 0;  ///< chunk size of a call; 0: NCCL's choice
  std::int32_t left = 0;         ///< workers that the computation leaves, if it can
  bool engines = false;  ///< each call is a copy of a rank's engine to the next rank, of as many bytes as
                         ///< a collective sends
  /// Calls wait for the first tiles of a product that counts them; the wait takes one of `left`
  bool late = false;
};

/// The same steps, each followed by a notify that no step awaits.
Plan counted(Plan plan);

/// Work of each of a rank's engines, all ranks at once: commands to the next rank, then notifies.
struct EngineWork {
  enum class Kind { copy, broadcast, swap };

  int engines = 1;  ///< of a rank, all with the same work
  int commands = 1;
  double bytes = 0;  ///< of a command
  int notifies = 1;
  bool prelaunched = true;
  Kind kind = Kind::copy;  ///< a broadcast's two copies go to the same rank
};

class TimedPlans {
 public:
  /// `machine`: that of the world. `hooked`: an instrumented kernel computes the tiles, stores them in slots
  /// and counts them, as for `signal`.
  TimedPlans(const Machine& machine, int world, DType dtype, bool hooked);

  /// Copies a matrix of `rows` rows and 1024 columns on each rank: by one step, or by a pass of so many
  /// workers (0: all free ones).
  Plan copy(std::int64_t rows) const;
  Plan pass(std::int64_t rows, std::int32_t workers = 0) const;
  /// As pass(), but into the next rank's memory.
  Plan pushed(std::int64_t rows) const;
  /// Every rank stores such a matrix with all workers and waits for the other ranks. It then sums `sources`
  /// matrices tile by tile. With as many sources as ranks, its own matrix is one of them.
  struct Stored {
    Plan plan;
    int sum = 0;  ///< index of the step in the rank's one lane
  };
  Stored stored(std::int64_t rows, int sources) const;
  /// Bytes that a pass reads and writes over `sources` such matrices, or a copy of one.
  double bytes_passed(std::int64_t rows, int sources = 1) const;
  /// Steps of one small tile, one after the other.
  Plan small_steps(int count) const;
  /// Two lanes that take turns: each runs such a step after the other has run one, `rounds` times each.
  Plan turns(int rounds) const;

  /// An m×n×k product by cuBLASLt or oneDNN.
  Plan product(std::int64_t m, std::int64_t n, std::int64_t k) const;
  /// A product of about `waves` waves of all workers, in a nearly square matrix. `picks`: each tile holds
  /// rows of all ranks' shards, as before a reduce-scatter. The tiles are then hooked, and the world's size
  /// must divide their rows.
  Tiled tiled(const TileShape& tile, std::int64_t k, std::int64_t waves, bool picks = false) const;
  /// Attention of a rank, or its backward, without a following step; of at most as many queries as keys.
  Plan attention(const AttentionSize& size) const;

  /// `count` calls of a collective of the first `ranks` ranks alone, on `workers` workers of each (0: NCCL's
  /// choice). `bytes` is rounded so that all ranks have equal parts. Calls::bytes is the rounded size.
  struct Calls {
    Plan plan;
    double bytes = 0;
  };
  Calls calls(Op op, int ranks, std::int32_t workers, double bytes, int count) const;

  /// A rank triggers its engines, then waits for the last notify of each engine that writes to it.
  Plan engines(const EngineWork& work) const;

  /// Fraction of a product's tiles that its first count waits for; 0 if it counts none.
  double first_group(const Plan& product) const;
  /// The product of a gemm+allreduce, by cuBLASLt or oneDNN.
  Plan reduced_product(std::int64_t size) const;
  /// `computation`: its first tiled step is done; that of tiled(), reduced_product(), attention() or pass().
  Plan beside(const Plan& computation, const Beside& what) const;
  MovedBytes moved_by(const Plan& computation) const;

 private:
  Plan sequential(const Problem& problem) const;
  Problem moving(Op op, std::int64_t rows, std::int64_t cols) const;

  Machine machine_;  // a copy on which collectives take no workers
  int world_;
  DType dtype_;
  bool hooked_;
};

}  // namespace shingle::tuning
