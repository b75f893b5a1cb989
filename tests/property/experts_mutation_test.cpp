// Plans of a mixture of experts that are wrong in one place are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <tuple>

#include "shingle/planner/planner.hpp"
#include "support/mutations.hpp"
#include "support/random_problem.hpp"
#include "support/small_experts.hpp"

namespace shingle::experts_mutation_test {
namespace {

using namespace test;

std::vector<Plan> plans(Op op) {
  std::vector<Plan> all{plan_sequential(experts(op), {}, {}).value(),
                        plan_fused(experts(op), {}, {}).value()};
  if (traits(op).slices_experts())
    all.insert(all.end(),
               {in_chunks(op), plan_fused(experts(op), with_helpers(), {.mover = Mover::store}).value()});
  else
    all.insert(all.end(), {plan_chunked(experts(op), {}, {.chunks = 2}).value(),
                           plan_signal(experts(op), {}, {.group_waves = {2, 1}}).value()});
  return all;
}

constexpr Op every_op[] = {Op::alltoall_grouped_gemm,  Op::grouped_gemm_alltoall,      Op::moe,
                           Op::allgather_grouped_gemm, Op::grouped_gemm_reducescatter, Op::moe_tp};

TEST(WrongExperts, RowsWithTheWeightOfOthers) {
  for (const Op op : every_op)
    for (const Plan& plan : plans(op)) {
      const auto weights = static_cast<std::int32_t>(plan.problem().weights());
      expect_refused<Gemm>(plan, "content", [&](Gemm& g) {
        g.groups.front().weight = (g.groups.front().weight + 1) % weights;
        return true;
      });
      expect_refused<Gemm>(plan, "", [](Gemm& g) {
        std::swap(g.groups.front().a_row, g.groups.back().a_row);
        return true;
      });
      expect_refused<Gemm>(plan, "well-formed", [&](Gemm& g) {
        g.groups.front().weight = weights;
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
  for (const Op op : {Op::grouped_gemm_alltoall, Op::moe, Op::grouped_gemm_reducescatter, Op::moe_tp})
    for (const Plan& plan : plans(op)) {
      const auto combines = [](const Elementwise& pass) { return pass.factors != Slice{}; };
      test::expect_pass_refused(plan, "content", [&](Elementwise& pass) {
        if (!combines(pass)) return false;
        std::swap(pass.from[0], pass.from[1]);
        return true;
      });
      test::expect_pass_refused(plan, "content", [&](Elementwise& pass) {
        if (!combines(pass)) return false;
        pass.from[1] = pass.from[0];
        return true;
      });
      test::expect_pass_refused(plan, "content", [&](Elementwise& pass) {
        if (!combines(pass)) return false;
        pass.factors = pass.from[0].slice;  // products for weights
        pass.factors.rows = pass.grid.rows;
        pass.factors.cols = 2;
        return true;
      });
      // A plain sum, without weights.
      test::expect_pass_refused(plan, "content", [&](Elementwise& pass) {
        if (!combines(pass)) return false;
        pass.factors = {};
        return true;
      });
      test::expect_pass_refused(plan, "", [&](Elementwise& pass) {
        if (!combines(pass)) return false;
        pass.from.pop_back();
        return true;
      });
    }
}

TEST(WrongExperts, TokensToOtherExpertsOrTooEarly) {
  for (const Op op : {Op::alltoall_grouped_gemm, Op::moe}) {
    Machine machine;
    machine.workers = 4;
    const Plan plan = plan_fused(experts(op), machine, {.helpers = 1, .mover = Mover::store}).value();
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

TEST(WrongExperts, ProductsBeforeAllTokensHaveCome) {
  for (const Op op : {Op::alltoall_grouped_gemm, Op::moe}) {
    const FusedParams params{.helpers = FusedParams::no_helpers, .mover = Mover::store};
    const Plan plan = plan_fused(experts(op), {}, params).value();
    expect_refused<Elementwise>(plan, "", [](Elementwise& pass) {
      if (!std::holds_alternative<placement::Routed>(pass.to.form)) return false;
      pass.notify.front().ranks.pop_back();
      return true;
    });
    const auto arrived = std::ranges::find(plan.counters, "arrived", &Counter::name);
    ASSERT_NE(arrived, plan.counters.end());
    expect_refused<Await>(plan, "", [&](Await& await) {
      if (await.counter.counter != arrived - plan.counters.begin()) return false;
      --await.target;
      return true;
    });
  }
}

TEST(WrongExperts, CopiesOfOtherTokensOrUnannounced) {
  for (const Op op : {Op::alltoall_grouped_gemm, Op::moe}) {
    const Plan plan = plan_fused(experts(op), {}, {.comm_rows = 1, .mover = Mover::copy_engine}).value();
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
      g.notify.front().ranks.pop_back();
      return true;
    });
    expect_refused<Await>(plan, "race", [&](Await& a) {
      const bool stored = plan.counters[static_cast<std::size_t>(a.counter.counter)].name == "stored";
      if (!stored) return false;
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

TEST(WrongGroups, TilesThatAwaitOrCountForOthers) {
  Machine machine;
  machine.tile_rows = 4;
  for (const Op op : {Op::alltoall_grouped_gemm, Op::grouped_gemm_alltoall, Op::moe}) {
    const Plan plan = plan_signal(experts(op), machine, {.group_waves = {1, 1}}).value();
    if (traits(op).before) {
      expect_refused<Gemm>(plan, "", [](Gemm& product) {
        if (product.gates.empty()) return false;
        product.gates.front().targets.back() = 0;
        return true;
      });
      expect_refused<Gemm>(plan, "", [](Gemm& product) {
        if (product.gates.empty() || product.gates.front().entries.size() < 2) return false;
        product.gates.front().entries.back() = product.gates.front().entries.front();
        return true;
      });
    }
    if (!traits(op).after) continue;
    expect_refused<Gemm>(plan, "", [](Gemm& product) {
      if (product.notify.empty() || product.notify.front().entries.size() < 2) return false;
      product.notify.front().entries.back() = product.notify.front().entries.front();
      return true;
    });
    expect_refused<Await>(plan, "", [&](Await& await) {
      if (plan.counters[static_cast<std::size_t>(await.counter.counter)].name != "computed") return false;
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
