// The fp64 reference of an operator, one panel of rows at a time.
#pragma once

#include <span>
#include <vector>

#include "inputs.hpp"

namespace shingle {

/// Consecutive rows of one rank's op(A).
struct ARows {
  int owner = 0;
  std::int64_t row = 0;
  std::int64_t rows = 0;
};

/// Rows of the operator's global matrix with a common reference: the sum over `terms` of op(A) · op(B of the
/// term). For an mlp, each term is a chain of two products. The A of a term is its own rows, or `gathered`
/// from their owners.
struct Panel {
  std::int64_t row = 0;  ///< global
  std::int64_t rows = 0;
  std::vector<int> terms;
  std::vector<ARows> gathered;
  int weight = 0;            ///< which of the weights that B stacks
  std::vector<int> readers;  ///< ranks with outputs that hold some of these rows
};

/// The panels, each of at most `most_rows` rows, that `ranks` need for their outputs.
std::vector<Panel> make_panels(const Problem& problem, std::span<const int> ranks, std::int64_t most_rows);
/// As above, without rows of slots that have no token: these hold nothing.
std::vector<Panel> make_panels(const Inputs& inputs, std::span<const int> ranks, std::int64_t most_rows);

/// Input of the epilogue.
struct Product {
  std::vector<double> x;    ///< rows × n
  std::vector<double> lse;  ///< attention alone: rows × heads
  double scale = 0;         ///< root mean square of x if its terms had random signs
};
Product multiply(const Inputs& inputs, const Panel& panel);

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
