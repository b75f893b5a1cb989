// The fp64 reference of attention.
#pragma once

#include <cstdint>
#include <vector>

#include "inputs.hpp"

namespace shingle {

/// The attention of tokens [first, first + rows) with the heads that a rank's A has: rows × k, row-major.
std::vector<double> attend(const Inputs& inputs, int rank, std::int64_t first, std::int64_t rows);

/// What attend() takes of memory at most for so many rows, with its result.
std::int64_t attend_bytes(const Problem& problem, std::int64_t rows);

}  // namespace shingle
