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

TEST(Values, OwnersComeFirstAndUnrounded) {
  Budget budget;
  ValueTable values(DType::bf16, 4, budget);
  const auto own = [&](int rank) { return values.product(rank, 0, 0, 0); };
  const auto part = [&](int rank) { return values.stored(own(rank), DType::bf16); };
  const auto fold = [&](std::initializer_list<ValueTable::Id> terms) {
    ValueTable::Id sum = 0;
    for (const ValueTable::Id term : terms) sum = sum == 0 ? term : values.sum(sum, term);
    return values.stored(sum, DType::bf16);
  };
  const Rounding statement{Summing::owner_first, DType::bf16};
  const auto holds = [&](ValueTable::Id result, int owner) {
    return values.satisfies(result, statement, owner);
  };
  const auto of_2 = fold({own(2), part(0), part(1), part(3)});
  EXPECT_TRUE(holds(of_2, 2));
  EXPECT_FALSE(holds(of_2, 1));
  EXPECT_TRUE(holds(of_2, -1));                                      // some rank's
  EXPECT_TRUE(holds(fold({part(0), own(2), part(1), part(3)}), 2));  // two have no order
  for (const auto wrong :
       {fold({part(0), part(1), own(2), part(3)}), fold({part(2), part(0), part(1), part(3)}),
        fold({own(2), part(1), part(0), part(3)}), fold({own(2), part(0), part(1)}),
        fold({own(2), own(0), part(1), part(3)}), fold({part(0), part(1), part(2), part(3)}),
        fold({own(2), part(0), part(1), part(3), part(3)})})
    for (int owner = -1; owner < 4; ++owner)
      EXPECT_FALSE(holds(wrong, owner)) << owner << values.text_of(wrong);
}

}  // namespace
}  // namespace shingle::values_test
