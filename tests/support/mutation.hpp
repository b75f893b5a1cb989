// Plans that are broken in one place, each of which has to be rejected.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <optional>
#include <string>

#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"
#include "support/plan_edit.hpp"
#include "support/random_problem.hpp"

namespace shingle::test {

template <class S>
using Wanted = std::function<bool(const At&, const S&)>;

/// A step for which `wanted` holds, drawn from all of them.
inline std::optional<At> pick_step(const Plan& plan, Dice& dice, const Wanted<Step>& wanted) {
  std::vector<At> found;
  for_each_step(plan, [&](const At& at, const Step& step) {
    if (wanted(at, step)) found.push_back(at);
  });
  if (found.empty()) return std::nullopt;
  return found[static_cast<std::size_t>(dice.size(0, static_cast<std::int64_t>(found.size()) - 1))];
}

/// A step of a kind for which `wanted` holds, drawn from all of them.
template <class S>
std::optional<At> pick(const Plan& plan, Dice& dice, const Wanted<S>& wanted) {
  return pick_step(plan, dice, [&](const At& at, const Step& step) {
    const auto* s = std::get_if<S>(&step);
    return s && wanted(at, *s);
  });
}

/// A step of a kind, drawn from all of them.
template <class S>
std::optional<At> pick_kind(const Plan& plan, Dice& dice) {
  return pick<S>(plan, dice, [](const At&, const S&) { return true; });
}

/// A step of a plan, as its kind.
template <class S>
S& step_as(Plan& plan, const At& at) {
  return std::get<S>(step_of(plan, at));
}

/// Changes a step of a kind for which `wanted` holds; false where there is none.
template <class S>
bool change(Plan& plan, Dice& dice, const Wanted<S>& wanted, const std::function<void(S&)>& spoil) {
  const auto at = pick<S>(plan, dice, wanted);
  if (at) spoil(std::get<S>(step_of(plan, *at)));
  return at.has_value();
}

inline const std::string& counter_name(const Plan& plan, const CounterRef& count) {
  return plan.counters[static_cast<std::size_t>(count.counter)].name;
}

/// Breaks a plan, or returns false where there is nothing of the kind to break.
using Mutator = bool (*)(Plan&, Dice&);
struct Mutation {
  const char* name;
  Mutator apply;
};

struct MutantCount {
  int wanted = 100;
  std::uint64_t seed = 41;
};

/// Draws plans until the wanted number of mutants has been caught; a single survivor fails.
inline void expect_caught(const Mutation& mutation, std::optional<Plan> (*random_plan)(Dice&),
                          MutantCount count = {}) {
  const int wanted = count.wanted;
  Dice dice(count.seed);
  int caught = 0;
  for (int tries = 0; caught < wanted && tries < 1000 * wanted; ++tries) {
    const auto plan = random_plan(dice);
    if (!plan) continue;
    Plan mutant = *plan;
    if (!mutation.apply(mutant, dice) || mutant == *plan) continue;
    const Proof proof = verify(mutant);
    if (proof.ok) {
      ASSERT_TRUE(verify(*plan)) << "the plan was wrong before";
      FAIL() << "survived: " << mutation.name << "\n" << to_text(*plan) << "\nmutant\n" << to_text(mutant);
    }
    EXPECT_TRUE(proof.failure.find_first_of("0123456789") != std::string::npos) << proof.failure;
    ++caught;
  }
  EXPECT_EQ(caught, wanted) << "too few plans have a place for this mutation";
}

inline std::string mutation_name(const testing::TestParamInfo<Mutation>& param) {
  std::string text = param.param.name;
  std::ranges::replace_if(text, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return text;
}

}  // namespace shingle::test
