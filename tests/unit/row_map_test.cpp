// Row maps beside a list of their rows.
#include "shingle/grid/row_map.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "support/random_problem.hpp"

namespace shingle::row_map_test {
namespace {

using test::Dice;

/// Matrix row of every virtual row, by the words of the header: blocks of world × block rows, the j-th
/// `block` of them rank j's.
std::vector<std::int64_t> listed(const RowMap& map) {
  std::vector<std::int64_t> rows;
  const auto shard = [&](int rank) { return map.without >= 0 && rank >= map.without ? rank + 1 : rank; };
  for (std::int64_t done = 0; map.pitch > 0 && done < map.len; done += map.block)  // padded blocks
    for (int rank = 0; rank < map.world; ++rank)
      for (std::int64_t i = 0; i < map.pitch; ++i) {
        const std::int64_t row = shard(rank) * map.stride + map.base + done + i;
        rows.push_back(i < std::min(map.block, map.len - done) && row < map.limit ? row : -1);
      }
  for (std::int64_t done = 0; map.pitch == 0 && done < map.len; done += map.block) {
    const std::int64_t size = std::min(map.block, map.len - done);
    for (int rank = 0; rank < map.world; ++rank)
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int64_t row = shard(rank) * map.stride + map.base + done + i;
        rows.push_back(row < map.limit ? row : -1);
      }
  }
  return rows;
}

void expect_consistent(const RowMap& map, Dice& dice) {
  const std::vector<std::int64_t> rows = listed(map);
  ASSERT_EQ(map.rows(), static_cast<std::int64_t>(rows.size()));
  for (std::int64_t first = 0; first < map.rows(); ++first) {
    const std::int64_t count = dice.size(1, map.rows() - first);
    const RowRun run = map.run_at(first, count);
    ASSERT_EQ(run.virtual_row, first);
    ASSERT_TRUE(run.rows >= 1 && run.rows <= count) << first << " for " << count << ": " << run.rows;
    for (std::int64_t i = 0; i < run.rows; ++i)
      ASSERT_EQ(rows[static_cast<std::size_t>(first + i)], run.matrix_row < 0 ? -1 : run.matrix_row + i)
          << first << " + " << i;
  }
  const std::int64_t first = dice.size(0, map.rows()), count = dice.size(0, map.rows() - first);
  std::int64_t next = first;
  map.for_each_run(first, count, [&](const RowRun& run) {
    ASSERT_EQ(run.virtual_row, next);
    next += run.rows;
  });
  EXPECT_EQ(next, first + count);
}

TEST(RowMap, AnyMapIsItsList) {
  Dice dice(1);
  for (int i = 0; i < 500; ++i) {
    RowMap map;
    map.world = static_cast<std::int32_t>(dice.size(1, 7));
    map.block = dice.size(1, 9);
    map.len = dice.size(0, 30);
    map.stride = dice.size(0, 40);
    map.base = dice.size(0, 5);
    map.limit = dice.size(0, map.world * 45);
    if (dice.size(0, 2) == 0) map.pitch = larger(smaller(map.block, map.len), 1) + dice.size(0, 4);
    if (dice.size(0, 2) == 0) map.without = static_cast<std::int32_t>(dice.size(0, map.world));
    expect_consistent(map, dice);
  }
}

TEST(RowMap, ShardsOfARaggedMatrixAreAllItsRowsOnce) {
  for (const std::int32_t world : {1, 2, 3, 5, 16})
    for (const std::int64_t m : {1, 2, 15, 16, 17, 100})
      for (const std::int64_t block : {1, 3, 50}) {
        const std::int64_t shard = ceil_div(m, world);
        const RowMap map{world, std::min(block, shard), shard, shard, 0, m};
        std::multiset<std::int64_t> rows;
        map.for_each_run(0, map.rows(), [&](const RowRun& run) {
          for (std::int64_t i = 0; i < run.rows && run.matrix_row >= 0; ++i) rows.insert(run.matrix_row + i);
        });
        EXPECT_EQ(rows.size(), static_cast<std::size_t>(m));
        EXPECT_EQ(std::set<std::int64_t>(rows.begin(), rows.end()).size(), static_cast<std::size_t>(m));
      }
}

TEST(RowMap, IdentityIsOneRun) {
  const RowMap map = RowMap::identity(10, 4);
  const RowRun run = map.run_at(3, 100);
  EXPECT_EQ(run.matrix_row, 7);
  EXPECT_EQ(run.rows, 7);
  EXPECT_EQ(RowMap::identity(0).rows(), 0);
  RowMap::identity(0).for_each_run(0, 0, [](const RowRun&) { FAIL() << "a run of no rows"; });
}

constexpr RowMap two_shards{2, 2, 4, 4, 0, 7};
static_assert(two_shards.rows() == 8);
static_assert(two_shards.run_at(2, 8).matrix_row == 4 && two_shards.run_at(2, 8).rows == 2);
static_assert(two_shards.run_at(7, 1).matrix_row == -1);  // row 7 of 7
constexpr RowMap padded{2, 3, 3, 3, 0, 5, 4};
static_assert(padded.rows() == 8 && padded.run_at(3, 8).matrix_row == -1 && padded.run_at(3, 8).rows == 1);
static_assert(padded.run_at(4, 8).matrix_row == 3 && padded.run_at(4, 8).rows == 2);
static_assert(two_shards == two_shards && !(two_shards == RowMap::identity(8)));

}  // namespace
}  // namespace shingle::row_map_test
