// Plans of a mixture of experts that are wrong in one place are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <tuple>

#include "shingle/planner/planner.hpp"
#include "support/mutations.hpp"
#include "support/random_problem.hpp"

namespace shingle::experts_mutation_test {
namespace {

using test::expect_refused;

/// Three ranks with two experts each. Every token of 8 goes to two of them, and every rank to every expert.
Problem experts(Op op) {
  Problem problem{.op = op, .world = 3, .m = 8, .n = 12, .k = 10};
  problem.experts = {6, 2};
  if (problem.traits().chains()) problem.inner = 14;
  std::vector<std::vector<std::int32_t>> dest(3);
  for (std::size_t rank = 0; rank < 3; ++rank)
    for (int choice = 0; choice < 2; ++choice)
      for (std::int32_t token = 0; token < 8; ++token)
        dest[rank].push_back((token * 5 + choice + static_cast<std::int32_t>(rank)) % 6);
  problem.routing = std::make_shared<const Routing>(Routing::to_experts(std::move(dest), 6));
  return problem;
}

std::vector<Plan> plans(Op op) {
  return {plan_sequential(experts(op), {}, {}).value(), plan_chunked(experts(op), {}, {.chunks = 2}).value(),
          plan_fused(experts(op), {}, {}).value()};
}

TEST(WrongExperts, RowsWithTheWeightOfOthers) {
  for (const Op op : {Op::alltoall_grouped_gemm, Op::grouped_gemm_alltoall, Op::moe})
    for (const Plan& plan : plans(op)) {
      expect_refused<Gemm>(plan, "content", [](Gemm& g) {
        g.groups.front().weight = 1 - g.groups.front().weight;
        return true;
      });
      expect_refused<Gemm>(plan, "", [](Gemm& g) {
        std::swap(g.groups.front().a_row, g.groups.back().a_row);
        return true;
      });
      expect_refused<Gemm>(plan, "well-formed", [](Gemm& g) {
        g.groups.front().weight = 2;
        return true;
      });
      expect_refused<Gemm>(plan, "well-formed", [](Gemm& g) {
        g.group_tiles = 7;
        return true;
      });
      expect_refused<Gemm>(plan, "", [](Gemm& g) {
        g.groups.pop_back();
        return true;
      });
      expect_refused<Gemm>(plan, "", [](Gemm& g) {
        g.groups.back().row = g.groups.front().row;
        return true;
      });
    }
}

TEST(WrongExperts, ChoicesOfOtherTokensOrWeights) {
  for (const Op op : {Op::grouped_gemm_alltoall, Op::moe})
    for (const Plan& plan : plans(op)) {
      const auto combines = [](const Elementwise& pass) { return pass.factors != Slice{}; };
      expect_refused<Elementwise>(plan, "content", [&](Elementwise& pass) {
        if (!combines(pass)) return false;
        std::swap(pass.from[0], pass.from[1]);
        return true;
      });
      expect_refused<Elementwise>(plan, "content", [&](Elementwise& pass) {
        if (!combines(pass)) return false;
        pass.from[1] = pass.from[0];
        return true;
      });
      expect_refused<Elementwise>(plan, "content", [&](Elementwise& pass) {
        if (!combines(pass)) return false;
        pass.factors.buffer = pass.to.slice.buffer;  // poisoned memory for weights
        pass.factors.cols = 2;
        return true;
      });
      // A plain sum, without weights.
      expect_refused<Elementwise>(plan, "content", [&](Elementwise& pass) {
        if (!combines(pass)) return false;
        pass.factors = {};
        return true;
      });
      expect_refused<Elementwise>(plan, "", [&](Elementwise& pass) {
        if (!combines(pass)) return false;
        pass.from.pop_back();
        return true;
      });
    }
}

TEST(WrongExperts, TokensToOtherExpertsOrTooEarly) {
  for (const Op op : {Op::alltoall_grouped_gemm, Op::moe}) {
    const Plan plan = plan_fused(experts(op), {}, {.mover = Mover::store}).value();
    expect_refused<Elementwise>(plan, "", [](Elementwise& pass) {
      auto* to = std::get_if<placement::Routed>(&pass.to.form);
      if (to == nullptr) return false;
      std::swap(to->bases[0], to->bases[1]);
      std::swap(to->bases[2], to->bases[3]);
      std::swap(to->bases[4], to->bases[5]);
      return true;
    });
    // A pass that pushes the tokens of its rank by another rank's routing.
    expect_refused<Elementwise>(plan, "", [](Elementwise& pass) {
      auto* to = std::get_if<placement::Routed>(&pass.to.form);
      if (to == nullptr) return false;
      to->source = (to->source + 1) % 3;
      return true;
    });
    expect_refused<Gemm>(plan, "race", [](Gemm& g) {
      if (g.gates.empty()) return false;
      --g.gates.front().targets.back();
      return true;
    });
  }
}

TEST(WrongExperts, CopiesOfOtherTokensOrUnannounced) {
  for (const Op op : {Op::alltoall_grouped_gemm, Op::moe}) {
    const Plan plan = plan_fused(experts(op), {}, {.comm_rows = 1}).value();
    expect_refused<Elementwise>(plan, "", [](Elementwise& pass) {
      auto* pools = std::get_if<placement::Pools>(&pass.to.form);
      if (pools == nullptr) return false;
      std::ranges::rotate(pools->bases, pools->bases.begin() + 1);
      return true;
    });
    expect_refused<Copy>(plan, "", [](Copy& copy) {
      copy.from.row += copy.from.row == 0 ? 1 : -1;
      return true;
    });
    expect_refused<Copy>(plan, "", [](Copy& copy) {
      --copy.to.row;
      return true;
    });
    expect_refused<Gemm>(plan, "race", [](Gemm& g) {
      if (g.gates.empty()) return false;
      --g.gates.front().targets.back();
      return true;
    });
    // Tokens that were not packed yet, or a peer that still reads those of the epoch before. In moe the
    // compute lane awaits the peers too.
    for (const std::string_view name : {"packed", "begun"}) {
      if (name == "begun" && op == Op::moe) continue;
      const auto counter = std::ranges::find(plan.counters, name, &Counter::name);
      ASSERT_NE(counter, plan.counters.end());
      expect_refused<Await>(plan, "", [&](Await& await) {
        if (await.counter.counter != counter - plan.counters.begin()) return false;
        --await.target;
        return true;
      });
    }
  }
}

TEST(WrongExperts, ProductsToOtherRowsOrUnannounced) {
  for (const Op op : {Op::grouped_gemm_alltoall, Op::moe}) {
    const Plan plan = plan_fused(experts(op), {}, {}).value();
    expect_refused<Gemm>(plan, "", [](Gemm& g) {
      auto* back = std::get_if<placement::Returned>(&g.out.form);
      if (back == nullptr) return false;
      back->rank = (back->rank + 1) % 3;
      return true;
    });
    expect_refused<Gemm>(plan, "", [](Gemm& g) {
      if (g.notify.empty()) return false;
      std::swap(g.notify.front().owners.front(), g.notify.front().owners.back());
      return true;
    });
    // Not for its own products, which lie before in its lane.
    expect_refused<Await>(plan, "race", [&](Await& a) {
      const bool stored = plan.counters[static_cast<std::size_t>(a.counter.counter)].name == "stored";
      if (!stored || a.counter.entry == a.counter.rank) return false;
      --a.target;
      return true;
    });
  }
}

class WrongChunks : public testing::TestWithParam<std::tuple<Op, std::int32_t>> {};

TEST_P(WrongChunks, OtherRowsOrTooEarly) {
  const auto [op, tile_rows] = GetParam();
  Machine machine;
  machine.tile_rows = tile_rows;
  const Plan plan = plan_chunked(experts(op), machine, {.chunks = 3}).value();
  expect_refused<Collective>(plan, "collectives", [](Collective& c) {
    std::swap(c.send_rows.front(), c.send_rows.back());
    return c.send_rows.front() != c.send_rows.back();
  });
  expect_refused<Collective>(plan, "", [](Collective& c) {
    c.send.row += c.send.row == 0 ? 1 : -1;
    return true;
  });
  expect_refused<Collective>(plan, "", [](Collective& c) {
    c.recv.row += c.recv.row == 0 ? 1 : -1;
    return true;
  });
  // Packed rows where another chunk, or another expert, has them.
  expect_refused<Elementwise>(plan, "", [](Elementwise& pass) {
    auto* pools = std::get_if<placement::Pools>(&pass.to.form);
    if (pools == nullptr) pools = std::get_if<placement::Pools>(&pass.from.back().form);
    std::ranges::rotate(pools->bases, pools->bases.begin() + 1);
    return true;
  });
  // Rows that were not awaited are absent (content), or still on their way (race).
  for (const std::string_view name : {"packed", "arrived", "computed", "returned"}) {
    const auto counter = std::ranges::find(plan.counters, name, &Counter::name);
    if (counter == plan.counters.end()) continue;
    expect_refused<Await>(plan, "", [&](Await& await) {
      if (await.counter.counter != counter - plan.counters.begin()) return false;
      --await.target;
      return true;
    });
  }
}

// In tiles of one row, the rows of an expert from one source are cut.
INSTANTIATE_TEST_SUITE_P(Experts, WrongChunks,
                         testing::Combine(testing::Values(Op::alltoall_grouped_gemm,
                                                          Op::grouped_gemm_alltoall, Op::moe),
                                          testing::Values(256, 1)));

}  // namespace
}  // namespace shingle::experts_mutation_test
