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
  problem.routing = std::make_shared<const Routing>(
      Routing::to_experts(std::move(dest), 6, problem.traits().expert_split()));
  return problem;
}

/// Tensor-parallel experts by `fused`, with helpers if `machine` has workers for them.
std::vector<Plan> sliced(Op op, const Machine& machine = {}) {
  return {
      plan_fused(experts(op), machine, {.mover = Mover::copy_engine}).value(),
      plan_fused(experts(op), machine, {.mover = Mover::store}).value(),
      plan_fused(experts(op), machine, {.helpers = FusedParams::no_helpers, .mover = Mover::store}).value()};
}
/// The same by `chunked`, in a chunk for each rank. Tiles are so low that each chunk has some.
Plan in_chunks(Op op) {
  Machine machine;
  machine.tile_rows = 1;
  return plan_chunked(experts(op), machine, {.chunks = 3}).value();
}
Machine with_helpers() {
  Machine machine;
  machine.workers = 64;
  return machine;
}

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

/// Part of each rank's tokens in a buffer that has those of all three.
constexpr std::int64_t part = 8;

/// The same slice in the part of the next rank.
Slice in_next_part(Slice slice) {
  slice.row = (slice.row + part) % (3 * part);
  return slice;
}

// What is read too early is absent (content), or still on its way (race).

TEST(WrongSlicedExperts, TokensInOtherPlacesOrTooEarly) {
  for (const Op op : {Op::allgather_grouped_gemm, Op::moe_tp}) {
    for (const Machine& machine : {Machine{}, with_helpers()})
      for (const Plan& plan : sliced(op, machine)) {
        const auto sorts = [](const Elementwise& pass) {
          return std::holds_alternative<placement::Pools>(pass.to.form);
        };
        expect_refused<Elementwise>(plan, "", [&](Elementwise& pass) {
          if (!sorts(pass)) return false;
          auto& pools = std::get<placement::Pools>(pass.to.form);
          pools.source = (pools.source + 1) % 3;
          return true;
        });
        expect_refused<Elementwise>(plan, "", [&](Elementwise& pass) {
          if (!sorts(pass)) return false;
          std::ranges::rotate(std::get<placement::Pools>(pass.to.form).bases,
                              std::get<placement::Pools>(pass.to.form).bases.begin() + 1);
          return true;
        });
        // The tokens of another rank.
        expect_refused<Elementwise>(plan, "", [&](Elementwise& pass) {
          if (!sorts(pass) ||
              plan.buffers[static_cast<std::size_t>(pass.from[0].slice.buffer)].role == Role::a)
            return false;
          pass.from[0].slice = in_next_part(pass.from[0].slice);
          return true;
        });
        // Without helpers, the lane of the product sorts the tokens.
        if (std::get<FusedParams>(params_of(plan)).helpers > 0)
          expect_refused<Gemm>(plan, "", [](Gemm& g) {
            if (g.gates.empty()) return false;
            --g.gates.front().targets.back();
            return true;
          });
        expect_refused<Await>(plan, "", [&](Await& a) {
          if (plan.counters[static_cast<std::size_t>(a.counter.counter)].name != "arrived") return false;
          --a.target;
          return true;
        });
      }
    expect_refused<Copy>(sliced(op).front(), "", [](Copy& copy) {
      copy.to = in_next_part(copy.to);
      return true;
    });
  }
}

