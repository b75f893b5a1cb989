// Counts of a routing beside its table.
#include "shingle/plan/routing.hpp"

#include <gtest/gtest.h>

#include "shingle/base/error.hpp"
#include "support/random_problem.hpp"

namespace shingle::routing_test {
namespace {

TEST(Routing, CountsAreThoseOfTheTable) {
  test::Dice dice(1);
  for (int i = 0; i < 200; ++i) {
    const int world = static_cast<int>(dice.size(1, 9));
    const auto routing = test::random_routing(dice, world, i < 190 ? 25 : 400);
    ASSERT_EQ(routing->world(), world);
    std::int64_t before = 0;
    std::vector<std::int64_t> received(static_cast<std::size_t>(world));
    for (int source = 0; source < world; ++source) {
      EXPECT_EQ(routing->global_base(source), before);
      std::vector<std::int64_t> counts(static_cast<std::size_t>(world));
      for (int dest = 0; dest < world; ++dest)
        EXPECT_EQ(routing->receive_base(dest, source), received[static_cast<std::size_t>(dest)]);
      for (std::int64_t row = 0; row <= routing->rows(source); ++row) {
        for (int dest = 0; dest < world; ++dest)
          ASSERT_EQ(routing->count_before(source, dest, row), counts[static_cast<std::size_t>(dest)]);
        if (row == routing->rows(source)) break;
        const auto dest = static_cast<std::size_t>(routing->dest(source, row));
        ++counts[dest];
        ++received[dest];
      }
      for (int dest = 0; dest < world; ++dest)
        EXPECT_EQ(routing->count(source, dest), counts[static_cast<std::size_t>(dest)]);
      before += routing->rows(source);
    }
    EXPECT_EQ(routing->global_base(world), before);
    for (int dest = 0; dest < world; ++dest)
      EXPECT_EQ(routing->received(dest), received[static_cast<std::size_t>(dest)]);
  }
}

TEST(Routing, ExpertsOrderTheRowsOfTheirRank) {
  test::Dice dice(2);
  for (int i = 0; i < 100; ++i) {
    const int world = static_cast<int>(dice.size(1, 6));
    const int per_rank = static_cast<int>(dice.size(1, 5));
    const auto routing = test::random_routing(dice, world, 40, world * per_rank);
    EXPECT_EQ(routing->experts_per_rank(), per_rank);
    for (int rank = 0; rank < world; ++rank) {
      // By expert, then by source, then by row.
      std::vector<std::pair<int, std::int64_t>> wanted;
      for (int expert = rank * per_rank; expert < (rank + 1) * per_rank; ++expert) {
        EXPECT_EQ(routing->rank_of(expert), rank);
        for (int source = 0; source < world; ++source) {
          EXPECT_EQ(routing->receive_base(expert, source), std::ssize(wanted));
          for (std::int64_t row = 0; row < routing->rows(source); ++row)
            if (routing->dest(source, row) == expert) wanted.emplace_back(source, row);
        }
      }
      ASSERT_EQ(routing->received(rank), std::ssize(wanted));
      const auto rows = routing->received_rows(rank);
      ASSERT_EQ(rows.size(), wanted.size());
      for (std::size_t index = 0; index < rows.size(); ++index) {
        EXPECT_EQ(std::pair(int{rows[index].source}, rows[index].row), wanted[index]);
        const auto one = routing->received_row(rank, static_cast<std::int64_t>(index));
        EXPECT_EQ(std::pair(int{one.source}, one.row), wanted[index]);
      }
    }
    for (int source = 0; source < world; ++source) {
      std::int64_t rows = 0;
      for (int rank = 0; rank < world; ++rank) rows += routing->count_to_rank(source, rank);
      EXPECT_EQ(rows, routing->rows(source));
    }
  }
}

TEST(Routing, SlicedExpertsAreOnEveryRank) {
  test::Dice dice(3);
  for (int i = 0; i < 100; ++i) {
    const int world = static_cast<int>(dice.size(1, 6)), experts = static_cast<int>(dice.size(1, 9));
    const auto routing = test::random_routing(dice, world, 40, experts, 1, ExpertSplit::by_slice);
    std::vector<Routing::Row> wanted;
    for (int expert = 0; expert < experts; ++expert)
      for (int source = 0; source < world; ++source) {
        EXPECT_EQ(routing->receive_base(expert, source), std::ssize(wanted));
        for (std::int64_t row = 0; row < routing->rows(source); ++row)
          if (routing->dest(source, row) == expert) wanted.push_back({source, row});
      }
    for (int rank = 0; rank < world; ++rank) {
      EXPECT_EQ(routing->experts_per_rank(), experts);
      EXPECT_EQ(routing->first_expert(rank), 0);
      ASSERT_EQ(routing->received(rank), std::ssize(wanted));
      const auto rows = routing->received_rows(rank);
      for (std::size_t index = 0; index < rows.size(); ++index) {
        EXPECT_EQ(std::pair(rows[index].source, rows[index].row),
                  std::pair(wanted[index].source, wanted[index].row));
        const auto one = routing->received_row(rank, static_cast<std::int64_t>(index));
        EXPECT_EQ(std::pair(one.source, one.row), std::pair(wanted[index].source, wanted[index].row));
      }
      for (int source = 0; source < world; ++source)
        EXPECT_EQ(routing->count_to_rank(source, rank), routing->rows(source));
      for (int expert = 0; expert < experts; ++expert) {
        EXPECT_TRUE(routing->receives(rank, expert));
        EXPECT_EQ(routing->weight_of(expert), expert);
      }
    }
    EXPECT_EQ(*routing, Routing::to_experts(routing->table(), experts, ExpertSplit::by_slice));
    if (experts % world == 0) {
      EXPECT_FALSE(*routing == Routing::to_experts(routing->table(), experts));
    }
  }
}

TEST(Routing, SlotsAreThoseOfTheirTable) {
  for (const auto& [world, experts, capacity] :
       {std::tuple(1, 1, 1), {1, 3, 5}, {2, 2, 17}, {3, 6, 2}, {4, 12, 1}}) {
    const auto slots = Routing::slots(world, experts, capacity);
    std::vector<std::int32_t> dest;
    for (std::int64_t row = 0; row < experts * capacity; ++row)
      dest.push_back(static_cast<std::int32_t>(row / capacity));
    const auto table = Routing::to_experts(std::vector(static_cast<std::size_t>(world), dest), experts);
    EXPECT_EQ(slots.capacity(), capacity);
    EXPECT_EQ(table.capacity(), 0);
    EXPECT_TRUE(slots.table().empty());
    EXPECT_FALSE(slots == table);
    EXPECT_EQ(slots, Routing::slots(world, experts, capacity));
    ASSERT_EQ(slots.world(), world);
    ASSERT_EQ(slots.experts(), experts);
    for (int source = 0; source < world; ++source) {
      ASSERT_EQ(slots.rows(source), table.rows(source));
      EXPECT_EQ(slots.global_base(source), table.global_base(source));
      for (int expert = 0; expert < experts; ++expert) {
        EXPECT_EQ(slots.receive_base(expert, source), table.receive_base(expert, source));
        for (std::int64_t row = 0; row <= slots.rows(source); ++row)
          ASSERT_EQ(slots.count_before(source, expert, row), table.count_before(source, expert, row));
      }
      for (std::int64_t row = 0; row < slots.rows(source); ++row)
        ASSERT_EQ(slots.dest(source, row), table.dest(source, row));
      for (int rank = 0; rank < world; ++rank)
        EXPECT_EQ(slots.count_to_rank(source, rank), table.count_to_rank(source, rank));
    }
    for (int rank = 0; rank < world; ++rank) {
      ASSERT_EQ(slots.received(rank), table.received(rank));
      const auto all = slots.received_rows(rank), wanted = table.received_rows(rank);
      for (std::int64_t index = 0; index < slots.received(rank); ++index) {
        const auto at = static_cast<std::size_t>(index);
        const auto one = slots.received_row(rank, index);
        ASSERT_EQ(std::pair(one.source, one.row), std::pair(wanted[at].source, wanted[at].row));
        ASSERT_EQ(std::pair(all[at].source, all[at].row), std::pair(wanted[at].source, wanted[at].row));
      }
    }
  }
}

TEST(Routing, SlotsHaveRowsAndRanks) {
  EXPECT_THROW(Routing::slots(2, 3, 1), InvalidArgument);
  EXPECT_THROW(Routing::slots(2, 2, 0), InvalidArgument);
  EXPECT_THROW(Routing::slots(2, 2, std::int64_t{1} << 62), InvalidArgument);
}

TEST(Routing, ExpertsDivideAmongRanks) {
  EXPECT_THROW(Routing::to_experts({{0}, {1}}, 3), InvalidArgument);
  EXPECT_THROW(Routing::to_experts({{4}, {}}, 4), InvalidArgument);
  EXPECT_THROW(Routing::to_experts({}, 4), InvalidArgument);
  EXPECT_FALSE(Routing::to_experts({{0, 1}, {}}, 4) == Routing({{0, 1}, {}}));
}

TEST(Routing, RanksWithoutRows) {
  const Routing nobody({{}, {}, {}});
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(nobody.rows(rank), 0);
    EXPECT_EQ(nobody.received(rank), 0);
    EXPECT_EQ(nobody.count(0, rank), 0);
  }
  EXPECT_EQ(nobody.global_base(3), 0);
  EXPECT_EQ(Routing({}).world(), 0);
}

TEST(Routing, DestinationsAreRanks) {
  EXPECT_THROW(Routing({{0, 2}, {}}), InvalidArgument);
  EXPECT_THROW(Routing({{-1}, {}}), InvalidArgument);
  try {
    Routing({{}, {0, 1, 7}});
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(e.what(), "routing: row 2 of rank 1 goes to rank 7, but the world has 2 ranks");
  }
}

}  // namespace
}  // namespace shingle::routing_test
