// A GEMM and its collective as the predictor sees them: when waves are computed, and what they send.
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/base/result.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/planner/params.hpp"

namespace shingle {

/// The input of FlashOverlap's Alg. 1 (arXiv 2504.19519, §4.2). Groups of waves are sent one after the other,
/// each when all ranks have computed it.
struct WaveModel {
  Traffic traffic = Traffic::allreduce;
  std::int32_t ranks = 2;
  std::int32_t workers = 0;  ///< of each rank that a collective occupies; 0: NCCL's choice
  Machine machine{};         ///< on which the collectives run
  double signal_us = 0;      ///< from the last tile of a group to its collective
  double sync_us = 0;        ///< between collectives, if the next one's group is ready
  double latency_us = 0;     ///< added time of a collective that does not follow another at once
  double slowdown = 0;       ///< of a collective beside the GEMM, relative to its time
  /// [w]: time when the first w waves are computed on every rank, from the start; [0]: begin of the first
  /// wave.
  std::vector<double> computed_us{};
  /// [l][w]: bytes of the first w waves on link l, as a curve counts them (of the whole matrix). One link
  /// stands for all if ranks send the same. An alltoall has one link into and one out of each rank.
  std::vector<std::vector<double>> bytes{};
  double restore_us = 0;  ///< time of each group's restore kernel beside its tiles
  /// [w]: restore time of the tiles of the first w waves. Empty: one pass restores all groups.
  std::vector<double> restored_us{};

  std::int64_t waves() const { return static_cast<std::int64_t>(computed_us.size()) - 1; }
  /// Time of one collective for the waves [first, end): that of the busiest link (§4.2.2: the max. over
  /// ranks).
  double send_us(std::int64_t first, std::int64_t end) const;
};

/// Model of a problem's GEMM as `signal` runs it, on the workers that collectives leave to it. Its waves are
/// the waves of SignalParams::group_waves. Bytes are exact: they count short last waves, ragged and phantom
/// tiles, and the problem's routing as planned. Returns a Reason if `signal` cannot serve the problem, or if
/// the machine lacks a time for a tile or a curve for the collective. Throws InvalidArgument if the problem
/// is invalid.
Result<WaveModel> wave_model(const Problem& problem, const Machine& machine, const SignalParams& params = {});

/// Model of `sequential`: the same tiles on all workers, and the collective with NCCL's choice of workers.
Result<WaveModel> lone_wave_model(const Problem& problem, const Machine& machine,
                                  const SignalParams& params = {});

/// Differences from a profile while a plan runs (FlashOverlap §4.2.3).
struct Conditions {
  double slowdown = 1;                   ///< of every tile, by throttled clocks
  std::int32_t workers = 0;              ///< workers of each rank that Shingle may use; 0: all
  std::int32_t collective_workers = -1;  ///< of these, for a collective; -1: as in the profile
};

/// The machine under these conditions, for the planner and the predictor: fewer workers make shorter waves.
/// Throws InvalidArgument if the machine has fewer workers than that, or if a slowdown is not positive.
Machine under(Machine machine, const Conditions& conditions);

}  // namespace shingle
