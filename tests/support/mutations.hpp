// Plans that are wrong in one place.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <variant>

#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"

namespace shingle::test {

/// Changes one step of a kind after the other: each such plan has to fail its proof, alone or in a context,
/// and by `rule` where one is given. `edit` returns whether it changed the step.
template <class S>
void expect_refused(const Plan& right, const std::string& rule, const std::function<bool(S&)>& edit) {
  int changed = 0;
  for (std::size_t r = 0; r < right.ranks.size(); ++r)
    for (std::size_t l = 0; l < right.ranks[r].lanes.size(); ++l)
      for (std::size_t i = 0; i < right.ranks[r].lanes[l].steps.size(); ++i) {
        Plan plan = right;
        auto* step = std::get_if<S>(&plan.ranks[r].lanes[l].steps[i]);
        if (step == nullptr || !edit(*step)) continue;
        ++changed;
        Proof proof = verify(plan);
        if (proof.ok) proof = verify(plan, Setting::context);
        EXPECT_FALSE(proof.ok) << "rank " << r << ", lane " << l << ", step " << i << "\n" << to_text(plan);
        if (!rule.empty()) {
          EXPECT_EQ(proof.rule, rule) << proof.failure;
        }
      }
  EXPECT_GT(changed, 0) << "the plan has no such step";
}

}  // namespace shingle::test
