// The operator mlp with collectives. ring/ and fused/ have their own plans (docs/mechanisms/mlp.md).
#pragma once

#include <cstdint>
#include <vector>

#include "builder.hpp"

namespace shingle::planner {

/// Plans mlp in slices [begins[i], begins[i + 1]) of every shard. Each slice is gathered, multiplied twice
/// and reduce-scattered. One slice is the sequential plan.
void plan_mlp_slices(Builder& build, const std::vector<std::int64_t>& begins);

/// An internal buffer for `rows` rows of the first product.
std::int32_t hidden_buffer(Builder& build, std::int64_t rows);

}  // namespace shingle::planner
