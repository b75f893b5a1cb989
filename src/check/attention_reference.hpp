// The fp64 reference of attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inputs.hpp"

namespace shingle {

/// Attention of some tokens, ascending, with the heads of a rank's A.
struct Attended {
  std::vector<double> out;  ///< tokens × k, row-major
  std::vector<double> lse;  ///< log-sum-exp of the scaled scores: tokens × heads, row-major
};
Attended attend(const Inputs& inputs, int rank, std::span<const std::int64_t> tokens);
/// The same of tokens [first, first + rows).
Attended attend(const Inputs& inputs, int rank, std::int64_t first, std::int64_t rows);

/// Columns [col, col + cols) of some tokens' rows of a matrix that has a row for each token, from the ranks
/// that hold them.
void read_token_rows(const Inputs& inputs, int rank, Role role, std::span<const std::int64_t> tokens,
                     std::int64_t col, std::int64_t cols, double* out);

/// Upper bound of the memory that attend() uses for `rows` rows, with its result.
std::int64_t attend_bytes(const Problem& problem, std::int64_t rows);

}  // namespace shingle
