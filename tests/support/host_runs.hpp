// Problems by several mechanisms on the host: proven, run and checked.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "api/workspace.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/api/registry.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/proven.hpp"

namespace shingle::test {

/// Proves the plans of all params, and runs each for two epochs with random inputs and poisoned memory.
/// `choices`: as of random_inputs().
inline void expect_right(const Problem& problem, const std::vector<Params>& forms,
                         std::shared_ptr<const Routing> choices = {}) {
  const auto world = make_world(problem.world, {.backend = "host", .workers_per_rank = 2});
  const auto inputs = random_inputs(problem, 7, Values::normal, std::move(choices));
  for (const Params& params : forms) {
    Operator op(*world, problem, {.params = params});
    const Proof proof = verify(op.plan());
    ASSERT_TRUE(proof.ok) << proof.rule << ": " << proof.failure << "\n" << to_text(op.plan());
    EXPECT_EQ(plan_from_json(to_json(op.plan())), op.plan());
    Workspace memory(*world, *inputs);
    memory.bind(op);
    memory.poison_outputs();
    op.executable().poison();
    op.run(2);
    const Check result = check(*inputs, memory.outputs());
    EXPECT_TRUE(result.passed) << describe(problem) << ", " << name(mechanism_of(params)) << ": "
                               << result.max_error << " above " << result.tolerance << " at " << result.worst;
  }
}

}  // namespace shingle::test
