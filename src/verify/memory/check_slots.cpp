// Routing on the device: slots, the indices that lead to them and the counts of those that have a token.
//
// Which slots have a token is known at run time only. The check takes all of them to have one: it proves what
// every slot holds, so it proves those that are used (docs/concepts/proofs.md, "Slots").
#include "check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace shingle {

/// A of a rank: its tokens, in their order. Rows count from its first one.
void MemoryCheck::provide_tokens(const Place& all, const Segment& s) {
  memory_.hold(all, {Content::Of::tokens, 0, s.epoch, 0, 0, std::uint64_t{1} << s.rank});
}

/// Requires a slice to hold tokens of a rank, or indices or counts that a step of it has made, from this row
/// and column of theirs on.
void MemoryCheck::read_numbers(const Slice& slice, Content::Of of, int source, const Segment& s,
                               std::int32_t index, std::int64_t row, std::int64_t col) {
  const Place at = place(slice, s.epoch);
  memory_.read(at, index, -1, [&](const Rect& cell, const Content& c) {
    if (c.of == of && c.epoch == s.epoch && c.ranks == std::uint64_t{1} << source &&
        c.row + at.rect.row == row && c.col + at.rect.col == col)
      return;
    Content wanted{of, 0, s.epoch};
    wanted.ranks = std::uint64_t{1} << source;
    fail_content(s, fmt::format("reads {} ({}) as {}, from row {}, column {} on", memory_.describe(at, cell),
                                text_of(c), text_of(wanted), row, col));
  });
}

void MemoryCheck::assign_slots(const AssignSlots& step, const Segment& s, std::int32_t index) {
  read_numbers(step.ids, Content::Of::topk_ids, s.rank, s, index, 0, 0);
  const auto make = [&](const Slice& to, Content::Of of) {
    Content c{of, 0, s.epoch, -to.row, -to.col};
    c.ranks = std::uint64_t{1} << s.rank;
    memory_.write(place(to, s.epoch), index, 0, c);
  };
  make(step.row_of, Content::Of::row_of);
  make(step.slot_of, Content::Of::slot_of);
  make(step.counts, Content::Of::counts);
  make(step.dropped, Content::Of::dropped);
}

/// Reads the tokens of consecutive slots of a rank. Any of its tokens may be in any of its slots, so the pass
/// must pick from all of them. Returns the rows of the slots, in tile coordinates.
Content MemoryCheck::pick_tokens(const Elementwise& step, const Segment& s, std::int32_t index,
                                 std::int64_t item, const Placement& from) {
  const Problem& p = plan_.problem();
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  Slice by = std::get<placement::Indexed>(from.form).index;
  by.row += rect.row;
  by.rows = rect.rows;
  std::int64_t slot = -1;  // of the tile's first row
  int source = s.rank;     // of the slot
  const Place at = place(by, s.epoch);
  memory_.read(at, index, item, [&](const Rect&, const Content& c) {
    if (slot >= 0) return;
    slot = c.row + at.rect.row;
    if (c.ranks != 0) source = std::countr_zero(c.ranks);
  });
  read_numbers(by, Content::Of::row_of, source, s, index, slot, 0);
  read_numbers(from.slice, Content::Of::tokens, source, s, index, 0, 0);
  if (from.slice.rows != p.m)
    fail_content(s, fmt::format("picks from {} rows, but a rank has {} tokens", from.slice.rows, p.m));
  return {Content::Of::a, 0, s.epoch, p.routing->global_base(source) + slot, rect.col, 0};
}

/// Requires the products of all slots of a rank, each with the weight of its expert. Returns their values.
const std::vector<ValueTable::Id>& MemoryCheck::read_slots(const Slice& products, int source,
                                                           const Segment& s, std::int32_t index) {
  if (slots_segment_ == index && slots_source_ == source && slots_ == products) return slot_values_;
  const Problem& p = plan_.problem();
  const Routing& routing = *p.routing;
  if (products.rows != routing.rows(source))
    fail_content(
        s, fmt::format("picks from {} rows, but a rank has {} slots", products.rows, routing.rows(source)));
  slots_segment_ = index;
  slots_source_ = source;
  slots_ = products;
  slot_values_.clear();
  const Place at = place(products, s.epoch);
  memory_.read(at, index, -1, [&](const Rect& cell, const Content& c) {
    budget_.spend(Budget::compared, cell.rows);
    for (std::int64_t row = cell.row; row < cell.row + cell.rows; ++row) {
      const std::int64_t slot = row - at.rect.row;
      const int expert = routing.dest(source, slot),
                holder = routing.receives(s.rank, expert) ? s.rank : routing.rank_of(expert);
      // Rows count as those of A: slots, or rows by expert.
      const std::int64_t wanted = p.traits().before
                                      ? routing.global_base(source) + slot
                                      : p.a_runs(holder).front().global_row +
                                            routing.receive_base(expert, source) + slot % routing.capacity();
      if (c.of != Content::Of::c || c.epoch != s.epoch || c.done != 0 || row + c.row != wanted ||
          at.rect.col + c.col != 0 || c.ranks != std::uint64_t{1} << holder ||
          c.weight != routing.weight_of(expert))
        fail_content(s, fmt::format("picks from {} ({}) as the product of slot {}, which is row {} with "
                                    "expert {}",
                                    memory_.describe(at, cell), text_of(c), slot, wanted, expert));
    }
    if (std::ranges::find(slot_values_, c.value) == slot_values_.end()) slot_values_.push_back(c.value);
  });
  return slot_values_;
}

