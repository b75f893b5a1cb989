// Sums over ranks with bytes moved by copy engines. Engines cannot add, so they exchange the ranks' parts,
// and workers sum these in rank order.
#pragma once

#include "shingle/planner/params.hpp"

namespace shingle::planner {

class Builder;
class CopyEngineBuilder;

/// Grid of a sum by `sum_workers` (0: all): one block of rows for each, within the rows that fit its cache.
/// Narrow rows come in larger blocks.
TileGrid sum_blocks(const Builder& build, std::int64_t rows, std::int64_t cols, std::int32_t sum_workers);

void plan_reducescatter(CopyEngineBuilder& build, CopyVariant variant);
/// A reduce-scatter, then a gather of the sums. Every rank applies a norm or swiglu to all rows, and the
/// owner of a row every other epilogue.
void plan_allreduce(CopyEngineBuilder& build, CopyVariant variant);

}  // namespace shingle::planner
