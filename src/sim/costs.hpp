// How long things take on a machine when nothing else goes on.
#pragma once

#include <map>
#include <utility>

#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::sim {

class Costs {
 public:
  /// Throws InvalidArgument where the machine lacks the figures that the plan's steps need.
  Costs(const Plan& plan, const Machine& machine);

  /// The longest of items [first, last) of a tiled step, which `workers` do at once.
  double items_us(const Step& step, std::int64_t first, std::int64_t last, std::int32_t workers) const;
  /// A GEMM of one tile is a library's, which does it with all workers that it gets.
  static bool is_library(const Gemm& gemm) { return gemm.grid.tiles() == 1; }
  double library_us(const Gemm& gemm, std::int32_t workers) const;

  /// A collective that all `ranks` of its communicator have entered; `bytes` as curves count them.
  double collective_us(CollectiveKind kind, int ranks, const CollectiveConfig& config, double bytes) const;
  /// What it moves over a rank's link in either direction.
  double wire_bytes(CollectiveKind kind, int ranks, double bytes) const;
  /// The part of that in which a rank's own threads move bytes: all, unless a link is emulated.
  double moving_us(CollectiveKind kind, int ranks, std::int32_t workers, double bytes) const;
  /// What so many workers of a rank send, and receive, where communication takes workers; 0: as much as
  /// links.
  double message_gbps(std::int32_t workers) const;
  /// Until a thread of the host that sleeps has seen that its link has carried something: as long as it takes
  /// them to meet with nothing to move. Nothing where links are not emulated.
  double wake_us() const;
  /// A copy within a rank's memory.
  double memory_us(double bytes) const;

  double bytes_of(const Slice& slice) const;
  /// Of an element.
  double width_of(const Slice& slice) const;

 private:
  /// Of an item, where tiles are whole, beside those that have the other workers then.
  double wave_of_us(const Gemm& gemm, std::int64_t item, double k) const;
  /// Where edges cost what they hold.
  double multiply_us(std::int64_t rows, std::int64_t cols, std::int64_t tile_rows, std::int64_t tile_cols,
                     double k) const;
  double pass_us(const Elementwise& step, std::int64_t item, std::int32_t workers) const;
  double store_again_us(const Placement& at, double bytes) const;
  double attend_us(const Attend& step, std::int64_t item) const;

  const Plan& plan_;
  const Machine& machine_;
  double memory_bytes_per_us_, us_per_flop_;
  mutable std::map<std::pair<const Gemm*, std::int64_t>, double> waves_;  // by step and wave: wave_of_us()
};

}  // namespace shingle::sim
