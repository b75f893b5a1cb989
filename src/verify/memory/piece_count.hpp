// How many pieces an expansion may have, in closed form: told before it is made.
#pragma once

#include "shingle/plan/plan.hpp"

namespace shingle {

/// At least as many as RowMap::for_each_run() walks over, wherever the rows begin.
std::int64_t runs_at_most(const RowMap& map, std::int64_t rows);

/// At least as many as for_each_piece() walks over for a tile; 2^40 stands for all that is above.
std::int64_t pieces_at_most(const Placement& at, const TileRect& tile);

}  // namespace shingle
