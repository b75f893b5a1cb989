// Values by how they are computed: equal numbers are equal bits.
#include "verify/memory/values.hpp"

#include <gtest/gtest.h>

namespace shingle::values_test {
namespace {

TEST(Values, ProductsOfRowsThatAreComputedDifferentlyDiffer) {
  Budget budget;
  ValueTable values(DType::bf16, 2, budget);
  const auto first = values.product(0, 0, 0, 0), again = values.product(0, 0, 1, 0);
  EXPECT_EQ(values.product(0, 0, 2, first), values.product(0, 0, 2, first));
  EXPECT_NE(values.product(0, 0, 2, first), values.product(0, 0, 2, again));
  EXPECT_NE(values.product(0, 0, 2, first), values.product(0, 0, 2, values.stored(first, DType::bf16)));
}

TEST(Values, RowsOfPartsDifferWhereAnyPartDoes) {
  Budget budget;
  ValueTable values(DType::bf16, 2, budget);
  const auto left = values.product(0, 0, 0, 0), right = values.product(0, 0, 1, 0);
  EXPECT_EQ(values.beside(left, left, 4), left);
  EXPECT_EQ(values.beside(left, right, 4), values.beside(left, right, 4));
  EXPECT_NE(values.beside(left, right, 4), values.beside(left, right, 8));
  EXPECT_NE(values.beside(left, right, 4), values.beside(right, left, 4));
}

TEST(Values, ASumOfTwoHasNoOrderAndOfThreeHas) {
  Budget budget;
  ValueTable values(DType::f32, 3, budget);
  const auto a = values.input(0), b = values.input(1), c = values.input(2);
  EXPECT_EQ(values.sum(a, b), values.sum(b, a));
  EXPECT_NE(values.sum(values.sum(a, b), c), values.sum(values.sum(b, c), a));
}

}  // namespace
}  // namespace shingle::values_test
