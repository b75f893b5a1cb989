// The theorem that plans proven for a context compose, tried on whole sequences: calls are joined to one
// plan, in which every access to a rank's arena by one call must be ordered before those of the next.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <set>

#include "plan/steps.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"
#include "support/plan_edit.hpp"
#include "support/random_problem.hpp"
#include "verify/order/order.hpp"

namespace shingle::context_sequence_test {
namespace {

using namespace test;

/// Several calls as one plan. All lanes of a rank meet at the end of each call; ranks do not.
class Joined {
 public:
  explicit Joined(const std::vector<Plan>& calls) : calls_(calls) {
    plan.work = calls.front().work;
    plan.workers = calls.front().workers;
    plan.ranks.resize(calls.front().ranks.size());
    std::size_t lanes = 0;
    for (const Plan& call : calls)
      for (const RankPlan& rank : call.ranks) lanes = std::max(lanes, rank.lanes.size());
    for (RankPlan& rank : plan.ranks) rank.lanes.resize(2 * lanes);  // copy lanes stand behind the others
    for (std::size_t c = 0; c < calls.size(); ++c) append(calls[c], static_cast<int>(c), lanes);
    count_growth(plan);
    for (std::size_t r = 0; r < plan.ranks.size(); ++r)
      for (Lane& lane : plan.ranks[r].lanes)
        for (Step& step : lane.steps)
          if (auto* await = std::get_if<Await>(&step); await && ended_.contains(await->counter.counter))
            await->target = plan.counters[static_cast<std::size_t>(await->counter.counter)].growth[r].front();
  }

  /// An access that does not know an earlier one of another call to the same rank's arena.
  std::optional<std::string> unordered() const {
    constexpr std::int32_t epochs = 3;
    Budget budget;
    const Schedule schedule = run_greedily(plan, epochs, false, &budget);
    if (!schedule.stuck.empty()) return "stuck: " + schedule.stuck;
    const Order order(plan, schedule, Setting::alone, budget);
    struct Access {
      std::int32_t segment;
      int turn;  // number of the call, over all epochs
    };
    std::vector<std::vector<Access>> by_rank(plan.ranks.size());
    for (std::size_t i = 0; i < schedule.segments.size(); ++i) {
      const Segment& s = schedule.segments[i];
      if (s.lane < 0 || s.epoch + 1 >= epochs) continue;
      const auto found = steps_.find({s.rank, s.lane, s.step});
      if (found == steps_.end()) continue;
      for (const std::int32_t rank : arenas_of(found->second, s))
        by_rank[static_cast<std::size_t>(rank)].push_back(
            {static_cast<std::int32_t>(i), s.epoch * static_cast<int>(calls_.size()) + found->second.call});
    }
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank)
      for (const Access& late : by_rank[rank])
        for (const Access& early : by_rank[rank])
          if (early.turn < late.turn && !order.knows(late.segment, early.segment)) {
            const Segment &a = schedule.segments[static_cast<std::size_t>(early.segment)],
                          &b = schedule.segments[static_cast<std::size_t>(late.segment)];
            return "arena of rank " + std::to_string(rank) + ": " + where(plan, a.rank, a.lane, a.step) +
                   " and " + where(plan, b.rank, b.lane, b.step);
          }
    return std::nullopt;
  }

 private:
  struct Place {
    int call = 0;
    Step step;  ///< as in the call
  };

