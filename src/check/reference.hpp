// The fp64 reference of an operator, one panel of rows at a time.
#pragma once

#include <vector>

#include "panels.hpp"

namespace shingle {

/// A weight, k × n, and which one it is of those that a matrix stacks.
struct Weight {
  Role role = Role::b;
  std::int64_t k = 0, n = 0;
  int number = 0;

  /// Rows [row, row + rows) and columns [col, col + cols) of op(B), where they are stored.
  Area block(const Problem& problem, std::int64_t row, std::int64_t rows, std::int64_t col,
             std::int64_t cols) const;
};

/// The first of two products after bias and activation, rows × inner. `x`: the product, rows × b_cols().
std::vector<double> activated(const Inputs& inputs, int rank, const std::vector<double>& x);

/// Input of the epilogue: the sum of a panel's terms, or one of them.
struct Product {
  std::vector<double> x;    ///< rows × n
  std::vector<double> lse;  ///< attention alone: rows × heads
  double mean_square = 0;   ///< of x if the products summed in it had random signs

  /// Adds the product of a term of the panel.
  void add(const Problem& problem, const Panel& panel, const Term& term, Product&& other);
};
Product multiply(const Inputs& inputs, const Panel& panel, const Term& term);

/// Size of a result with a mean square, before its activation.
double result_size(const Problem& problem, double mean_square);

/// One row of a rank's result.
struct RowResult {
  std::vector<double> out;
  std::vector<double> sum;  ///< x + residual; empty without a residual
  double factor = 1;        ///< factor by which the norm multiplied the row, and thus its error
};

/// Bias, activation, residual and norm of a rank, applied row by row.
class Finish {
 public:
  Finish(const Inputs& inputs, int rank);
  /// `x` has n elements; `row` is a row of the rank's output. The result is valid until the next call.
  const RowResult& operator()(const double* x, std::int64_t row);
  /// Root mean square of normalised rows.
  double norm_scale() const;

 private:
  const Inputs& inputs_;
  int rank_;
  std::vector<double> bias_, weight_, residual_;
  RowResult result_;
};

}  // namespace shingle
