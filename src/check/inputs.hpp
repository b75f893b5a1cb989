// Input matrices of all ranks, by formula: any element can be computed anywhere. So the oracle never relies
// on memory that a plan may have overwritten. A process can also check its rank against inputs of ranks in
// other processes.
#pragma once

#include <cstdint>
#include <memory>

#include "shingle/plan/shapes.hpp"

namespace shingle {

/// A rectangle of a stored matrix.
struct Area {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t col = 0;
  std::int64_t cols = 0;
};

class Inputs {
 public:
  explicit Inputs(Work work) : work_(std::move(work)) {}
  virtual ~Inputs() = default;

  const Work& work() const { return work_; }
  /// Throws std::bad_variant_access if these are the inputs of a workload.
  const Problem& problem() const { return std::get<Problem>(work_); }

  /// True if all sums of products are exact in fp32 and in the problem's dtype, in any order.
  virtual bool exact() const { return false; }

  /// Elements of an area as in memory (rounded to the dtype), row-major and dense.
  void read(int rank, Role role, const Area& area, double* out) const;

  /// Writes the whole matrix of a rank.
  void write(int rank, Role role, void* memory) const;
  /// Writes rows [first, first + rows) of the stored matrix to `memory`.
  void write_rows(int rank, Role role, std::int64_t first, std::int64_t rows, void* memory) const;

 private:
  /// Elements [col, col + cols) of a row, before rounding to the dtype.
  virtual void row(int rank, Role role, std::int64_t row, std::int64_t col, std::int64_t cols,
                   float* out) const = 0;

  Work work_;
};

/// Random inputs, a function of (seed, rank, role, index).
///
/// `normal`: bell-shaped, scaled so that outputs are of order one. `integers`: small integers with sums that
/// are exact in the dtype, so that every correct plan gives the same bits. op(A) is thinned out if its dense
/// sums would not be exact. The backward of attention has no exact sums: its inputs are normal.
///
/// The result and log-sum-exp that a backward takes are random too, independent of Q, K and V, but of the
/// size that they have in an attention. The gradients are functions of all of them.
///
/// Matrices that an operator replicates, for example the bias of a sum, are the same on all ranks.
///
/// `choices`: what the tokens of experts with a capacity choose, as the routing of a host would say it. A
/// rank may have fewer tokens than m. Null: every rank has m tokens, and each choice is any expert.
enum class Values : std::uint8_t { normal, integers };
std::unique_ptr<Inputs> random_inputs(const Problem& problem, std::uint64_t seed,
                                      Values values = Values::normal,
                                      std::shared_ptr<const Routing> choices = {});
/// Normal inputs of a workload.
std::unique_ptr<Inputs> random_inputs(const Workload& workload, std::uint64_t seed);

}  // namespace shingle
