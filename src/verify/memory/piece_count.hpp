// Upper bounds on the number of pieces, in closed form, before they are expanded.
#pragma once

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Upper bound on the runs of RowMap::for_each_run(), for any first row.
std::int64_t runs_at_most(const RowMap& map, std::int64_t rows);

/// Upper bound on the pieces of for_each_piece() for a tile; at most 2^40.
std::int64_t pieces_at_most(const Placement& at, const TileRect& tile);

}  // namespace shingle
