#include "workload/routing_patterns.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/file.hpp"
#include "shingle/base/error.hpp"

namespace shingle::routing_patterns_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr RoutingPattern all_patterns[] = {RoutingPattern::random, RoutingPattern::balanced,
                                           RoutingPattern::skewed, RoutingPattern::all_to_one,
                                           RoutingPattern::empty_rank};

std::vector<std::int64_t> received(const Routing& routing) {
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < routing.world(); ++rank) rows.push_back(routing.received(rank));
  return rows;
}

TEST(RoutingPatterns, NamesBothWays) {
  for (const RoutingPattern pattern : all_patterns) EXPECT_EQ(parse_routing_pattern(name(pattern)), pattern);
  EXPECT_THAT([] { parse_routing_pattern("fair"); }, ThrowsMessage<InvalidArgument>(HasSubstr("all-to-one")));
}

TEST(RoutingPatterns, EqualSeedsGiveEqualRoutings) {
  const std::vector<std::int64_t> rows{100, 0, 37, 1, 200};
  for (const RoutingPattern pattern : all_patterns) {
    const Routing routing = make_routing(pattern, 5, rows, 7);
    EXPECT_EQ(routing, make_routing(pattern, 5, rows, 7)) << name(pattern);
    for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(routing.rows(rank), rows[static_cast<std::size_t>(rank)]);
  }
  EXPECT_FALSE(make_routing(RoutingPattern::random, 5, rows, 7) ==
               make_routing(RoutingPattern::random, 5, rows, 8));
}

// The seed must mean the same on every machine, so one routing is written down.
TEST(RoutingPatterns, IsTheSameEverywhere) {
  const Routing routing = make_routing(RoutingPattern::random, 4, {6, 2, 0, 0}, 1);
  EXPECT_THAT(routing.table()[0], ::testing::ElementsAre(1, 3, 3, 2, 1, 3));
  EXPECT_THAT(routing.table()[1], ::testing::ElementsAre(1, 2));
}

TEST(RoutingPatterns, BalancedDiffersByOneAtMost) {
  for (const std::int64_t rows : {0, 1, 7, 64, 101}) {
    const Routing routing = make_routing(RoutingPattern::balanced, 7, std::vector<std::int64_t>(7, rows), 3);
    for (int source = 0; source < 7; ++source)
      for (int dest = 0; dest < 7; ++dest) {
        EXPECT_GE(routing.count(source, dest), rows / 7);
        EXPECT_LE(routing.count(source, dest), rows / 7 + 1);
      }
    EXPECT_THAT(received(routing), ::testing::Each(rows));  // what is left over is spread, too
  }
}

TEST(RoutingPatterns, BalancedIsNotPeriodic) {
  const Routing routing = make_routing(RoutingPattern::balanced, 4, {64, 64, 64, 64}, 3);
  const auto& dest = routing.table()[0];
  EXPECT_NE(std::vector(dest.begin(), dest.begin() + 32), std::vector(dest.begin() + 32, dest.end()));
}

TEST(RoutingPatterns, SkewFollowsZipf) {
  auto rows = received(make_routing(RoutingPattern::skewed, 4, {50'000, 50'000, 50'000, 50'000}, 11));
  std::sort(rows.rbegin(), rows.rend());
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(static_cast<double>(rows[static_cast<std::size_t>(i)]), 200'000 / (i + 1.0) / (25.0 / 12),
                2000)
        << i;
}

TEST(RoutingPatterns, SinglesOutARankThatTheSeedPicks) {
  std::set<int> hot, empty;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    const auto to_one = received(make_routing(RoutingPattern::all_to_one, 3, {10, 20, 0}, seed));
    EXPECT_EQ(std::count(to_one.begin(), to_one.end(), 30), 1);
    hot.insert(static_cast<int>(std::find(to_one.begin(), to_one.end(), 30) - to_one.begin()));
    const auto but_one = received(make_routing(RoutingPattern::empty_rank, 3, {1000, 1000, 0}, seed));
    EXPECT_EQ(std::count(but_one.begin(), but_one.end(), 0), 1);
    empty.insert(static_cast<int>(std::find(but_one.begin(), but_one.end(), 0) - but_one.begin()));
  }
  EXPECT_EQ(hot.size(), 3u);
  EXPECT_EQ(empty.size(), 3u);
}

