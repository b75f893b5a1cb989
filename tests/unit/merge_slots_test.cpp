// The slots of all ranks, merged on the host.
#include "host/compute/merge_slots.hpp"

#include <gtest/gtest.h>

#include "support/random_problem.hpp"

namespace shingle::merge_slots_test {
namespace {

using test::Dice;
using Numbers = std::vector<std::int32_t>;

/// What AssignSlots steps have made of random choices, and what a merge must make of it.
struct Merge {
  int world, experts, capacity, tokens, choices;
  Numbers counts, slot_of;                               // inputs
  Numbers live, merged_of, token_of, row_of, slot_at{};  // outputs

  /// `favourite` >= 0: all tokens choose this expert only.
  Merge(Dice& dice, int favourite)
      : world(static_cast<int>(dice.size(1, 5))),
        experts(static_cast<int>(dice.size(1, 6))),
        capacity(static_cast<int>(dice.size(1, 7))),
        tokens(static_cast<int>(dice.size(1, 9))),
        choices(static_cast<int>(dice.size(1, 3))) {
    const auto all = static_cast<std::size_t>(experts * world * capacity);
    counts.assign(static_cast<std::size_t>(world * experts), 0);
    live.assign(static_cast<std::size_t>(experts), 0);
    token_of.assign(all, -1), row_of = slot_at = token_of;
    for (int source = 0; source < world; ++source) {
      const int existing = static_cast<int>(dice.size(0, static_cast<std::size_t>(tokens)));
      for (int i = 0; i < tokens * choices; ++i) {
        const int expert = favourite >= 0 ? favourite % experts : static_cast<int>(dice.size(0, experts)) - 1;
        std::int32_t slot = i / choices >= existing ? -2 : -1;
        if (slot == -1 && expert >= 0) {
          std::int32_t& count = counts[static_cast<std::size_t>(source * experts + expert)];
          if (count < capacity) slot = expert * capacity + count++;
        }
        slot_of.push_back(slot);
      }
    }
    // The definition: an expert's rows with a token, in the order of sources, follow each other.
    merged_of = slot_of;
    for (int expert = 0; expert < experts; ++expert)
      for (int source = 0; source < world; ++source)
        for (int i = 0; i < counts[static_cast<std::size_t>(source * experts + expert)]; ++i) {
          const int slot = expert * world * capacity + live[static_cast<std::size_t>(expert)]++;
          const int row = (expert * world + source) * capacity + i;
          row_of[static_cast<std::size_t>(slot)] = row;
          slot_at[static_cast<std::size_t>(row)] = slot;
          for (int at = source * tokens * choices; at < (source + 1) * tokens * choices; ++at)
            if (slot_of[static_cast<std::size_t>(at)] == expert * capacity + i) {
              merged_of[static_cast<std::size_t>(at)] = slot;
              token_of[static_cast<std::size_t>(slot)] = at / choices;
            }
        }
  }
};

/// The step's matrices: buffer i is `held[i]`.
struct Memory {
  std::vector<Numbers> held;
  std::vector<std::pair<int, int>> shapes;

  Slice add(Numbers numbers, int rows, int cols) {
    held.push_back(std::move(numbers));
    shapes.emplace_back(rows, cols);
    return {static_cast<std::int32_t>(held.size()) - 1, 0, 0, rows, 0, cols};
  }
  host::View view(const Slice& slice) {
    const auto at = static_cast<std::size_t>(slice.buffer);
    return {reinterpret_cast<std::byte*>(held[at].data()), shapes[at].first, shapes[at].second,
            shapes[at].second, DType::i32};
  }
};

TEST(MergeSlots, LetRowsOfAllRanksFollowEachOther) {
  Dice dice(1);
  for (int i = 0; i < 300; ++i) {
    const Merge wanted(dice, i % 4 == 0 ? i : -1);
    const int all = wanted.experts * wanted.world * wanted.capacity, tokens = wanted.world * wanted.tokens;
    const auto poison = [](const Numbers& like) { return Numbers(like.size(), 77); };
    Memory memory;
    MergeSlots step{wanted.capacity, memory.add(wanted.counts, wanted.world, wanted.experts),
                    memory.add(wanted.slot_of, tokens, wanted.choices),
                    memory.add(poison(wanted.live), 1, wanted.experts)};
    const bool every = i % 3 != 0;
    step.merged_of = memory.add(poison(wanted.merged_of), tokens, wanted.choices);
    if (every) {
      step.token_of = memory.add(poison(wanted.token_of), all, 1);
      step.row_of = memory.add(poison(wanted.row_of), all, 1);
      step.slot_at = memory.add(poison(wanted.slot_at), all, 1);
    }
    host::merge_slots(step, [&](const Slice& slice) { return memory.view(slice); });
    ASSERT_EQ(memory.held[2], wanted.live) << i;
    ASSERT_EQ(memory.held[3], wanted.merged_of) << i;
    if (!every) continue;
    ASSERT_EQ(memory.held[4], wanted.token_of) << i;
    ASSERT_EQ(memory.held[5], wanted.row_of) << i;
    ASSERT_EQ(memory.held[6], wanted.slot_at) << i;
  }
}

}  // namespace
}  // namespace shingle::merge_slots_test
