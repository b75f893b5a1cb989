// Plans of the backward of ring attention that are wrong in one place are refused.
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "shingle/plan/print.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/verify/verify.hpp"
#include "support/mutations.hpp"
#include "support/ring_attention.hpp"

namespace shingle::attention_backward_mutation_test {
namespace {

using test::attention_backward;
using test::contiguous;
using test::expect_refused;
using test::zigzag;

/// Plans of all forms, two of which add parts to running sums.
std::vector<Plan> plans() {
  const Problem many = attention_backward(6, 48, {4, 2, 4});
  const Problem causal = attention_backward(3, 23, {4, 2, 4, true}, zigzag);
  return {plan_ring(many, {}, {}).value(),
          plan_ring(many, {}, {.engines = 1, .slices = 2}).value(),
          plan_ring(causal, {}, {}).value(),
          plan_sequential(causal, {}).value(),
          plan_sequential(attention_backward(3, 23, {4, 2, 4}), {}).value(),
          plan_ring(many, {}, {.mover = Mover::store, .slices = 2}).value()};
}

TEST(AttentionBackwardWrongPlans, OtherTokensHeadsOrMatrices) {
  for (const Plan& plan : plans()) {
    expect_refused<AttendBackward>(plan, "", [](AttendBackward& a) { return a.first_token-- > 0; });
    if (plan.mechanism != Mechanism::sequential)  // there the keys begin at the first token
      expect_refused<AttendBackward>(plan, "", [](AttendBackward& a) { return a.first_key-- > 0; });
    using Matrix = Slice AttendBackward::*;
    for (const auto& [one, other] : std::initializer_list<std::pair<Matrix, Matrix>>{
             {&AttendBackward::keys, &AttendBackward::values},
             {&AttendBackward::q, &AttendBackward::grad},
             {&AttendBackward::q, &AttendBackward::attended},
             {&AttendBackward::grad, &AttendBackward::attended},
             {&AttendBackward::keys_grad, &AttendBackward::values_grad}})
      expect_refused<AttendBackward>(plan, "content", [&](AttendBackward& a) {
        std::swap(a.*one, a.*other);
        return true;
      });
    for (const Matrix matrix :
         {&AttendBackward::q, &AttendBackward::grad, &AttendBackward::attended, &AttendBackward::lse,
          &AttendBackward::keys, &AttendBackward::values, &AttendBackward::q_grad, &AttendBackward::keys_grad,
          &AttendBackward::values_grad})
      expect_refused<AttendBackward>(plan, "", [&](AttendBackward& a) {
        Slice& slice = a.*matrix;
        slice.row += slice.row == 0 ? 1 : -1;
        return true;
      });
  }
}

TEST(AttentionBackwardWrongPlans, KeysOrQueriesLeftOut) {
  for (const Plan& plan : plans()) {
    expect_refused<AttendBackward>(plan, "", [](AttendBackward& a) {
      if (a.keys.rows < 2) return false;
      --a.keys.rows, --a.values.rows, --a.keys_grad.rows, --a.values_grad.rows;
      return true;
    });
    expect_refused<AttendBackward>(plan, "", [](AttendBackward& a) {
      if (a.grid.rows < 2) return false;
      a.grid = make_grid(a.grid.rows - 1, a.grid.cols, a.grid.tile_rows - 1, a.grid.tile_cols);
      --a.q.rows, --a.grad.rows, --a.attended.rows, --a.lse.rows, --a.q_grad.rows;
      return true;
    });
  }
}

TEST(AttentionBackwardWrongPlans, ItemsThatAreNotAllQueriesOfAHead) {
  const Plan plan = plans().front();
  expect_refused<AttendBackward>(plan, "well-formed", [](AttendBackward& a) {
    if (a.grid.rows < 2) return false;
    a.grid = make_grid(a.grid.rows, a.grid.cols, 1, a.grid.tile_cols);
    return true;
  });
  expect_refused<AttendBackward>(plan, "well-formed", [](AttendBackward& a) {
    a.grid = make_grid(a.grid.rows, a.grid.cols, a.grid.tile_rows, a.grid.tile_cols / 2);
    return true;
  });
  expect_refused<AttendBackward>(plan, "well-formed", [](AttendBackward& a) {
    a.values_grad = a.keys_grad;
    return true;
  });
}

TEST(AttentionBackwardWrongPlans, KeysThatNoQuerySees) {
  expect_refused<AttendBackward>(plans()[2], "well-formed", [](AttendBackward& a) {
    if (a.first_key < 2) return false;
    a.first_token = a.first_key - 1;  // the query before all of the keys
    return true;
  });
  // Of the last key's token there is no query.
  expect_refused<AttendBackward>(plans()[2], "well-formed", [](AttendBackward& a) {
    if (a.first_key != a.first_token || a.grid.rows != a.keys.rows || a.first_key == 0) return false;
    ++a.first_key;
    return true;
  });
}

TEST(AttentionBackwardWrongPlans, PartsMissingTwiceOrOfOtherRows) {
  for (const Plan& plan : plans()) {
    expect_refused<Elementwise>(plan, "", [](Elementwise& e) {
      if (e.from.size() < 2) return false;
      e.from.pop_back();
      return true;
    });
    expect_refused<Elementwise>(plan, "", [](Elementwise& e) {
      if (e.from.size() < 2) return false;
      e.from.erase(e.from.begin());
      return true;
    });
    expect_refused<Elementwise>(plan, "content", [](Elementwise& e) {
      if (e.from.size() < 2) return false;
      e.from.push_back(e.from.front());
      return true;
    });
    // Passes over gathered keys also move those that no query of the rank sees.
    const auto of_gradients = [&](const Slice& slice) {
      return plan.buffers[static_cast<std::size_t>(slice.buffer)].name.find("grad") != std::string::npos;
    };
    expect_refused<Elementwise>(plan, "", [&](Elementwise& e) {
      Slice& part = e.from.back().slice;
      part.row += part.row == 0 ? 1 : -1;
      return of_gradients(part);
    });
    expect_refused<Elementwise>(plan, "", [&](Elementwise& e) {
      e.to.slice.row += e.to.slice.row == 0 ? 1 : -1;
      return of_gradients(e.to.slice);
    });
  }
}

/// A lane is in order, so some awaits are implied by others. Of all that a rank has of one counter, at least
/// one is needed.
TEST(AttentionBackwardWrongPlans, WaitsLeftOut) {
  const std::vector<Plan> all = plans();
  for (const std::size_t number : {0u, 1u, 3u, 4u, 5u}) {
    const Plan& right = all[number];
    for (std::size_t counter = 0; counter < right.counters.size(); ++counter)
      for (std::size_t rank = 0; rank < right.ranks.size(); ++rank) {
        Plan plan = right;
        int changed = 0;
        for (Lane& lane : plan.ranks[rank].lanes)
          for (Step& step : lane.steps)
            if (auto* await = std::get_if<Await>(&step);
                await != nullptr && await->counter.counter == static_cast<std::int32_t>(counter))
              await->target = 0, ++changed;
        // Messages between all ranks come in an order in which sums precede what is computed next.
        const bool implied = number == 0 && right.counters[counter].name == "summed";
        if (changed == 0 || right.counters[counter].of_begins || implied) continue;
        EXPECT_FALSE(verify(plan).ok && verify(plan, Setting::context).ok)
            << "plan " << number << ", " << right.counters[counter].name << " on rank " << rank;
      }
  }
}

TEST(AttentionBackwardWrongPlans, MessagesOrCopiesOfOtherRows) {
  for (const Plan& plan : plans()) {
    if (plan.ranks[0].lanes.back().kind == LaneKind::copy) {
      expect_refused<Copy>(plan, "", [](Copy& c) {
        c.to.row += c.to.row == 0 ? 4 : -4;
        return true;
      });
    } else if (plan.ranks[0].lanes.back().name == "push") {
      expect_refused<Elementwise>(plan, "", [](Elementwise& e) {
        if (e.to.slice.rank == 0) return false;
        e.to.slice.row += e.to.slice.row == 0 ? 4 : -4;
        return true;
      });
    } else if (plan.mechanism == Mechanism::ring) {
      expect_refused<Exchange>(plan, "", [](Exchange& e) {
        if (e.sends.size() < 2) return false;
        std::swap(e.sends[0], e.sends[1]);
        return true;
      });
      expect_refused<Exchange>(plan, "", [](Exchange& e) {
        if (e.receives.empty()) return false;
        e.receives[0].slice.row += e.receives[0].slice.row == 0 ? 1 : -1;
        return true;
      });
    } else {
      expect_refused<Collective>(plan, "", [](Collective& c) {
        if (c.kind != CollectiveKind::alltoall) return false;
        ++c.send_rows[0], --c.send_rows[1];
        return true;
      });
    }
  }
}

}  // namespace
}  // namespace shingle::attention_backward_mutation_test
