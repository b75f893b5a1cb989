#include "assign_slots.hpp"

#include <algorithm>
#include <vector>

namespace shingle::host {
namespace {

std::int32_t& at(const View& view, std::int64_t row, std::int64_t col = 0) {
  return *reinterpret_cast<std::int32_t*>(view.at(row, col));
}

void fill(const View& view, std::int32_t value) {
  for (std::int64_t row = 0; row < view.rows; ++row) std::fill_n(&at(view, row), view.cols, value);
}

}  // namespace

void assign_slots(const AssignSlots& step, const Memory& memory, std::uint32_t epoch) {
  const View ids = memory.view(step.ids, epoch), row_of = memory.view(step.row_of, epoch),
             slot_of = memory.view(step.slot_of, epoch), counts = memory.view(step.counts, epoch),
             dropped = memory.view(step.dropped, epoch);
  const std::int64_t tokens = memory.rows(step.ids.buffer, step.ids.rank, epoch);
  const std::int64_t experts = counts.rows * counts.cols, capacity = row_of.rows / experts;
  std::vector<std::int64_t> taken(static_cast<std::size_t>(experts), 0);
  std::int32_t full = 0, unknown = 0;
  fill(row_of, -1);
  fill(slot_of, -2);
  for (std::int64_t choice = 0; choice < ids.cols; ++choice)
    for (std::int64_t token = 0; token < tokens; ++token) {
      std::int32_t& slot = at(slot_of, token, choice) = -1;
      const std::int32_t expert = at(ids, token, choice);
      if (expert < 0 || expert >= experts) {
        unknown += expert != -1;
        continue;
      }
      std::int64_t& of_expert = taken[static_cast<std::size_t>(expert)];
      if (of_expert == capacity) {
        ++full;
        continue;
      }
      slot = static_cast<std::int32_t>(expert * capacity + of_expert++);
      at(row_of, slot) = static_cast<std::int32_t>(token);
    }
  for (std::int64_t expert = 0; expert < experts; ++expert)
    at(counts, expert / counts.cols, expert % counts.cols) =
        static_cast<std::int32_t>(taken[static_cast<std::size_t>(expert)]);
  at(dropped, 0, 0) = full;
  at(dropped, 0, 1) = unknown;
}

}  // namespace shingle::host
