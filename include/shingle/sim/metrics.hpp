// Metrics of a simulated plan: against the sequential plan, and against the machine's bounds.
#pragma once

#include <algorithm>

#include "shingle/base/result.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle {

/// Floating-point operations of a problem's products and attention, on the rank that has most of them.
double flops_of(const Problem& problem);
/// Of a workload's computations on any rank.
double flops_of(const Workload& workload);

/// Predicted metrics of a plan on a machine. Times are of the slowest rank, for one epoch.
struct Metrics {
  double us = 0;             ///< of the plan
  double sequential_us = 0;  ///< of the sequential plan
  /// Of the computation alone: the fastest GEMM that is not split. Of a grouped product, each weight is read
  /// once, and its rows are not cut by source.
  double compute_us = 0;
  double wire_us = 0;      ///< of the bytes that must cross a rank's link, at the link's best rate
  double exposed_us = 0;   ///< in which the rank that computes least does not compute
  double flops = 0;        ///< of a rank
  double peak_tflops = 0;  ///< of a rank's workers, by the machine's fastest tile

  double speedup() const { return sequential_us / us; }
  /// Effective communication time (FLUX §2): time of the plan beyond its computation.
  double ect_us() const { return us - compute_us; }
  /// Overlap efficiency, 1 - ECT / ECT of the sequential plan (FLUX §2). 1 hides all communication, 0 none.
  double overlap_efficiency() const { return (sequential_us - us) / (sequential_us - compute_us); }
  /// The larger of the best times of computation and of the wire, relative to the plan's time.
  double roofline_fraction() const { return std::max(compute_us, wire_us) / us; }
  double tflops() const { return flops / us * 1e-6; }
  /// Model FLOPs utilisation.
  double mfu() const { return peak_tflops > 0 ? tflops() / peak_tflops : 0; }
};

/// Simulates the plan, the sequential plan of its work, and that plan's computation alone. Gives a reason
/// if the work has no sequential plan on the machine. Throws as simulate().
Result<Metrics> measure(const Plan& plan, const Machine& machine, const SimOptions& options = {});

}  // namespace shingle
