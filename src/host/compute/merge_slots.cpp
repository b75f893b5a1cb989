#include "merge_slots.hpp"

#include <optional>
#include <vector>

namespace shingle::host {
namespace {

std::int32_t& number_in(const View& view, std::int64_t row, std::int64_t col = 0) {
  return *reinterpret_cast<std::int32_t*>(view.at(row, col));
}

}  // namespace

void merge_slots(const MergeSlots& step, const std::function<View(const Slice&)>& view) {
  const auto output = [&](const Slice& slice) {
    return slice.buffer < 0 ? std::nullopt : std::optional(view(slice));
  };
  const View counts = view(step.counts), slot_of = view(step.slot_of), live = view(step.live);
  const auto merged_of = output(step.merged_of), token_of = output(step.token_of),
             row_of = output(step.row_of), slot_at = output(step.slot_at);
  const std::int64_t world = counts.rows, experts = counts.cols, tokens = slot_of.rows / world,
                     capacity = step.capacity;
  // First merged slot of a source and an expert.
  std::vector<std::int64_t> first(static_cast<std::size_t>(world * experts));
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const std::int64_t begin = expert * world * capacity;
    std::int64_t next = begin;
    for (std::int64_t source = 0; source < world; ++source) {
      first[static_cast<std::size_t>(source * experts + expert)] = next;
      for (std::int64_t i = 0; i < capacity; ++i) {
        const std::int64_t by_expert = begin + source * capacity + i;
        const bool has_token = i < number_in(counts, source, expert);
        if (slot_at) number_in(*slot_at, by_expert) = has_token ? static_cast<std::int32_t>(next + i) : -1;
        if (row_of && has_token) number_in(*row_of, next + i) = static_cast<std::int32_t>(by_expert);
      }
      next += number_in(counts, source, expert);
    }
    number_in(live, 0, expert) = static_cast<std::int32_t>(next - begin);
    for (; next < begin + world * capacity; ++next) {
      if (token_of) number_in(*token_of, next) = -1;
      if (row_of) number_in(*row_of, next) = -1;
    }
  }
  for (std::int64_t token = 0; token < slot_of.rows; ++token)
    for (std::int64_t choice = 0; choice < slot_of.cols; ++choice) {
      std::int32_t slot = number_in(slot_of, token, choice);
      if (slot >= 0) {
        const std::int64_t of = token / tokens * experts + slot / capacity;
        slot = static_cast<std::int32_t>(first[static_cast<std::size_t>(of)] + slot % capacity);
        if (token_of) number_in(*token_of, slot) = static_cast<std::int32_t>(token);
      }
      if (merged_of) number_in(*merged_of, token, choice) = slot;
    }
}

}  // namespace shingle::host
