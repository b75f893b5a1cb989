// The small plans whose times make a profile. They compute nothing that anyone needs, and any backend that
// carries out their steps runs them.
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/backend/backend.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::tuning {

inline constexpr std::int64_t kibi = 1024;

/// What a plan has of one kind of step on a rank, in order of the lanes.
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

/// A product, and collectives of a matrix of their own beside it.
struct Beside {
  int products = 1;
  int calls = 0;
  CollectiveKind kind = CollectiveKind::allreduce;
  double bytes = 0;              ///< of a call, as Sample has them
  std::int32_t workers = 0;      ///< of a call
  std::int64_t chunk_bytes = 0;  ///< that calls move at a time; 0: as the library likes
  std::int32_t left = 0;         ///< workers that the product does not take
  bool late = false;  ///< calls begin when the first tiles of a product that counts them are there; one
                      ///< worker has to be left to wait for that
};

/// The same steps, each with a count behind it that nobody awaits.
Plan counted(Plan plan);

/// What each of a rank's engines does, all ranks at once: commands to the next rank, and then notifies.
struct EngineWork {
  enum class Kind { copy, broadcast, swap };

  int engines = 1;  ///< of a rank, which all do the same
  int commands = 1;
  double bytes = 0;  ///< of a command
  int notifies = 1;
  bool prelaunched = true;
  Kind kind = Kind::copy;  ///< a broadcast's two copies go to the same rank
};

class TimedPlans {
 public:
  /// `machine`: of the world. `hooked`: tiles are computed by a kernel of its own: as `signal` has them,
  /// which stores them in slots and counts them.
  TimedPlans(const Machine& machine, int world, DType dtype, bool hooked);

  /// A rank's matrix of so many rows, a kibi of columns, copied by one step; or by a pass of all workers.
  Plan copy(std::int64_t rows) const;
  Plan pass(std::int64_t rows) const;
  /// The same, into the next rank's memory.
  Plan pushed(std::int64_t rows) const;
  /// Every rank stores such a matrix with all, waits for theirs, and then sums those of so many others (of as
  /// many as there are ranks: and its own) tile by tile.
  struct Stored {
    Plan plan;
    int sum = 0;  ///< the step, in the rank's one lane
  };
  Stored stored(std::int64_t rows, int sources) const;
  /// Bytes that a pass over so many such matrices reads and writes, or a copy of one.
  double bytes_passed(std::int64_t rows, int sources = 1) const;
  /// Steps of one small tile, one after the other.
  Plan small_steps(int count) const;
  /// Two lanes, each of which does such a step when the other has done one, so many times each.
  Plan turns(int rounds) const;

  /// m×n×k by a library.
  Plan product(std::int64_t m, std::int64_t n, std::int64_t k) const;
  /// About so many waves of all workers, in a matrix that is about as high as it is wide. `picks`: each tile
  /// has rows of the shards of all ranks, as before a reduce-scatter; tiles are hooked and their rows divide.
  Tiled tiled(const TileShape& tile, std::int64_t k, std::int64_t waves, bool picks = false) const;
  /// Attention of a rank over so many tokens, not causal, without what follows it.
  Plan attention(std::int64_t tokens, std::int64_t heads, std::int64_t head_dim) const;

  /// A collective of the first `ranks` ranks alone, so many times, on `workers` of each (0: the library's
  /// choice). `bytes` are rounded so that all ranks have as much; `moved` are those that it then moves.
  struct Calls {
    Plan plan;
    double bytes = 0;
  };
  Calls calls(Op op, int ranks, std::int32_t workers, double bytes, int count) const;

  /// A rank triggers its engines, and waits for the last notify of each of those that write to it.
  Plan engines(const EngineWork& work) const;

  /// The part of a product's tiles that its first count waits for; 0 where it counts none.
  double first_group(const Plan& product) const;
  /// The product of a gemm+allreduce, a library's.
  Plan reduced_product(std::int64_t size) const;
  Plan beside(const Plan& product, const Beside& what) const;

 private:
  Plan sequential(const Problem& problem) const;
  Problem moving(Op op, std::int64_t rows, std::int64_t cols) const;

  Machine machine_;  // on which collectives take nobody's workers
  int world_;
  DType dtype_;
  bool hooked_;
};

}  // namespace shingle::tuning
