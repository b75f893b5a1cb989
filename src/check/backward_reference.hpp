// The fp64 reference of the gradients of attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inputs.hpp"

namespace shingle {

/// The gradient of Q (Role::out), K or V of some tokens, ascending: a row for each token, the columns of the
/// role's matrix, row-major.
std::vector<double> gradient(const Inputs& inputs, Role role, std::span<const std::int64_t> tokens);
/// The same of tokens [first, first + rows).
std::vector<double> gradient(const Inputs& inputs, Role role, std::int64_t first, std::int64_t rows);

/// Upper bound of the memory that gradient() uses for `rows` rows, with its result.
std::int64_t gradient_bytes(const Problem& problem, std::int64_t rows);

double root_mean_square(const std::vector<double>& values);

}  // namespace shingle
