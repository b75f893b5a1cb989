// Clocks that share nodes beside clocks that share nothing.
#include "verify/order/clock.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/random_problem.hpp"

namespace shingle::clock_test {
namespace {

struct Plain {
  std::vector<std::uint32_t> lines;
  std::set<std::int32_t> runs;
};

void expect_same(const Clock& clock, const Plain& plain, std::int32_t segments) {
  for (std::size_t line = 0; line < plain.lines.size(); ++line)
    ASSERT_EQ(clock.line(static_cast<std::int32_t>(line)), plain.lines[line]) << line;
  for (std::int32_t segment = 0; segment < segments; ++segment)
    ASSERT_EQ(clock.has(segment), plain.runs.contains(segment)) << segment;
}

TEST(Clock, IsAVectorOfItsOwn) {
  test::Dice dice(1);
  for (int round = 0; round < 20; ++round) {
    const auto lines = static_cast<std::int32_t>(dice.size(1, 600));
    const auto segments = static_cast<std::int32_t>(dice.size(1, 20000));
    Budget budget;
    const auto nodes = std::make_shared<ClockNodes>(lines, segments, budget);
    std::vector<Clock> clocks(6, Clock(nodes));
    std::vector<Plain> plain(6, Plain{std::vector<std::uint32_t>(static_cast<std::size_t>(lines)), {}});
    for (int i = 0; i < 400; ++i) {
      const auto to = static_cast<std::size_t>(dice.size(0, 5)),
                 from = static_cast<std::size_t>(dice.size(0, 5));
      const auto line = static_cast<std::int32_t>(dice.size(0, lines - 1));
      const auto segment = static_cast<std::int32_t>(dice.size(0, segments - 1));
      const auto number = static_cast<std::uint32_t>(dice.size(0, 1000));
      switch (dice.size(0, 3)) {
        case 0:
          // As the verifier does, only upwards.
          plain[to].lines[static_cast<std::size_t>(line)] += number;
          clocks[to].set_line(line, plain[to].lines[static_cast<std::size_t>(line)]);
          break;
        case 1:
          clocks[to].add(segment);
          plain[to].runs.insert(segment);
          break;
        case 2:
          clocks[to] = clocks[from];
          plain[to] = plain[from];
          break;
        default:
          clocks[to].join(clocks[from]);
          std::ranges::transform(plain[to].lines, plain[from].lines, plain[to].lines.begin(),
                                 [](auto a, auto b) { return std::max(a, b); });
          plain[to].runs.insert(plain[from].runs.begin(), plain[from].runs.end());
      }
    }
    for (std::size_t i = 0; i < clocks.size(); ++i) expect_same(clocks[i], plain[i], segments);
  }
}

TEST(Clock, CostsWhatDiffers) {
  Budget budget;
  const auto nodes = std::make_shared<ClockNodes>(1 << 16, 1 << 20, budget);
  Clock all(nodes);
  for (std::int32_t line = 0; line < 1 << 16; ++line) all.set_line(line, 1);
  const std::int64_t bytes = budget.kept_bytes();
  std::vector<Clock> copies;
  for (std::int32_t i = 0; i < 1000; ++i) {  // each would be 256 KiB by itself
    copies.push_back(all);
    copies.back().set_line(i, 2);
  }
  EXPECT_LT(budget.kept_bytes() - bytes, 1 << 20);
  const std::int64_t spent = budget.spent();
  for (std::size_t i = 1; i < copies.size(); ++i) copies[0].join(copies[i]);
  EXPECT_LT(budget.spent() - spent, 1000 * 1000) << "a join walks over the nodes that differ";
  EXPECT_EQ(copies[0].line(999), 2u);
  EXPECT_EQ(copies[1].line(999), 1u);
}

TEST(Clock, IsRefusedWhereItIsTooLarge) {
  Budget budget;
  const auto nodes = std::make_shared<ClockNodes>(1 << 16, 1, budget);
  std::vector<Clock> clocks;
  const auto fill = [&] {
    for (int i = 0;; ++i) {
      Clock& clock = clocks.emplace_back(nodes);
      for (std::int32_t line = 0; line < 1 << 16; line += 16) clock.set_line(line, 1);
    }
  };
  try {
    fill();
  } catch (const TooLarge& refused) {
    EXPECT_EQ(refused.text,
              "too large to prove: the proof takes more than 320.0 MiB of memory, mostly for vector clocks");
  }
  EXPECT_GT(clocks.size(), 100u);
}

}  // namespace
}  // namespace shingle::clock_test
