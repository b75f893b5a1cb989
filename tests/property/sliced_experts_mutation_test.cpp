// Plans of tensor-parallel experts that are wrong in one place are refused.
#include <gtest/gtest.h>

#include <utility>

#include "shingle/planner/planner.hpp"
#include "support/mutations.hpp"
#include "support/random_problem.hpp"
#include "support/small_experts.hpp"

namespace shingle::sliced_experts_mutation_test {
namespace {

using namespace test;

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

/// Plans whose tokens and sums are messages.
std::vector<Plan> by_messages(Op op) {
  std::vector<Plan> plans = by_signal(op);
  plans.push_back(in_chunks(op));
  return plans;
}

TEST(WrongSlicedExperts, MessagesOfOtherRowsOrTooEarly) {
  for (const Op op : {Op::allgather_grouped_gemm, Op::grouped_gemm_reducescatter, Op::moe_tp})
    for (const Plan& plan : by_messages(op)) {
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
      expect_refused<Await>(plan, "", [&](Await& a) {
        // Helpers await products only to begin late: their passes are gated.
        if (plan.counters[static_cast<std::size_t>(a.counter.counter)].name == "computed") return false;
        --a.target;
        return true;
      });
      expect_pass_refused(plan, "", [&](Elementwise& pass) {
        Slice& at = pass.factors == Slice{} ? pass.from.front().slice : pass.factors;
        if (role_of(at) != Role::internal) return false;
        at = in_next_part(at);
        return true;
      });
    }
}

TEST(WrongSlicedExperts, SignalsThatAreMissing) {
  for (const Op op : {Op::allgather_grouped_gemm, Op::grouped_gemm_reducescatter, Op::moe_tp}) {
    const std::vector<Plan> plans = by_signal(op);
    if (traits(op).before) {
      expect_refused<Gemm>(plans.front(), "", [](Gemm& g) { return !std::exchange(g.gates, {}).empty(); });
      expect_refused<Gemm>(plans.front(), "", [](Gemm& g) {
        if (g.gates.empty()) return false;
        --g.gates.front().targets.back();
        return true;
      });
    }
    for (const Plan& plan : plans) {
      expect_refused<Notify>(plan, "", [](Notify& n) {
        n.value = 0;
        return true;
      });
      if (!traits(op).after) continue;
      expect_refused<Gemm>(plan, "", [](Gemm& g) { return !std::exchange(g.notify, {}).empty(); });
      const auto refused = [&](const std::string& rule, const std::function<void(Elementwise&)>& edit) {
        expect_pass_refused(plan, rule, [&](Elementwise& pass) {
          if (pass.factors == Slice{}) return false;
          edit(pass);
          return true;
        });
      };
      refused("", [](Elementwise& pass) { pass.notify.clear(); });
      refused("race", [](Elementwise& pass) { --pass.gates.front().targets.front(); });
      expect_pass_refused(plan, "", [&](Elementwise& pass) {
        if (pass.factors == Slice{} ||
            plan.counters[static_cast<std::size_t>(pass.gates.back().counter)].name != "weights")
          return false;
        pass.gates.pop_back();
        return true;
      });
    }
  }
}

}  // namespace
}  // namespace shingle::sliced_experts_mutation_test
