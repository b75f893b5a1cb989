// Plans that communicate through collectives, broken in their collectives and messages. Every broken plan
// has to be rejected with a failure that says where. What a mutator must not touch, because the plan stays
// right, is argued where it is skipped; `Harmless` shows that such plans indeed still pass.
#include <gtest/gtest.h>
#include <algorithm>
#include <functional>

#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"
#include "support/collective_plans.hpp"
#include "support/mutation.hpp"

namespace shingle::verify_collective_mutation_test {
namespace {

using namespace test;

bool shift_collective(Plan& plan, Dice& dice) {
  // Where shards are padded to equal parts, a slice may hold nothing but padding, which may lie anywhere.
  if (plan.problem().op != Op::gemm_alltoall && plan.problem().m % plan.world() != 0) return false;
  const auto at = pick_collective(plan, dice);
  if (!at) return false;
  Collective& c = step_as<Collective>(plan, *at);
  Slice& slice = dice.size(0, 1) ? c.send : c.recv;
  const std::int64_t rows = plan.buffers[slice.buffer].rows[at->rank];
  if (slice.row + slice.rows < rows)
    ++slice.row;
  else if (slice.row > 0)
    --slice.row;
  else
    return false;
  return true;
}

bool swap_collectives(Plan& plan, Dice& dice) {
  const auto at = pick_collective(plan, dice);
  if (!at) return false;
  auto& lane = lane_of(plan, *at).steps;
  for (std::size_t s = at->step + 1; s < lane.size(); ++s) {
    auto* other = std::get_if<Collective>(&lane[s]);
    if (!other || !moves(*other)) continue;
    std::swap(lane[at->step], lane[s]);
    return true;
  }
  return false;
}

/// True if a collective sums where it reads: once more would add the sums.
bool sums_in_place(const Collective& collective) {
  const bool sums =
      collective.kind == CollectiveKind::allreduce || collective.kind == CollectiveKind::reducescatter;
  return sums && collective.send.buffer == collective.recv.buffer;
}

/// A sum in place once more on every rank. (Once more of any other collective changes nothing: see Harmless.)
bool duplicate_contribution(Plan& plan, Dice& dice) {
  const auto at = pick_collective(plan, dice);
  if (!at || plan.world() == 1) return false;
  if (!sums_in_place(step_as<Collective>(plan, *at))) return false;
  for (int r = 0; r < plan.world(); ++r) {
    const At there{r, at->lane, at->step};
    insert_step(plan, there, step_of(plan, there));
  }
  return true;
}

bool second_lane(Plan& plan, Dice& dice) {
  const auto at = pick_kind<Collective>(plan, dice);
  if (!at) return false;
  std::size_t calls = 0;
  for (const Step& step : lane_of(plan, *at).steps) calls += std::holds_alternative<Collective>(step);
  if (calls < 2) return false;
  auto& rank = plan.ranks[at->rank];
  rank.issue[static_cast<std::size_t>(issue_position(plan, *at))] =
      static_cast<std::int32_t>(rank.lanes.size());
  Step moved = step_of(plan, *at);
  lane_of(plan, *at).steps.erase(lane_of(plan, *at).steps.begin() + static_cast<std::ptrdiff_t>(at->step));
  rank.lanes.push_back({LaneKind::communicate, "second", {std::move(moved)}});
  return true;
}

bool drop_collective(Plan& plan, Dice& dice) {
  const auto at = pick_collective(plan, dice);
  if (at) remove_step(plan, *at);
  return at.has_value();
}

/// What every rank has at the end is summed over them once more.
bool sum_again(Plan& plan, Dice& dice) {
  const auto at = pick_kind<Collective>(plan, dice);
  if (!at) return false;
  const auto out = find_buffer(plan, Role::out);
  const auto communicator = step_as<Collective>(plan, *at).communicator;
  for (int r = 0; r < plan.world(); ++r) {
    const Slice all = whole(plan, out, r);
    insert_step(plan, {r, at->lane, static_cast<int>(plan.ranks[r].lanes[at->lane].steps.size())},
                Collective{CollectiveKind::allreduce, communicator, all, all, {}, {}, {}});
  }
  return true;
}

bool rotate_counts(Plan& plan, Dice& dice) {
  const auto at = pick_collective(plan, dice);
  if (!at) return false;
  auto& counts = step_as<Collective>(plan, *at).send_rows;
  if (std::ranges::adjacent_find(counts, std::not_equal_to<>{}) == counts.end()) return false;
  std::ranges::rotate(counts, counts.begin() + 1);
  return true;
}

/// A list of messages of an exchange that is not empty.
std::vector<Exchange::Message>* pick_messages(Plan& plan, Dice& dice) {
  const auto at = pick_kind<Exchange>(plan, dice);
  if (!at) return nullptr;
  Exchange& exchange = step_as<Exchange>(plan, *at);
  const bool sends = exchange.receives.empty() || (!exchange.sends.empty() && dice.size(0, 1));
  return sends ? &exchange.sends : &exchange.receives;
}

bool drop_message(Plan& plan, Dice& dice) {
  auto* messages = pick_messages(plan, dice);
  if (messages) messages->pop_back();
  return messages != nullptr;
}

/// The message goes to, or is expected of, another rank than agreed.
bool swap_peers(Plan& plan, Dice& dice) {
  auto* messages = pick_messages(plan, dice);
  if (!messages) return false;
  std::int32_t& peer = messages->front().peer;
  peer = (peer + 1) % plan.world();
  return true;
}

bool shift_message(Plan& plan, Dice& dice) {
  auto* messages = pick_messages(plan, dice);
  if (!messages) return false;
  Slice& slice = messages->front().slice;
  const std::int64_t rows = plan.buffers[slice.buffer].rows[slice.rank];
  if (slice.rows == rows) return false;
  slice.row += slice.row + slice.rows < rows ? 1 : -1;
  return true;
}

/// Two that both send: their receivers get each message for the other. (One that only sends and one that only
/// receives may come in any order.)
bool swap_exchanges(Plan& plan, Dice& dice) {
  const auto at = pick_step(plan, dice, [](const At&, const Step& step) {
    const auto* exchange = std::get_if<Exchange>(&step);
    return exchange && !exchange->sends.empty();
  });
  if (!at) return false;
  auto& lane = lane_of(plan, *at).steps;
  for (std::size_t s = at->step + 1; s < lane.size(); ++s)
    if (const auto* other = std::get_if<Exchange>(&lane[s]); other && !other->sends.empty()) {
      std::swap(lane[at->step], lane[s]);
      return true;
    }
  return false;
}

const Mutation mutations[] = {{"shift a collective's slice", shift_collective},
                              {"swap two collectives on one rank", swap_collectives},
                              {"duplicate a contribution", duplicate_contribution},
                              {"second lane on a communicator", second_lane},
                              {"drop a collective on one rank", drop_collective},
                              {"sum again", sum_again},
                              {"rotate an alltoall's counts", rotate_counts},
                              {"drop a message", drop_message},
                              {"swap peers", swap_peers},
                              {"shift a message", shift_message},
                              {"swap two exchanges on one rank", swap_exchanges}};

class CollectiveMutations : public testing::TestWithParam<Mutation> {};

TEST_P(CollectiveMutations, AreAllCaught) {
  expect_caught(GetParam(), random_collective_plan, {.wanted = 200, .seed = 20});
}

INSTANTIATE_TEST_SUITE_P(Verify, CollectiveMutations, testing::ValuesIn(mutations), mutation_name);

/// The changes that mutators skip are no defects: the plans are as right as before.
TEST(Harmless, ChangesPass) {
  Dice dice(7);
  int awaits = 0, collectives = 0, depths = 0;
  for (int tries = 0; tries < 4000 && (awaits < 30 || collectives < 30 || depths < 30); ++tries) {
    const auto plan = random_collective_plan(dice);
    if (!plan) continue;
    // An await that the next one implies.
    if (const auto at = pick_step(*plan, dice, [&](const At& a, const Step&) { return implied(*plan, a); })) {
      Plan mutant = *plan;
      remove_step(mutant, *at);
      const Proof proof = verify(mutant);
      EXPECT_TRUE(proof) << proof.failure << "\n" << to_text(mutant);
      ++awaits;
    }
    // A collective that does not sum in place, once more: it sends the same again.
    if (const auto at = pick_collective(*plan, dice)) {
      Plan mutant = *plan;
      const auto& collective = step_as<Collective>(mutant, *at);
      if (collective.kind != CollectiveKind::allreduce && !sums_in_place(collective)) {
        for (int r = 0; r < mutant.world(); ++r)
          insert_step(mutant, {r, at->lane, at->step}, step_of(mutant, At{r, at->lane, at->step}));
        const Proof proof = verify(mutant);
        EXPECT_TRUE(proof) << proof.failure << "\n" << to_text(mutant);
        ++collectives;
      }
    }
    // Two copies of every internal buffer instead of one.
    Plan mutant = *plan;
    for (Buffer& buffer : mutant.buffers)
      if (buffer.role == Role::internal) buffer.depth = 2;
    const Proof proof = verify(mutant);
    EXPECT_TRUE(proof) << proof.failure << "\n" << to_text(mutant);
    ++depths;
  }
  EXPECT_GE(awaits, 30);
  EXPECT_GE(collectives, 30);
}

}  // namespace
}  // namespace shingle::verify_collective_mutation_test
