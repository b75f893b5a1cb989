// The fp64 reference of attention.
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/api/inputs.hpp"

namespace shingle {

/// The attention of a rank's tokens [first, first + rows): rows × k, row-major.
std::vector<double> attend(const Inputs& inputs, int rank, std::int64_t first, std::int64_t rows);

}  // namespace shingle
