// Cost of steps before they are expanded: a plan that is too large is refused here.
#include "check.hpp"
#include "piece_count.hpp"

namespace shingle {
namespace {

/// Product of two counts, each bounded by Budget::most_spent so that it cannot overflow.
std::int64_t bounded_product(std::int64_t a, std::int64_t b) {
  return smaller(a, Budget::most_spent) * smaller(b, Budget::most_spent);
}

}  // namespace

/// The cost to find the tile of a position grows with the number of loops.
void MemoryCheck::spend_items(const TileGrid& grid, std::int64_t items) const {
  budget_.spend(Budget::expanded, bounded_product(items, 4 + grid.loop_count));
}

/// Cost of all pieces of an item. If the item may store over its own sources, each pair of pieces is
/// compared.
void MemoryCheck::spend_pieces(const Elementwise& step, std::int64_t item) const {
  const bool wide = row_wise(step);
  const TileRect rect = wide ? step.grid.rect({item, 0}) : step.grid.rect(step.grid.tile(item));
  const auto source = [&](const Placement& from, std::int64_t tiles) {
    const std::int64_t pieces = bounded_product(pieces_at_most(from, rect), tiles);
    budget_.spend(Budget::expanded, pieces);
    for (const Placement* to : {&step.to, &step.sum})
      if (to->slice.buffer == from.slice.buffer)
        budget_.spend(Budget::expanded, bounded_product(pieces, pieces_at_most(*to, rect)));
  };
  for (const Placement& from : step.from) source(from, wide ? step.grid.tiles_n() : 1);
  if (step.norm.residual) source(step.residual, 1);
  budget_.spend(Budget::expanded, pieces_at_most(step.to, rect));
}

}  // namespace shingle