  void append(const Plan& call, int number, std::size_t lanes) {
    const auto counters = static_cast<std::int32_t>(plan.counters.size());
    const auto communicators = static_cast<std::int32_t>(plan.communicators.size());
    plan.buffers.insert(plan.buffers.end(), call.buffers.begin(), call.buffers.end());
    plan.counters.insert(plan.counters.end(), call.counters.begin(), call.counters.end());
    plan.communicators.insert(plan.communicators.end(), call.communicators.begin(), call.communicators.end());
    const auto ended = static_cast<std::int32_t>(plan.counters.size());
    ended_.insert(ended);
    plan.counters.push_back({"ended", CounterKind::add, {plan.ranks.size(), {0}}});
    for (std::size_t r = 0; r < call.ranks.size(); ++r) {
      const auto rank = static_cast<std::int32_t>(r);
      RankPlan& to = plan.ranks[r];
      const auto lane_of = [&](std::size_t lane) {
        return lane + (call.ranks[r].lanes[lane].kind == LaneKind::copy ? lanes : 0);
      };
      std::vector<std::size_t> next(call.ranks[r].lanes.size(), 0);
      for (const std::int32_t lane : call.ranks[r].issue) {
        const auto from = static_cast<std::size_t>(lane);
        Step step = call.ranks[r].lanes[from].steps[next[from]++];
        const Step own = step;
        move_indices(step, counters, communicators);
        // A lane does not know which items of a shared pass the others have done.
        if (auto* pass = std::get_if<Elementwise>(&step); pass && pass->queue >= 0)
          pass->notify.push_back({ended, {rank}, {pass->grid.positions()}});
        Lane& at = to.lanes[lane_of(from)];
        at.kind = call.ranks[r].lanes[from].kind;
        at.steps.push_back(std::move(step));
        to.issue.push_back(static_cast<std::int32_t>(lane_of(from)));
        steps_[{rank, static_cast<std::int32_t>(lane_of(from)),
                static_cast<std::int32_t>(at.steps.size()) - 1}] = {number, own};
      }
      for (std::size_t lane = 0; lane < to.lanes.size(); ++lane) {
        to.lanes[lane].steps.push_back(Notify{{ended, rank, 0}, 1});
        to.issue.push_back(static_cast<std::int32_t>(lane));
      }
      for (std::size_t lane = 0; lane < to.lanes.size(); ++lane) {
        to.lanes[lane].steps.push_back(Await{{ended, rank, 0}, 0});
        to.issue.push_back(static_cast<std::int32_t>(lane));
      }
    }
  }

  /// Ranks whose internal buffers the items of a segment access.
  std::set<std::int32_t> arenas_of(const Place& place, const Segment& segment) const {
    const Plan& call = calls_[static_cast<std::size_t>(place.call)];
    const Step& step = place.step;
    std::set<std::int32_t> ranks;
    const auto internal = [&](const Slice& slice) {
      if (slice.buffer < 0) return false;
      const Buffer& buffer = call.buffers[static_cast<std::size_t>(slice.buffer)];
      return buffer.role == Role::internal && !buffer.flagged;  // flagged ones are not in the arena
    };
    const auto slice = [&](const Slice& at) {
      if (internal(at)) ranks.insert(at.rank);
    };
    const auto* gemm = std::get_if<Gemm>(&step);
    const auto placement = [&](const Placement& at, const TileGrid& grid, bool rows) {
      if (!internal(at.slice)) return;
      for (std::int64_t position = 0; position < grid.positions(); ++position) {
        const Tile tile = grid.tile(position);
        const std::int64_t item = rows ? tile.m : position;
        if (item >= segment.first && item < segment.last && !grid.phantom(tile))
          for_each_piece(at, grid, call.routing(), position,
                         gemm ? product_tile(*gemm, tile).rect : grid.rect(tile),
                         [&](const Piece& piece) { ranks.insert(piece.rank); });
      }
    };
    if (gemm != nullptr) slice(gemm->a), slice(gemm->b), placement(gemm->out, gemm->grid, false);
    if (const auto* pass = std::get_if<Elementwise>(&step)) {
      for (const Placement& from : pass->from) placement(from, pass->grid, row_wise(*pass));
      placement(pass->to, pass->grid, row_wise(*pass));
    }
    if (const auto* fill = std::get_if<Fill>(&step)) slice(fill->slice);
    if (const auto* copy = std::get_if<Copy>(&step)) slice(copy->from), slice(copy->to);
    if (const auto* to = std::get_if<Broadcast>(&step)) slice(to->from), slice(to->to[0]), slice(to->to[1]);
    if (const auto* swap = std::get_if<Swap>(&step)) slice(swap->a), slice(swap->b);
    if (const auto* of = std::get_if<Collective>(&step)) slice(of->send), slice(of->recv);
    if (const auto* exchange = std::get_if<Exchange>(&step)) {
      for (const auto& message : exchange->sends) slice(message.slice);
      for (const auto& message : exchange->receives) slice(message.slice);
    }
    return ranks;
  }

