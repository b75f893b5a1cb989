// Plans that are wrong in one place.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <variant>
#include <vector>

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

/// As above, for passes. One that lanes of a rank share is changed in all of them.
inline void expect_pass_refused(const Plan& right, const std::string& rule,
                                const std::function<bool(Elementwise&)>& edit) {
  int changed = 0;
  for (std::size_t r = 0; r < right.ranks.size(); ++r) {
    const auto passes_of = [&](Plan& plan) {
      std::vector<Elementwise*> passes;
      for (Lane& lane : plan.ranks[r].lanes)
        for (Step& step : lane.steps)
          if (auto* const pass = std::get_if<Elementwise>(&step)) passes.push_back(pass);
      return passes;
    };
    Plan plan = right;
    const std::size_t count = passes_of(plan).size();
    for (std::size_t i = 0; i < count; ++i, plan = right) {
      const std::vector<Elementwise*> passes = passes_of(plan);
      const std::int32_t queue = passes[i]->queue;
      const auto shared = [&](const Elementwise* pass) { return queue >= 0 && pass->queue == queue; };
      if (std::any_of(passes.begin(), passes.begin() + static_cast<std::ptrdiff_t>(i), shared)) continue;
      if (!edit(*passes[i])) continue;
      for (std::size_t j = i + 1; j < count; ++j)
        if (shared(passes[j])) edit(*passes[j]);
      ++changed;
      Proof proof = verify(plan);
      if (proof.ok) proof = verify(plan, Setting::context);
      EXPECT_FALSE(proof.ok) << "rank " << r << ", pass " << i << "\n" << to_text(plan);
      if (!rule.empty()) {
        EXPECT_EQ(proof.rule, rule) << proof.failure;
      }
    }
  }
  EXPECT_GT(changed, 0) << "the plan has no such pass";
}

}  // namespace shingle::test
