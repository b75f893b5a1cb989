#include "merged_slots.hpp"

#include <utility>

#include "experts.hpp"

namespace shingle::planner {

SlotOrder slot_order(const Problem& problem, const Machine& machine, const TileParams& tile,
                     SlotOrder asked) {
  if (!problem.orders_slots() || asked != SlotOrder::automatic) return asked;
  const bool emptier = problem.world > 1 && machine.whole_tiles && !machine.tiles.empty() &&
                       problem.expected_rows() <= unit_rows(machine, tile, problem.epilogue);
  return emptier ? SlotOrder::merged : SlotOrder::by_source;
}

MergedSlots::MergedSlots(Builder& build, const Slots& slots) : build_(build), slots_(slots) {
  const Problem& p = build.problem();
  const bool gathers = p.traits().before.has_value(), sums = p.traits().after.has_value();
  const std::int64_t all = p.routing->received(0);
  const auto index = [&](std::string name, std::int64_t rows, std::int64_t cols) {
    return build.typed_buffer(std::move(name), DType::i32, rows, cols);
  };
  live_ = index("merged live", 1, p.experts.count);
  if (sums) merged_of_ = index("merged slot_of", p.world * p.m, p.experts.topk);
  if (gathers) token_of_ = index("token_of", all, 1);
  if (!gathers) row_of_ = index("merged row_of", all, 1);
  if (!sums) slot_at_ = index("slot_at", all, 1);
}

void MergedSlots::merge(int rank) const {
  const auto all = [&](std::int32_t buffer) { return buffer < 0 ? Slice{} : build_.all(buffer, rank); };
  build_.step(rank, compute_lane,
              MergeSlots{build_.problem().experts.capacity, slots_.live(rank), slots_.slot_of(rank),
                         all(live_), all(merged_of_), all(token_of_), all(row_of_), all(slot_at_)});
}

Elementwise MergedSlots::sort(const Slice& rows, const Slice& sorted) const {
  Elementwise pass;
  pass.grid = build_.row_blocks(sorted.rows, sorted.cols);
  pass.from.push_back(picked(rows, build_.all(token_of_ < 0 ? row_of_ : token_of_, sorted.rank)));
  pass.to = Builder::in_place(sorted);
  return pass;
}

Gemm MergedSlots::multiply(const Machine& machine, const TileParams& tile, Gemm product,
                           const Slice& a) const {
  const Routing& routing = *build_.problem().routing;
  const std::int64_t rows = routing.world() * routing.capacity();
  std::vector<RowGroup> groups;
  for (int expert = 0; expert < routing.experts(); ++expert)
    groups.push_back({expert * rows, expert * rows, rows, expert, expert});
  product.a = a;
  product.live = build_.all(live_, a.rank);
  return grouped(build_, machine, tile, std::move(product), std::move(groups));
}

Elementwise MergedSlots::place(const Slice& products) const {
  const Slice out = build_.all(build_.out, products.rank);
  Elementwise pass;
  pass.grid = build_.row_blocks(out.rows, out.cols);
  pass.from.push_back(picked(products, build_.all(slot_at_, products.rank)));
  pass.to = Builder::in_place(out);
  return pass;
}

Elementwise MergedSlots::combine(const Slice& products, const Slice& factors, Placement to,
                                 const TileGrid& grid) const {
  Elementwise pass = planner::combine(grid, factors, {});
  pass.to = std::move(to);
  for (std::int64_t choice = 0; choice < build_.problem().experts.topk; ++choice)
    pass.from.push_back(picked(products, of_choice(build_.all(merged_of_, products.rank), choice)));
  return pass;
}

}  // namespace shingle::planner
