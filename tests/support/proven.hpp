// Plans that must have a proof.
#pragma once

#include <gtest/gtest.h>

#include "shingle/plan/json.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"

namespace shingle::test {

/// Proves a plan alone and in a context. JSON keeps it.
inline void expect_proven(const Plan& plan) {
  for (const Setting setting : {Setting::alone, Setting::context}) {
    const Proof proof = verify(plan, setting);
    ASSERT_TRUE(proof.ok) << describe(plan.work) << "\n"
                          << proof.rule << ": " << proof.failure << "\n"
                          << to_text(plan);
  }
  ASSERT_EQ(plan_from_json(to_json(plan)), plan);
}

}  // namespace shingle::test
