// Plans that communicate through collectives, broken in what their steps read, compute and store. Every
// broken plan has to be rejected with a failure that says where.
#include <gtest/gtest.h>

#include "shingle/plan/rounding.hpp"
#include "support/collective_plans.hpp"
#include "support/mutation.hpp"

namespace shingle::verify_content_mutation_test {
namespace {

using namespace test;

bool duplicate_store(Plan& plan, Dice& dice) {
  const auto at = dice.size(0, 1) ? pick_pass(plan, dice) : pick_gemm(plan, dice);
  if (!at) return false;
  Step copy = step_of(plan, *at);
  if (auto* gemm = std::get_if<Gemm>(&copy)) gemm->notify.clear();
  if (auto* pass = std::get_if<Elementwise>(&copy)) pass->gates.clear();
  plan.ranks[at->rank].lanes.push_back({LaneKind::compute, "again", {std::move(copy)}});
  auto& issue = plan.ranks[at->rank].issue;
  issue.insert(issue.begin(), static_cast<std::int32_t>(plan.ranks[at->rank].lanes.size()) - 1);
  plan.workers += 8;  // it is the store that is wrong, not the lack of workers
  return true;
}

/// Where the reader looks for the tiles is rotated, where the writer put them is not.
bool permute_slots(Plan& plan, Dice& dice) {
  const auto at = pick_step(plan, dice, [](const At&, const Step& step) {
    const auto* pass = std::get_if<Elementwise>(&step);
    return pass && std::holds_alternative<placement::Slots>(pass->from[0].form) && pass->grid.tiles() > 1;
  });
  if (!at) return false;
  TileGrid& grid = step_as<Elementwise>(plan, *at).grid;
  const TileGrid before = grid;
  for (int i = 0; i < grid.loop_count; ++i) {
    grid.loops[i].rotation = (grid.loops[i].rotation + 1) % grid.loops[i].extent;
    for (std::int64_t p = 0; p < grid.positions(); ++p) {  // phantom tiles may turn about each other only
      const Tile tile = before.tile(p);
      if (!before.phantom(tile) && before.rows_before(p) != grid.rows_before(grid.linear(tile))) return true;
    }
    grid = before;
  }
  return false;
}

bool forget_contribution(Plan& plan, Dice& dice) {
  const auto at = pick_gemm(plan, dice);
  if (!at) return false;
  const Gemm gemm = step_as<Gemm>(plan, *at);
  remove_step(plan, *at);
  for (const TileNotify& notify : gemm.notify)
    for (std::size_t g = 0; g < notify.ends.size(); ++g) {
      const CounterRef count{notify.counter, at->rank, static_cast<std::int32_t>(g)};
      const auto tiles = plan.counters[notify.counter].growth[at->rank][g];
      if (tiles > 0) insert_step(plan, *at, Notify{count, tiles});
    }
  return true;
}

bool shift_rows_of_a(Plan& plan, Dice& dice) {
  const auto at = pick_gemm(plan, dice);
  if (at) ++step_as<Gemm>(plan, *at).a_rows.base;
  return at.has_value();
}

/// First rows of pools or of groups of slots; null if the placement has neither.
std::vector<std::int64_t>* bases_of(Placement& at) {
  if (auto* pools = std::get_if<placement::Pools>(&at.form)) return &pools->bases;
  auto* slots = std::get_if<placement::Slots>(&at.form);
  return slots == nullptr ? nullptr : &slots->bases;
}

bool shift_bases(Plan& plan, Dice& dice) {
  const auto at = pick_pass(plan, dice);
  if (!at) return false;
  Elementwise& pass = step_as<Elementwise>(plan, *at);
  auto* bases = bases_of(std::holds_alternative<placement::Pools>(pass.to.form) ? pass.to : pass.from[0]);
  if (bases == nullptr) return false;
  for (std::int64_t& base : *bases) ++base;
  return !bases->empty();
}

bool read_other_buffer(Plan& plan, Dice& dice) {
  const auto at = pick_pass(plan, dice);
  if (!at) return false;
  const Placement& source = step_as<Elementwise>(plan, *at).from[0];
  if (const auto* pools = std::get_if<placement::Pools>(&source.form); pools && pools->source == at->rank)
    return false;  // what it sent to itself
  Slice& from = step_as<Elementwise>(plan, *at).from[0].slice;
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    const Buffer& other = plan.buffers[b];
    if (static_cast<std::int32_t>(b) == from.buffer || other.cols != from.cols ||
        other.rows[at->rank] < from.row + from.rows)
      continue;
    from.buffer = static_cast<std::int32_t>(b);
    return true;
  }
  return false;
}

bool read_neighbour(Plan& plan, Dice& dice) {
  const auto at = pick_pass(plan, dice);
  if (!at || plan.world() == 1) return false;
  Slice& from = step_as<Elementwise>(plan, *at).from[0].slice;
  from.rank = (from.rank + 1) % plan.world();
  return true;
}

bool drop_pass(Plan& plan, Dice& dice) {
  const auto at = pick_pass(plan, dice);
  if (at) remove_step(plan, *at);
  return at.has_value();
}

bool other_epilogue(Plan& plan, Dice& dice) {
  for (const bool gemm : {true, false}) {
    const auto at = gemm ? pick_gemm(plan, dice) : pick_pass(plan, dice);
    if (!at) continue;
    Epilogue& epilogue = gemm ? step_as<Gemm>(plan, *at).epilogue : step_as<Elementwise>(plan, *at).epilogue;
    if (epilogue.activation == Activation::none || epilogue.activation == Activation::swiglu) continue;
    epilogue.activation = epilogue.activation == Activation::relu ? Activation::gelu : Activation::relu;
    return true;
  }
  return false;
}

/// The plan says something else of its numbers. (A sum of two has several names; so has one that f32 does not
/// tell apart.)
bool forge_rounding(Plan& plan, Dice& dice) {
  if (dice.size(0, 4) == 0) {
    plan.rounding += '0';
    return true;
  }
  if (plan.world() < 3 || plan.dtype() == DType::f32) return false;
  const auto all = statements(plan.work);  // the last is true of every plan
  Rounding other = all[static_cast<std::size_t>(dice.size(0, static_cast<std::int64_t>(all.size()) - 2))];
  if (sentence(plan.work, other) == plan.rounding) other.last_pass = !other.last_pass;
  plan.rounding = sentence(plan.work, other);
  return true;
}

const Mutation mutations[] = {{"duplicate a store", duplicate_store},
                              {"permute slots on one side", permute_slots},
                              {"forget a rank's contribution", forget_contribution},
                              {"shift the rows of A", shift_rows_of_a},
                              {"shift the bases", shift_bases},
                              {"read another buffer", read_other_buffer},
                              {"read the neighbour's memory", read_neighbour},
                              {"drop a pass", drop_pass},
                              {"another epilogue", other_epilogue},
                              {"forge the rounding", forge_rounding}};

class ContentMutations : public testing::TestWithParam<Mutation> {};

TEST_P(ContentMutations, AreAllCaught) {
  expect_caught(GetParam(), random_collective_plan, {.wanted = 200, .seed = 20});
}

INSTANTIATE_TEST_SUITE_P(Verify, ContentMutations, testing::ValuesIn(mutations), mutation_name);

}  // namespace
}  // namespace shingle::verify_content_mutation_test
