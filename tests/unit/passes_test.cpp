// Passes as kernels carry them out: what of them waits, and for what.
#include "plan/steps.hpp"

#include <gtest/gtest.h>

#include "lower/event_edges.hpp"
#include "lower/launch_rules.hpp"
#include "support/expect_proof.hpp"

namespace shingle::passes_test {
namespace {

using namespace test;

/// Three rows of tiles in clusters of two: positions 6 and 7 are phantoms, and so is all of the last group.
TileGrid with_phantoms() {
  const TileGrid grid = make_grid(12, 8, 4, 4, {Raster::along_m, 1, 2, 1, 0});
  EXPECT_EQ(grid.positions(), 8);
  EXPECT_EQ(grid.tiles(), 6);
  return grid;
}

/// Groups of which the middle one, or the last, holds nothing.
Elementwise gated(const TileGrid& grid) {
  Elementwise pass;
  pass.grid = grid;
  TileGate gate;
  gate.counter = 0;
  std::int64_t begin = 0;
  for (std::int64_t p = 0; p < grid.positions(); ++p) {  // a group for each run of tiles, or of phantoms
    const bool phantom = grid.phantom(grid.tile(p));
    if (p + 1 < grid.positions() && grid.phantom(grid.tile(p + 1)) == phantom) continue;
    gate.ends.push_back(p + 1);
    gate.targets.push_back(phantom ? 7 : static_cast<std::uint32_t>(p + 1 - begin));
    begin = p + 1;
  }
  pass.gates.push_back(gate);
  return pass;
}

TEST(Passes, AGroupOfPhantomsIsNotAwaited) {
  const TileGrid grid = with_phantoms();
  const Elementwise pass = gated(grid);
  std::int64_t tiles = 0;
  for (const GroupOfItems& items : awaited_groups(pass)) {
    EXPECT_EQ(pass.gates[0].targets[static_cast<std::size_t>(items.group)], items.last - items.first);
    tiles += grid.tiles_before(items.last) - grid.tiles_before(items.first);
  }
  EXPECT_EQ(tiles, grid.tiles());
  EXPECT_LT(awaited_groups(pass).size(), pass.gates[0].ends.size());
}

TEST(Passes, OnlyTheGroupsOfItsItemsAreAwaited) {
  Elementwise pass;
  pass.grid = make_grid(12, 4, 4, 4);
  pass.gates.push_back({0, {1, 2, 3}, {1, 1, 1}, {}});
  pass.first = 1, pass.count = 1;
  const auto groups = awaited_groups(pass);
  ASSERT_EQ(groups.size(), 1);
  EXPECT_EQ(groups[0].group, 1);
  EXPECT_EQ(groups[0].first, 1);
  EXPECT_EQ(groups[0].last, 2);
}

/// A target of phantoms alone is never looked at: the plan is proven, and its counts are handed over.
TEST(Passes, ACountThatOnlyPhantomsNameMayNeverCome) {
  Problem p = small(Op::gemm, 1);
  p.m = 12;
  Hand hand(p);
  const auto product = hand.buffer("product", 12, 8), moved = hand.counter("moved", 8);
  const auto wire = hand.lane("wire", LaneKind::compute);
  Elementwise pass = gated(with_phantoms());
  pass.gates[0].counter = moved;
  pass.from = {Hand::in(hand.all(product, 0))};
  pass.to = Hand::in(hand.all(hand.out, 0));
  pass.resources = {1, 1};
  hand.step(0, 0, hand.gemm(0, hand.all(product, 0)));
  const auto groups = awaited_groups(pass);
  for (const GroupOfItems& items : groups)
    hand.notify(0, 0, moved, 0, static_cast<std::int32_t>(items.group),
                pass.gates[0].targets[static_cast<std::size_t>(items.group)]);
  hand.step(0, wire, pass);
  expect_proven(hand);
  EXPECT_EQ(EventEdges(hand.plan).size(0), static_cast<int>(groups.size()));
}

/// The same where the phantoms name a count of others with a target of their own.
TEST(Passes, APhantomsTargetKeepsNoCountFromBeingHandedOver) {
  Problem p = small(Op::gemm, 1);
  p.m = 12;
  Hand hand(p);
  const auto product = hand.buffer("product", 12, 8), moved = hand.counter("moved");
  const auto wire = hand.lane("wire", LaneKind::compute);
  Elementwise pass = gated(with_phantoms());
  pass.gates[0].counter = moved;
  for (std::uint32_t& target : pass.gates[0].targets) target = target == 7 ? 7 : 1;
  pass.gates[0].entries.assign(pass.gates[0].ends.size(), 0);
  pass.from = {Hand::in(hand.all(product, 0))};
  pass.to = Hand::in(hand.all(hand.out, 0));
  pass.resources = {1, 1};
  hand.step(0, 0, hand.gemm(0, hand.all(product, 0))).notify(0, 0, moved, 0).step(0, wire, pass);
  expect_proven(hand);
  EXPECT_EQ(EventEdges(hand.plan).of(CounterRef{moved, 0, 0}), 0);
}

}  // namespace
}  // namespace shingle::passes_test
