// A GEMM and its collective as the predictor sees them: when waves are computed, and what they send.
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/base/result.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle {

/// What Alg. 1 of FlashOverlap (arXiv 2504.19519, §4.2) needs to know. Groups of waves are sent one after the
/// other, each when all ranks have computed it.
struct WaveModel {
  Traffic traffic = Traffic::allreduce;
  std::int32_t ranks = 2;
  std::int32_t workers = 0;  ///< of each rank that a collective occupies; 0: the library's choice
  Machine machine{};         ///< whose collectives these are
  double signal_us = 0;      ///< from the last tile of a group to its collective
  double sync_us = 0;        ///< from one collective to the next, where no other waits for its group
  double latency_us = 0;  ///< of a collective that does not follow another at once, beside its curve's time
  double slowdown = 0;    ///< of a collective beside the GEMM, as a part of its time
  /// [w]: when the first w waves are computed on every rank, from the start; [0]: when the first one begins.
  std::vector<double> computed_us{};
  /// [l][w]: bytes of the first w waves on link l, as a curve counts them (of the whole matrix). One link
  /// stands for all where ranks send the same; of an alltoall there is one into and one out of each rank.
  std::vector<std::vector<double>> bytes{};
  double restore_us = 0;  ///< what each group's pass back into order takes beside its tiles
  /// [w]: what that takes for the tiles of the first w waves; empty: one pass does it for all groups.
  std::vector<double> restored_us{};

  std::int64_t waves() const { return static_cast<std::int64_t>(computed_us.size()) - 1; }
  /// The time of one collective for the waves [first, end): that of the busiest link (§4.2.2: the maximum
  /// over ranks).
  double send_us(std::int64_t first, std::int64_t end) const;
};

/// The GEMM of a problem on the workers that collectives leave to it, as mechanism `signal` runs it: these
/// are the waves of Params::group_waves. Bytes are exact: short last waves, ragged and phantom tiles and the
/// problem's routing count as they are planned. A Reason where `signal` cannot serve the problem, or the
/// machine has no time for a tile or no curve for the collective. Throws InvalidArgument where the problem is
/// none.
Result<WaveModel> wave_model(const Problem& problem, const Machine& machine, const Params& params = {});

/// The same tiles on all workers, and the collective with as many as its library likes: what `sequential`
/// runs.
Result<WaveModel> lone_wave_model(const Problem& problem, const Machine& machine, const Params& params = {});

/// What differs from a profile while a plan runs (FlashOverlap §4.2.3).
struct Conditions {
  double slowdown = 1;                   ///< of every tile, by throttled clocks
  std::int32_t workers = 0;              ///< of each rank that are ours; 0: all
  std::int32_t collective_workers = -1;  ///< of these, how many a collective occupies; -1: as in the profile
};

/// The machine under these conditions, for planner and predictor alike: a share of the workers makes shorter
/// waves. Throws InvalidArgument where it has not so many workers, or no time passes.
Machine under(Machine machine, const Conditions& conditions);

}  // namespace shingle