  /// Only the order is examined, which asks for no buffer: slices keep their numbers.
  static void move_indices(Step& step, std::int32_t counters, std::int32_t communicators) {
    const auto gates = [&](auto& of) {
      for (TileGate& gate : of.gates) gate.counter += counters;
      for (TileNotify& notify : of.notify) notify.counter += counters;
    };
    if (auto* gemm = std::get_if<Gemm>(&step)) gates(*gemm);
    if (auto* pass = std::get_if<Elementwise>(&step)) {
      gates(*pass);
      if (pass->queue >= 0) pass->queue += 64 * (communicators + 1);
    }
    if (auto* await = std::get_if<Await>(&step)) await->counter.counter += counters;
    if (auto* notify = std::get_if<Notify>(&step)) notify->counter.counter += counters;
    if (auto* of = std::get_if<Collective>(&step)) of->communicator += communicators;
    if (auto* exchange = std::get_if<Exchange>(&step)) exchange->communicator += communicators;
  }

 public:
  Plan plan;

 private:
  std::map<std::array<std::int32_t, 3>, Place> steps_;
  std::vector<Plan> calls_;
  std::set<std::int32_t> ended_;  // counters
};

bool is_prelaunched(const Plan& plan) {
  return std::ranges::any_of(plan.ranks, [](const RankPlan& rank) {
    return std::ranges::any_of(rank.lanes, [](const Lane& lane) { return lane.submission.prelaunched; });
  });
}

/// A plan of a random problem, or nothing if the mechanism has none that a context takes.
std::optional<Plan> random_plan(Dice& dice, int world, const Machine& machine) {
  Problem problem = random_problem(dice, {.world = world, .m = 60, .n = 40, .k = 30});
  problem.world = world;
  if (chance(dice, 15)) problem = random_attention(dice, world, 60);
  if (problem.traits().routes()) test::route(dice, problem, 30);
  const auto params = random_params(dice, problem);
  const Result<Plan> plan =
      plan_with(problem, machine, params[static_cast<std::size_t>(dice.size(0, params.size() - 1))]);
  if (!plan || is_symmetric(*plan) || is_prelaunched(*plan)) return std::nullopt;
  return *plan;
}

/// Makes one await wait for nothing; false if none was found.
bool weaken(Plan& plan, Dice& dice) {
  std::vector<std::pair<std::size_t, std::size_t>> awaits;  // rank and lane
  for (std::size_t r = 0; r < plan.ranks.size(); ++r)
    for (std::size_t l = 0; l < plan.ranks[r].lanes.size(); ++l)
      for (const Step& step : plan.ranks[r].lanes[l].steps)
        if (std::holds_alternative<Await>(step)) awaits.emplace_back(r, l);
  if (awaits.empty()) return false;
  const auto [r, l] =
      awaits[static_cast<std::size_t>(dice.size(0, static_cast<std::int64_t>(awaits.size()) - 1))];
  for (Step& step : plan.ranks[r].lanes[l].steps)
    if (auto* await = std::get_if<Await>(&step); await && chance(dice, 50)) {
      await->target = 0;
      return true;
    }
  return false;
}

TEST(ContextSequence, WhatIsProvenForAContextComposes) {
  constexpr auto budget = std::chrono::seconds(15);
  const auto start = std::chrono::steady_clock::now();
  int sequences = 0, weakened = 0, refused = 0, harmful = 0;
  for (std::uint64_t seed = 0; seed < 2000 && std::chrono::steady_clock::now() - start < budget; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const int world = static_cast<int>(dice.size(2, 4));
    const Machine machine = random_machine(dice);
    std::vector<Plan> calls;
    std::string text;
    bool proven = true;
    const bool weakens = chance(dice, 50);
    for (std::int64_t want = dice.size(2, 8), tries = 0; want > 0 && tries < 60; ++tries) {
      std::optional<Plan> plan = random_plan(dice, world, machine);
      if (!plan) continue;
      if (weakens && chance(dice, 40) && weaken(*plan, dice)) ++weakened;
      if (!verify(*plan, Setting::context)) proven = false;
      text += describe(plan->work) + ", " + std::string(name(plan->mechanism)) + "\n";
      calls.push_back(std::move(*plan));
      --want;
    }
    if (calls.size() < 2) continue;
    const auto defect = Joined(calls).unordered();
    ++sequences;
    if (!proven) ++refused;
    if (defect && !proven) ++harmful;
    if (proven) {
      ASSERT_FALSE(defect.has_value()) << *defect << "\n" << text;
    }
  }
  EXPECT_GT(sequences, 20);
  EXPECT_GT(sequences - refused, 10);
  EXPECT_GT(harmful, 0) << "the check finds nothing";
  RecordProperty("sequences", sequences);
  RecordProperty("weakened", weakened);
  RecordProperty("refused", refused);
  RecordProperty("harmful", harmful);
}

}  // namespace
}  // namespace shingle::context_sequence_test
