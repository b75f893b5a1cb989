// Measures an operator's time, and the share of its communication that it hides.
#pragma once

#include <span>
#include <vector>

#include "shingle/api/operator.hpp"
#include "workspace.hpp"

namespace shingle {

struct MeasureOptions {
  int repeat = 0;          ///< number of rounds; 0: at least 5, and up to 20 within the budget
  double budget_us = 1e6;  ///< wall-clock time for rounds after the fifth
  int warmup = 1;          ///< runs of each operator before the first round
  int epochs = 1;          ///< epochs of a timed run, back to back; times are for one epoch
  double idle_us =
      0;  ///< pause before each run of a round, so that power and clocks are those of a single run
};

/// Medians over rounds of the time from the first begin to the last end over all ranks.
struct Measurement {
  double gemm_us = 0;  ///< the computation alone, unsplit: GEMMs, attention, or both; 0: there is none
  double sequential_us = 0;
  double overlapped_us = 0;
  double spread = 0;  ///< of the overlapped times: interquartile range over the median
  int rounds = 0;
  std::vector<double> gemm_samples_us{}, sequential_samples_us{}, overlapped_samples_us{};

  double speedup() const { return sequential_us / overlapped_us; }
  /// 1 − ECT / ECT of sequential, with ECT = T − T(computation alone). Not a number without a computation.
  /// Also not a number if the sequential plan exposes less than 5% of its time, because that is a ratio of
  /// two noises.
  double overlap_efficiency() const;
};

/// The computation of a problem alone, unsplit and without epilogue, on the same ranks and operands. It is
/// the basis of ECT. It is a GEMM, both GEMMs of an mlp in turn, or the attention of a rank's heads and its
/// product.
class GemmAlone {
 public:
  /// Shares the operands of `workspace` if their shapes allow it. `workspace` belongs to the same problem and
  /// must outlive this object.
  GemmAlone(World& world, const Inputs& inputs, const Workspace& workspace, double timeout_us = 30e6);
  /// Operators to run one after the other.
  std::span<Operator> products() { return products_; }

  /// Bytes of memory on a rank, besides the workspace.
  static std::int64_t bytes(const Problem& problem, int rank);

 private:
  std::vector<Operator> products_;
  std::vector<DeviceBuffer> scratch_;
};

/// Runs the products alone and the two operators in turn, round by round, so that a drift of the machine
/// affects all alike. Warm-up runs come first. `overlapped` may be the sequential operator itself. `products`
/// is empty if there is no computation. Collective; every process gets the same figures.
Measurement measure(World& world, std::span<Operator> products, Operator& sequential, Operator& overlapped,
                    const MeasureOptions& options = {});

}  // namespace shingle
