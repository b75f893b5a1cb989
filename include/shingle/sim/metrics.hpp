// What a simulated plan is worth: beside the sequential one, and beside what the machine could do at best.
#pragma once

#include <algorithm>

#include "shingle/base/result.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle {

/// Floating-point operations of a problem's products and attention on the rank that has most of them.
double flops_of(const Problem& problem);

/// Of a plan on a machine, predicted. Times are of the slowest rank.
struct Metrics {
  double us = 0;             ///< of the plan
  double sequential_us = 0;  ///< of the sequential plan
  double compute_us = 0;     ///< of its computation alone: the fastest GEMM that is not split
  double wire_us = 0;        ///< of the bytes that must go over a rank's link, at its best rate
  double exposed_us = 0;     ///< in which the rank that computes least does not compute
  double flops = 0;          ///< of a rank
  double peak_tflops = 0;    ///< of a rank's workers, by the machine's fastest tile

  double speedup() const { return sequential_us / us; }
  /// Effective communication time (FLUX §2): what the plan takes beyond its computation.
  double ect_us() const { return us - compute_us; }
  /// 1 - ECT / ECT of the sequential plan (FLUX §2): 1 hides all communication, 0 none.
  double overlap_efficiency() const { return (sequential_us - us) / (sequential_us - compute_us); }
  /// Of the time that the slower of computation and wire takes at best, the part in the plan's.
  double roofline_fraction() const { return std::max(compute_us, wire_us) / us; }
  double tflops() const { return flops / us * 1e-6; }
  /// Model FLOPs utilisation.
  double mfu() const { return peak_tflops > 0 ? tflops() / peak_tflops : 0; }
};

/// Simulates the plan, the sequential plan of its problem, and that plan's computation alone. A reason where
/// the problem has no sequential plan on the machine. Throws as simulate().
Result<Metrics> measure(const Plan& plan, const Machine& machine, const SimOptions& options = {});

}  // namespace shingle
