// Routing on the device: slots, the indices that lead to them and the counts of those that have a token.
//
// Which slots have a token is known at run time only. The check takes all of them to have one: it proves what
// every slot holds, so it proves those that are used (docs/concepts/proofs.md, "Slots").
#include "check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

namespace shingle {

std::uint64_t MemoryCheck::source_bit(int rank) const {
  return std::uint64_t{1} << plan_.problem().source_of(rank);
}

/// A of a rank: its tokens, in their order. Rows count from its first one.
void MemoryCheck::provide_tokens(const Place& all, const Segment& s) {
  memory_.hold(all, {Content::Of::tokens, 0, s.epoch, 0, 0, source_bit(s.rank)});
}

/// Requires a slice to hold tokens of a rank, or indices or counts that a step of it has made, from this row
/// and column of theirs on.
void MemoryCheck::read_numbers(const Slice& slice, Content::Of of, int source, const Segment& s,
                               std::int32_t index, std::int64_t row, std::int64_t col) {
  const Place at = place(slice, s.epoch);
  memory_.read(at, index, -1, [&](const Rect& cell, const Content& c) {
    if (c.of == of && c.epoch == s.epoch && c.ranks == std::uint64_t{1} << source && !c.merged &&
        c.row + at.rect.row == row && c.col + at.rect.col == col)
      return;
    Content wanted{of, 0, s.epoch};
    wanted.ranks = std::uint64_t{1} << source;
    fail_content(s, fmt::format("reads {} ({}) as {}, from row {}, column {} on", memory_.describe(at, cell),
                                text_of(c), text_of(wanted), row, col));
  });
}

void MemoryCheck::assign_slots(const AssignSlots& step, const Segment& s, std::int32_t index) {
  read_numbers(step.ids, Content::Of::topk_ids, plan_.problem().source_of(s.rank), s, index, 0, 0);
  const auto make = [&](const Slice& to, Content::Of of) {
    Content c{of, 0, s.epoch, -to.row, -to.col};
    c.ranks = source_bit(s.rank);
    memory_.write(place(to, s.epoch), index, 0, c);
  };
  make(step.row_of, Content::Of::row_of);
  make(step.slot_of, Content::Of::slot_of);
  make(step.counts, Content::Of::counts);
  make(step.dropped, Content::Of::dropped);
}

/// As read_numbers(), for what a step has made of merged slots.
void MemoryCheck::read_merged(const Slice& slice, Content::Of of, const Segment& s, std::int32_t index,
                              std::int64_t row, std::int64_t col) {
  const Place at = place(slice, s.epoch);
  memory_.read(at, index, -1, [&](const Rect& cell, const Content& c) {
    if (c.of == of && c.epoch == s.epoch && c.merged && c.row + at.rect.row == row &&
        c.col + at.rect.col == col)
      return;
    Content wanted{of, 0, s.epoch};
    wanted.merged = true;
    fail_content(s, fmt::format("reads {} ({}) as {}, from row {}, column {} on", memory_.describe(at, cell),
                                text_of(c), text_of(wanted), row, col));
  });
}

/// Any slot of a rank moves with the counts of others, so the step needs those of all ranks.
void MemoryCheck::merge_slots(const MergeSlots& step, const Segment& s, std::int32_t index) {
  const Problem& p = plan_.problem();
  for (int source = 0; source < p.world; ++source) {
    Slice counts = step.counts, slots = step.slot_of;
    counts.row += source, counts.rows = 1;
    slots.row += source * p.m, slots.rows = p.m;
    read_numbers(counts, Content::Of::counts, source, s, index, 0, 0);
    read_numbers(slots, Content::Of::slot_of, source, s, index, 0, 0);
  }
  const auto make = [&](const Slice& to, Content::Of of) {
    if (to.buffer < 0) return;
    Content c{of, 0, s.epoch, -to.row, -to.col};
    c.merged = true;
    memory_.write(place(to, s.epoch), index, 0, c);
  };
  make(step.live, Content::Of::counts);
  make(step.merged_of, Content::Of::slot_of);
  make(step.token_of, Content::Of::row_of);
  make(step.row_of, Content::Of::row_by_expert_of);
  make(step.slot_at, Content::Of::slot_by_expert_of);
}

/// The first content of an index. Its row is that of what the index leads from.
Content MemoryCheck::index_of(const Slice& by, const Segment& s, std::int32_t index) {
  std::optional<Content> first;
  const Place at = place(by, s.epoch);
  memory_.read(at, index, -1, [&](const Rect&, const Content& c) {
    if (!first) first = c;
  });
  Content found = first.value_or(Content{});
  found.row += at.rect.row;
  return found;
}

/// Reads the rows that an index picks for a tile, in tile coordinates.
RegionMap<Content> MemoryCheck::pick_rows(const Elementwise& step, const Segment& s, std::int32_t index,
                                          std::int64_t item, const Placement& from) {
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  Slice by = std::get<placement::Indexed>(from.form).index;
  by.row += rect.row;
  by.rows = rect.rows;
  const Content first = index_of(by, s, index);
  RegionMap<Content> tile(rect.rows, rect.cols, Content{}, &budget_);
  if (first.of == Content::Of::slot_by_expert_of) {
    place_by_expert(by, first, from, s, index, tile);
  } else {
    const Content picked =
        first.merged ? pick_merged(by, first, from, s, index) : pick_tokens(by, first, from, s, index);
    tile.visit({0, rect.rows, 0, rect.cols}, [&](const Rect&, Content& held) { held = picked; });
  }
  tile.visit({0, rect.rows, 0, rect.cols}, [&](const Rect&, Content& held) { held.col += rect.col; });
  return tile;
}

/// Reads the tokens of consecutive slots of a rank. Any of its tokens may be in any of its slots, so the pass
/// must pick from all of them. Returns the rows of the slots.
Content MemoryCheck::pick_tokens(const Slice& by, const Content& first, const Placement& from,
                                 const Segment& s, std::int32_t index) {
  const Problem& p = plan_.problem();
  const int source = first.ranks != 0 ? std::countr_zero(first.ranks) : s.rank;
  read_numbers(by, Content::Of::row_of, source, s, index, first.row, 0);
  read_numbers(from.slice, Content::Of::tokens, source, s, index, 0, 0);
  if (from.slice.rows != p.m)
    fail_content(s, fmt::format("picks from {} rows, but a rank has {} tokens", from.slice.rows, p.m));
  return {Content::Of::a, 0, s.epoch, p.routing->global_base(source) + first.row, 0, 0};
}

/// Reads the rows of A of consecutive merged slots: tokens of all ranks, or rows by expert. Any of these may
/// be in a slot, so the pass must pick from all of them.
Content MemoryCheck::pick_merged(const Slice& by, const Content& first, const Placement& from,
                                 const Segment& s, std::int32_t index) {
  const Problem& p = plan_.problem();
  const bool gathers = p.traits().before.has_value();
  read_merged(by, gathers ? Content::Of::row_of : Content::Of::row_by_expert_of, s, index, first.row, 0);
  const std::int64_t rows = gathers ? p.world * p.m : p.a_rows(s.rank);
  if (from.slice.rows != rows)
    fail_content(s, fmt::format("picks from {} rows of the {} of all ranks", from.slice.rows, rows));
  for (int source = 0; gathers && source < p.world; ++source) {
    Slice tokens = from.slice;
    tokens.row += source * p.m, tokens.rows = p.m;
    read_numbers(tokens, Content::Of::tokens, source, s, index, 0, 0);
  }
  if (!gathers) read_numbers(from.slice, Content::Of::a, s.rank, s, index, 0, 0);
  Content picked{Content::Of::a, 0, s.epoch, first.row, 0, gathers ? 0 : std::uint64_t{1} << s.rank};
  picked.merged = true;
  return picked;
}

/// Reads the products of consecutive rows by expert. Such a row may have any merged slot of its expert.
void MemoryCheck::place_by_expert(const Slice& by, const Content& first, const Placement& from,
                                  const Segment& s, std::int32_t index, RegionMap<Content>& tile) {
  const Problem& p = plan_.problem();
  const Routing& routing = *p.routing;
  read_merged(by, Content::Of::slot_by_expert_of, s, index, first.row, 0);
  Content product{Content::Of::c, 0, s.epoch, 0, 0, std::uint64_t{1} << s.rank};
  const std::vector<ValueTable::Id>& values = read_merged_slots(from.slice, s, index);
  if (!values.empty()) product.value = values.front();
  if (values.size() > 1)  // any of them
    for (const ValueTable::Id value : values) product.value = values_.merged(product.value, value);
  product.done = slots_done_;
  const std::int64_t capacity = routing.capacity();
  for (std::int64_t done = 0; done < by.rows;) {
    const std::int64_t run = (first.row + done) / capacity, within = (first.row + done) % capacity;
    const std::int64_t rows = smaller(capacity - within, by.rows - done), expert = run / p.world;
    product.row = routing.global_base(static_cast<int>(run % p.world)) + expert * capacity + within - done;
    product.weight = static_cast<std::int32_t>(expert);
    tile.visit({done, rows, 0, from.slice.cols}, [&](const Rect&, Content& held) { held = product; });
    done += rows;
  }
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
  slots_col_ = -1;
  slot_values_.clear();
  const Place at = place(products, s.epoch);
  memory_.read(at, index, -1, [&](const Rect& cell, const Content& c) {
    if (slots_col_ < 0) slots_col_ = at.rect.col + c.col;
    budget_.spend(Budget::compared, cell.rows);
    for (std::int64_t row = cell.row; row < cell.row + cell.rows; ++row) {
      const std::int64_t slot = row - at.rect.row;
      const int expert = routing.dest(source, slot),
                holder = routing.receives(s.rank, expert) ? s.rank : routing.rank_of(expert);
      // Rows count as those of A: slots, or rows by expert.
      const std::int64_t wanted = p.traits().takes_tokens()
                                      ? routing.global_base(source) + slot
                                      : p.a_runs(holder).front().global_row +
                                            routing.receive_base(expert, source) + slot % routing.capacity();
      if (c.of != Content::Of::c || c.epoch != s.epoch || c.done != 0 || c.merged || row + c.row != wanted ||
          at.rect.col + c.col != slots_col_ || c.ranks != std::uint64_t{1} << holder ||
          c.weight != routing.weight_of(expert))
        fail_content(s,
                     fmt::format("picks from {} ({}) as the product of slot {}, which is row {} from "
                                 "column {} on with expert {}",
                                 memory_.describe(at, cell), text_of(c), slot, wanted, slots_col_, expert));
    }
    if (std::ranges::find(slot_values_, c.value) == slot_values_.end()) slot_values_.push_back(c.value);
  });
  return slot_values_;
}

/// Requires the products of all merged slots, each with the weight of its expert, and the same of each done.
/// Returns their values.
const std::vector<ValueTable::Id>& MemoryCheck::read_merged_slots(const Slice& products, const Segment& s,
                                                                  std::int32_t index) {
  if (slots_segment_ == index && slots_source_ == merged_slots && slots_ == products) return slot_values_;
  const Problem& p = plan_.problem();
  const std::int64_t slots = p.routing->received(s.rank), of_expert = p.world * p.routing->capacity();
  if (products.rows != slots)
    fail_content(s, fmt::format("picks from {} rows, but there are {} slots", products.rows, slots));
  slots_segment_ = index;
  slots_source_ = merged_slots;
  slots_ = products;
  slot_values_.clear();
  slots_done_ = 0;
  slots_col_ = 0;
  bool first = true;
  const Place at = place(products, s.epoch);
  memory_.read(at, index, -1, [&](const Rect& cell, const Content& c) {
    if (std::exchange(first, false)) slots_done_ = c.done;
    const std::int64_t slot = cell.row - at.rect.row, last = slot + cell.rows - 1;
    if (c.of != Content::Of::c || c.epoch != s.epoch || !c.merged || c.done != slots_done_ ||
        cell.row + c.row != slot || at.rect.col + c.col != 0 || c.ranks != std::uint64_t{1} << s.rank ||
        c.weight != slot / of_expert || c.weight != last / of_expert)
      fail_content(s, fmt::format("picks from {} ({}) as products of merged slots {} to {}",
                                  memory_.describe(at, cell), text_of(c), slot, last));
    if (std::ranges::find(slot_values_, c.value) == slot_values_.end()) slot_values_.push_back(c.value);
  });
  return slot_values_;
}

/// As take_choice(), for products that are picked by their slots. The choice may have any of the slots, so
/// its value is that of a merge of all.
void MemoryCheck::take_picked(const Elementwise& step, const Segment& s, std::int32_t index,
                              std::int64_t item, std::size_t choice, std::int64_t first,
                              std::int64_t& first_col, RegionMap<ValueTable::Id>& sums) {
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  const Placement& from = step.from[choice];
  Slice by = std::get<placement::Indexed>(from.form).index;
  by.row += rect.row;
  by.rows = rect.rows;
  const std::int64_t tokens = plan_.problem().m;
  const auto source = static_cast<int>(first / tokens);
  const auto col = static_cast<std::int64_t>(choice);
  const bool merged = index_of(by, s, index).merged;
  if (merged)
    read_merged(by, Content::Of::slot_of, s, index, first, col);
  else
    read_numbers(by, Content::Of::slot_of, source, s, index, first % tokens, col);
  const std::vector<ValueTable::Id>& values =
      merged ? read_merged_slots(from.slice, s, index) : read_slots(from.slice, source, s, index);
  if (merged && slots_done_ != 0) fail_content(s, "weighs products that are more than products");
  if (first_col < 0) first_col = slots_col_ + rect.col;
  if (first_col != slots_col_ + rect.col)
    fail_content(s, fmt::format("has choice {} of its tokens from column {} on, the others from {}", choice,
                                slots_col_ + rect.col, first_col));
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
      if (run.merged) {
        check_merged_live(of, at, run.global_row + i, tile.in_group + run.tile_row + i, s);
        continue;
      }
      Routing::Row slot;
      if (p.traits().takes_tokens()) {
        while (slot.source + 1 < p.sources() && routing.global_base(slot.source + 1) <= run.global_row + i)
          ++slot.source;
        slot.row = run.global_row + i - routing.global_base(slot.source);
      } else {
        slot = routing.received_row(s.rank, run.global_row + i - p.a_runs(s.rank).front().global_row);
      }
      const int expert = routing.dest(slot.source, slot.row);
      if (of.of != Content::Of::counts || of.epoch != s.epoch || of.merged ||
          of.ranks != std::uint64_t{1} << slot.source || of.row + at.rect.row != routing.rank_of(expert) ||
          of.col + at.rect.col != routing.weight_of(expert) ||
          slot.row % routing.capacity() != tile.in_group + run.tile_row + i)
        fail_content(
            s, fmt::format("takes {} ({}) for the count of row {} of those from source {} for expert {}",
                           memory_.describe(at, at.rect), text_of(of), slot.row % routing.capacity(),
                           slot.source, expert));
    }
}

/// The same for a merged slot, the `in_group`-th of its group.
void MemoryCheck::check_merged_live(const Content& count, const Place& at, std::int64_t slot,
                                    std::int64_t in_group, const Segment& s) const {
  const std::int64_t of_expert = plan_.problem().world * plan_.problem().routing->capacity();
  if (count.of != Content::Of::counts || count.epoch != s.epoch || !count.merged ||
      count.row + at.rect.row != 0 || count.col + at.rect.col != slot / of_expert ||
      slot % of_expert != in_group)
    fail_content(
        s, fmt::format("takes {} ({}) for the count of merged slot {} of expert {}",
                       memory_.describe(at, at.rect), text_of(count), slot % of_expert, slot / of_expert));
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
    expected.ranks = source_bit(s.rank);
    if (role == Role::counts) {
      expected.of = Content::Of::counts;
      expected.row = (p.traits().slices_experts() ? 0 : s.rank) - row;
      expected.ranks = std::uint64_t{1} << row;
    }
    expect({at.buffer, at.rank, at.copy, {row, 1, 0, all.cols}}, index, expected);
  }
}

}  // namespace shingle
