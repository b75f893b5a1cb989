// How fast an operator is, and how much of its communication it hides.
#pragma once

#include <span>
#include <vector>

#include "shingle/api/operator.hpp"
#include "workspace.hpp"

namespace shingle {

struct MeasureOptions {
  int repeat = 0;          ///< rounds; 0: at least 5, and up to 20 while the budget lasts
  double budget_us = 1e6;  ///< wall-clock time for the rounds beyond the fifth
  int warmup = 1;          ///< runs of each before the first round
  int epochs = 1;          ///< of a timed run, back to back; times are of one
  double idle_us = 0;  ///< before each run of a round, so that power and clocks are those of a single shot
};

/// Medians over rounds of the time from the first begin to the last end over all ranks.
struct Measurement {
  double gemm_us = 0;  ///< the computation alone, unsplit: GEMMs, attention, or both; 0 where there is none
  double sequential_us = 0;
  double overlapped_us = 0;
  double spread = 0;  ///< of the overlapped times: interquartile range over the median
  int rounds = 0;
  std::vector<double> gemm_samples_us{}, sequential_samples_us{}, overlapped_samples_us{};

  double speedup() const { return sequential_us / overlapped_us; }
  /// 1 − ECT / ECT of sequential, where ECT = T − T(computation alone). Not a number without a computation,
  /// and where the sequential one exposes less than 5% of its time: a ratio of two noises.
  double overlap_efficiency() const;
};

/// The computation of a problem alone, unsplit, on the same ranks and operands, without epilogue: what ECT is
/// counted from. It is a GEMM, both of an mlp one after the other, or the attention of a rank's heads and
/// what is multiplied with it.
class GemmAlone {
 public:
  /// Shares the operands of `workspace` (made for the same problem, and outliving this) where their shapes
  /// allow it.
  GemmAlone(World& world, const Inputs& inputs, const Workspace& workspace, double timeout_us = 30e6);
  /// One after the other.
  std::span<Operator> products() { return products_; }

  /// Memory it takes on a rank beside the workspace, in bytes.
  static std::int64_t bytes(const Problem& problem, int rank);

 private:
  std::vector<Operator> products_;
  std::vector<DeviceBuffer> scratch_;
};

/// Runs the products alone and the two operators in turn, round by round, so that a drift of the machine
/// meets all alike; before that to warm up. `overlapped` may be the sequential operator itself. Collective;
/// the same figures on every process. `products` is empty where there is no computation.
Measurement measure(World& world, std::span<Operator> products, Operator& sequential, Operator& overlapped,
                    const MeasureOptions& options = {});

}  // namespace shingle