/// As take_choice(), for products that are picked by their slots. The choice may have any of the slots, so
/// its value is that of a merge of all.
void MemoryCheck::take_picked(const Elementwise& step, const Segment& s, std::int32_t index,
                              std::int64_t item, std::size_t choice, std::int64_t first,
                              RegionMap<ValueTable::Id>& sums) {
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  const Placement& from = step.from[choice];
  Slice by = std::get<placement::Indexed>(from.form).index;
  by.row += rect.row;
  by.rows = rect.rows;
  const auto source = static_cast<int>(first / plan_.problem().m);
  read_numbers(by, Content::Of::slot_of, source, s, index, first % plan_.problem().m,
               static_cast<std::int64_t>(choice));
  const std::vector<ValueTable::Id>& values = read_slots(from.slice, source, s, index);
  sums.visit({0, rect.rows, 0, rect.cols}, [&](const Rect&, ValueTable::Id& sum) {
    for (const ValueTable::Id value : values) sum = values_.merged(sum, value);
  });
}

/// Requires the count of a tile's group to be that of the expert and the source that its rows are of, and the
/// tile's rows to be as far behind the first of these as in the group.
void MemoryCheck::check_live(const Gemm& step, const Segment& s, std::int32_t index, const ProductTile& tile,
                             const std::vector<TileRows>& rows) {
  const Problem& p = plan_.problem();
  const Routing& routing = *p.routing;
  const Slice count{step.live.buffer,
                    step.live.rank,
                    step.live.row + tile.group->live / step.live.cols,
                    1,
                    step.live.col + tile.group->live % step.live.cols,
                    1};
  const Place at = place(count, s.epoch);
  Content of;
  memory_.read(at, index, -1, [&](const Rect&, const Content& c) { of = c; });
  for (const TileRows& run : rows)
    for (const std::int64_t i : {std::int64_t{0}, run.rows - 1}) {
      Routing::Row slot;
      if (p.traits().before) {
        while (slot.source + 1 < p.world && routing.global_base(slot.source + 1) <= run.global_row + i)
          ++slot.source;
        slot.row = run.global_row + i - routing.global_base(slot.source);
      } else {
        slot = routing.received_row(s.rank, run.global_row + i - p.a_runs(s.rank).front().global_row);
      }
      const int expert = routing.dest(slot.source, slot.row);
      if (of.of != Content::Of::counts || of.epoch != s.epoch ||
          of.ranks != std::uint64_t{1} << slot.source || of.row + at.rect.row != routing.rank_of(expert) ||
          of.col + at.rect.col != routing.weight_of(expert) ||
          slot.row % routing.capacity() != tile.in_group + run.tile_row + i)
        fail_content(s,
                     fmt::format("takes {} ({}) for the count of row {} of those from rank {} for expert {}",
                                 memory_.describe(at, at.rect), text_of(of), slot.row % routing.capacity(),
                                 slot.source, expert));
    }
}

/// Counts of this call, of all ranks that send rows, or what the rank's own routing has dropped.
void MemoryCheck::check_slot_output(const Segment& s, std::int32_t index, Role role) {
  const Problem& p = plan_.problem();
  const std::int32_t buffer = find_buffer(plan_, role);
  if (buffer < 0) return;
  const Slice all = whole(plan_, buffer, s.rank);
  const Place at = place(all, s.epoch - 1);
  for (std::int64_t row = 0; row < all.rows; ++row) {
    Content expected{Content::Of::dropped, 0, s.epoch - 1};
    expected.ranks = std::uint64_t{1} << s.rank;
    if (role == Role::counts) {
      expected.of = Content::Of::counts;
      expected.row = (p.traits().slices_experts() ? 0 : s.rank) - row;
      expected.ranks = std::uint64_t{1} << row;
    }
    expect({at.buffer, at.rank, at.copy, {row, 1, 0, all.cols}}, index, expected);
  }
}

}  // namespace shingle