TEST(RoutingPatterns, RefusesWhatHasNoMeaning) {
  const auto make = [](RoutingPattern pattern, int world, const std::vector<std::int64_t>& rows) {
    make_routing(pattern, world, rows, 0);
  };
  EXPECT_THROW(make(RoutingPattern::random, 0, {}), InvalidArgument);
  EXPECT_THROW(make(RoutingPattern::random, 65, std::vector<std::int64_t>(65, 1)), InvalidArgument);
  EXPECT_THROW(make(RoutingPattern::random, 2, {1}), InvalidArgument);
  EXPECT_THROW(make(RoutingPattern::random, 2, {1, -1}), InvalidArgument);
  EXPECT_THROW(make(RoutingPattern::random, 2, {INT64_MAX, INT64_MAX}), InvalidArgument);
  EXPECT_THROW(make(RoutingPattern::random, 2, {std::int64_t{1} << 27, 1}), InvalidArgument);
  EXPECT_THROW(make(RoutingPattern::empty_rank, 1, {4}), InvalidArgument);
  EXPECT_EQ(make_routing(RoutingPattern::random, 1, {4}, 0).received(0), 4);
}

TEST(RoutingFromJson, ReadsTheTable) {
  const Routing routing = routing_from_json(R"({"dest": [[1, 0, 1], [], [2]]})");
  EXPECT_EQ(routing, Routing({{1, 0, 1}, {}, {2}}));
  const std::string path = ::testing::TempDir() + "/shingle_routing_" + std::to_string(::getpid()) + ".json";
  write_file_atomically(path, R"({"dest": [[0]]})");
  EXPECT_EQ(read_routing_file(path).table(), (std::vector<std::vector<std::int32_t>>{{0}}));
  write_file_atomically(path, R"({"dest": [[1]]})");
  EXPECT_THAT([&] { read_routing_file(path); },
              ThrowsMessage<InvalidArgument>(HasSubstr(path + ": dest[0][0] = 1")));
  ::unlink(path.c_str());
  EXPECT_THROW(read_routing_file(path), IoError);
}

TEST(RoutingFromJson, IsStrict) {
  std::string wide = "{\"dest\": [[]";
  for (int i = 0; i < 64; ++i) wide += ",[]";
  wide += "]}";
  for (const std::string& text :
       {std::string(""), std::string("["), std::string("[]"), std::string("{}"),
        std::string(R"({"dest": null})"), std::string(R"({"dest": []})"),
        std::string(R"({"dest": [[0], 1]})"), std::string(R"({"dest": [[0.0]]})"),
        std::string(R"({"dest": [["0"]]})"), std::string(R"({"dest": [[-1]]})"),
        std::string(R"({"dest": [[1]]})"), std::string(R"({"dest": [[4294967296]]})"),
        std::string(R"({"dest": [[0]], "more": 1})"), wide, std::string(100'000, '[')})
    EXPECT_THROW(routing_from_json(text), InvalidArgument) << text.substr(0, 60);
}

TEST(TopkRouting, TokensGoToDifferentExperts) {
  const Experts experts{12, 3};
  const std::vector<std::int64_t> tokens{40, 0, 25};
  for (const RoutingPattern pattern : all_patterns) {
    const Routing routing = make_topk_routing(pattern, 3, tokens, experts, 7);
    EXPECT_EQ(routing, make_topk_routing(pattern, 3, tokens, experts, 7)) << name(pattern);
    std::vector<int> rows(12);
    for (int rank = 0; rank < 3; ++rank) {
      const std::int64_t count = tokens[static_cast<std::size_t>(rank)];
      ASSERT_EQ(routing.rows(rank), 3 * count);
      for (std::int64_t token = 0; token < count; ++token) {
        std::set<int> chosen;
        for (std::int64_t choice = 0; choice < 3; ++choice) {
          chosen.insert(routing.dest(rank, choice * count + token));
          ++rows[static_cast<std::size_t>(routing.dest(rank, choice * count + token))];
        }
        EXPECT_EQ(chosen.size(), 3u) << name(pattern);
      }
    }
    const auto [least, most] = std::ranges::minmax(rows);
    if (pattern == RoutingPattern::balanced) {
      EXPECT_LE(most - least, 1);
    } else if (pattern == RoutingPattern::all_to_one) {
      EXPECT_EQ(most, 65);
    } else if (pattern == RoutingPattern::empty_rank) {
      EXPECT_EQ(least, 0);
    }
  }
  EXPECT_THROW(make_topk_routing(RoutingPattern::empty_rank, 2, {1, 1}, {4, 4}, 0), InvalidArgument);
  EXPECT_THROW(make_topk_routing(RoutingPattern::random, 2, {1, 1}, {3, 1}, 0), InvalidArgument);
  EXPECT_THROW(make_topk_routing(RoutingPattern::random, 2, {1, 1}, {4, 5}, 0), InvalidArgument);
}

}  // namespace
}  // namespace shingle::routing_patterns_test
