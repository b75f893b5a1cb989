// What the verifier says of a plan by hand.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "hand_plan.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"

namespace shingle::test {

inline Problem small(Op op, int world = 2) {
  Problem p;
  p.op = op;
  p.world = world;
  p.m = p.n = 8;
  p.k = 4;
  return p;
}

inline void expect_proven(Hand hand, Setting setting = Setting::alone) {
  hand.count();
  const Proof proof = verify(hand.plan, setting);
  EXPECT_TRUE(proof.ok) << proof.rule << ": " << proof.failure << "\n" << to_text(hand.plan);
}

/// The plan fails by this rule, and the one line says all of this.
inline void expect_wrong(const Plan& plan, const std::string& rule, std::initializer_list<const char*> says,
                         Setting setting = Setting::alone) {
  const Proof proof = verify(plan, setting);
  ASSERT_FALSE(proof.ok) << to_text(plan);
  EXPECT_EQ(proof.rule, rule) << proof.failure;
  for (const char* text : says) EXPECT_THAT(proof.failure, ::testing::HasSubstr(text));
  EXPECT_EQ(proof.failure.find('\n'), std::string::npos);
}
inline void expect_wrong(Hand hand, const std::string& rule, std::initializer_list<const char*> says,
                         Setting setting = Setting::alone) {
  hand.count();
  expect_wrong(hand.plan, rule, says, setting);
}

}  // namespace shingle::test