TEST(WrongSlicedExperts, SumsOfOtherTokensOrTooEarly) {
  for (const Op op : {Op::grouped_gemm_reducescatter, Op::moe_tp})
    for (const Machine& machine : {Machine{}, with_helpers()})
      for (const Plan& plan : sliced(op, machine)) {
        const auto is = [&](const Slice& slice, std::string_view name) {
          return slice.buffer >= 0 && plan.buffers[static_cast<std::size_t>(slice.buffer)].name == name;
        };
        const auto refused = [&](const std::string& rule, const std::function<void(Elementwise&)>& edit) {
          test::expect_pass_refused(plan, rule, [&](Elementwise& pass) {
            if (pass.factors == Slice{}) return false;
            edit(pass);
            return true;
          });
        };
        refused("", [&](Elementwise& pass) {
          if (is(pass.factors, "weights"))
            pass.factors = in_next_part(pass.factors);
          else
            ++pass.factors.row, --pass.factors.rows;
        });
        refused("", [&](Elementwise& pass) { pass.to.slice = in_next_part(pass.to.slice); });
        refused("", [](Elementwise& pass) { pass.to.slice.rank = (pass.to.slice.rank + 1) % 3; });
        refused("race", [](Elementwise& pass) { --pass.gates.front().targets.front(); });
        refused("", [](Elementwise& pass) {
          auto& pools = std::get<placement::Pools>(pass.from[1].form);
          pools.source = (pools.source + 1) % 3;
        });
        const auto sums = [&](const Elementwise& pass) { return is(pass.from[0].slice, "staging"); };
        expect_refused<Elementwise>(plan, "content", [&](Elementwise& pass) {
          if (!sums(pass)) return false;
          pass.from.pop_back();
          return true;
        });
        expect_refused<Elementwise>(plan, "content", [&](Elementwise& pass) {
          if (!sums(pass)) return false;
          pass.from[2] = pass.from[1];
          return true;
        });
        expect_refused<Elementwise>(plan, "rounding", [&](Elementwise& pass) {
          if (!sums(pass)) return false;
          std::swap(pass.from[0], pass.from[2]);
          return true;
        });
        expect_refused<Await>(plan, "", [&](Await& a) {
          if (plan.counters[static_cast<std::size_t>(a.counter.counter)].name != "stored") return false;
          --a.target;
          return true;
        });
      }
}

TEST(WrongSlicedExperts, WeightsThatHaveNotArrived) {
  for (const Op op : {Op::grouped_gemm_reducescatter, Op::moe_tp})
    for (const Plan& plan : sliced(op))
      expect_refused<Elementwise>(plan, "", [](Elementwise& pass) {
        if (pass.factors == Slice{} || pass.gates.size() < 2) return false;
        pass.gates.pop_back();
        return true;
      });
}

TEST(WrongSlicedExperts, CollectivesOfOtherRowsOrTooEarly) {
  for (const Op op : {Op::allgather_grouped_gemm, Op::grouped_gemm_reducescatter, Op::moe_tp}) {
    const Plan plan = plan_sequential(experts(op), {}, {}).value();
    expect_refused<Await>(plan, "", [](Await& a) {
      --a.target;
      return true;
    });
    expect_refused<Elementwise>(plan, "", [&](Elementwise& pass) {
      const bool sorts = pass.factors == Slice{};
      Slice& at = sorts ? pass.from[0].slice : pass.factors;
      at = in_next_part(at);
      return true;
    });
  }
}

TEST(WrongSlicedExperts, ChunksOfOtherRowsOrTooEarly) {
  for (const Op op : {Op::allgather_grouped_gemm, Op::grouped_gemm_reducescatter, Op::moe_tp}) {
    const Plan plan = in_chunks(op);
    const auto role_of = [&](const Slice& slice) {
      return plan.buffers[static_cast<std::size_t>(slice.buffer)].role;
    };
    for (const bool tokens : {true, false}) {  // tokens and weights, or sums
      if (!tokens && !traits(op).after) continue;
      const auto wanted = [&](const Exchange& e) {
        return (role_of(e.sends.front().slice) != Role::internal) == tokens;
      };
      expect_refused<Exchange>(plan, "", [&](Exchange& e) {
        if (!wanted(e)) return false;
        e.receives.front().slice = in_next_part(e.receives.front().slice);
        return true;
      });
      expect_refused<Exchange>(plan, "", [&](Exchange& e) {
        if (!wanted(e)) return false;
        e.sends.front().peer = (e.sends.front().peer + 1) % 3;
        return true;
      });
    }
    expect_refused<Await>(plan, "", [](Await& a) {
      --a.target;
      return true;
    });
    expect_refused<Elementwise>(plan, "", [&](Elementwise& pass) {
      Slice& at = pass.factors == Slice{} ? pass.from.front().slice : pass.factors;
      if (role_of(at) != Role::internal) return false;
      at = in_next_part(at);
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
