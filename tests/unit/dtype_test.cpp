#include "shingle/base/dtype.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "shingle/base/error.hpp"

namespace shingle::dtype_test {
namespace {

TEST(DType, NamesBothWays) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) EXPECT_EQ(parse_dtype(name(type)), type);
  EXPECT_EQ(parse_dtype("fp32"), DType::f32);
  EXPECT_EQ(parse_dtype("float32"), DType::f32);
  EXPECT_EQ(parse_dtype("bfloat16"), DType::bf16);
  EXPECT_EQ(parse_dtype("fp16"), DType::f16);
  EXPECT_EQ(parse_dtype("half"), DType::f16);
  for (const char* text : {"", "f64", "F32", "int8"})
    EXPECT_THROW(parse_dtype(text), InvalidArgument) << text;
}

TEST(DType, IndicesAreNoElementsOfAnOperator) {
  EXPECT_EQ(name(DType::i32), "i32");
  EXPECT_EQ(size_bytes(DType::i32), 4u);
  EXPECT_FALSE(is_floating(DType::i32));
  EXPECT_TRUE(is_floating(DType::f16));
  EXPECT_THROW(parse_dtype("i32"), InvalidArgument);
}

TEST(DType, EpsilonIsTheStepAboveOne) {
  EXPECT_EQ(epsilon(DType::f32), std::numeric_limits<float>::epsilon());
  EXPECT_EQ(epsilon(DType::bf16), static_cast<double>(from_bf16(to_bf16(1.0f) + 1)) - 1.0);
  EXPECT_EQ(epsilon(DType::f16), static_cast<double>(from_f16(to_f16(1.0f) + 1)) - 1.0);
}

// The conversions of both 16-bit types go through the same laws.
struct Half {
  DType type;
  std::uint16_t (*narrow)(float);
  float (*widen)(std::uint16_t);
};

class HalfTest : public ::testing::TestWithParam<Half> {};

TEST_P(HalfTest, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float wide = GetParam().widen(half);
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(GetParam().widen(GetParam().narrow(wide)))) << bits;
    } else {
      ASSERT_EQ(GetParam().narrow(wide), half) << bits;
    }
  }
}

TEST_P(HalfTest, RoundsToNearestAndTiesToEven) {
  // Neighbours of the same sign differ by one in their bits; infinity stands where the next power would.
  const std::uint16_t infinity = GetParam().narrow(std::numeric_limits<float>::infinity());
  for (std::uint16_t bits = 0; bits + 1 < infinity; ++bits) {
    const auto next = static_cast<std::uint16_t>(bits + 1);
    const float low = GetParam().widen(bits);
    const float high = GetParam().widen(next);
    const float middle = low + (high - low) / 2;    // exact: fp32 has digits to spare
    if (middle == low || middle == high) continue;  // but for the least subnormals of bf16
    ASSERT_EQ(GetParam().narrow(middle), bits % 2 == 0 ? bits : next) << bits;
    ASSERT_EQ(GetParam().narrow(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(GetParam().narrow(std::nextafter(middle, high)), next) << bits;
    ASSERT_EQ(GetParam().narrow(-middle), GetParam().narrow(middle) | 0x8000) << bits;
  }
}

TEST_P(HalfTest, OverflowIsInfinityAndNanStays) {
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(GetParam().widen(GetParam().narrow(most)), std::numeric_limits<float>::infinity());
  EXPECT_EQ(GetParam().widen(GetParam().narrow(-most)), -std::numeric_limits<float>::infinity());
  // A NaN whose payload lies in the bits that are cut off must not become an infinity.
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu})
    EXPECT_TRUE(std::isnan(GetParam().widen(GetParam().narrow(std::bit_cast<float>(bits))))) << bits;
}

TEST_P(HalfTest, ArraysConvertAsElementsDo) {
  std::vector<float> values;
  for (int i = -500; i <= 500; ++i) values.push_back(static_cast<float>(i) * 0.377f);
  std::vector<std::uint16_t> halves(values.size());
  narrow(GetParam().type, values.data(), halves.data(), values.size());
  std::vector<float> back(values.size());
  widen(GetParam().type, halves.data(), back.data(), back.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(halves[i], GetParam().narrow(values[i]));
    EXPECT_EQ(back[i], GetParam().widen(halves[i]));
    EXPECT_EQ(load_element(GetParam().type, halves.data(), i), back[i]);
  }
  store_element(GetParam().type, halves.data(), 3, 2.5f);
  EXPECT_EQ(load_element(GetParam().type, halves.data(), 3), 2.5f);
  EXPECT_EQ(halves[2], GetParam().narrow(values[2]));
  EXPECT_EQ(halves[4], GetParam().narrow(values[4]));
}

INSTANTIATE_TEST_SUITE_P(Types, HalfTest,
                         ::testing::Values(Half{DType::bf16, to_bf16, from_bf16},
                                           Half{DType::f16, to_f16, from_f16}),
                         [](const auto& test) { return std::string(name(test.param.type)); });

TEST(DType, F32IsCopied) {
  const float values[] = {1.1f, -0.0f, std::numeric_limits<float>::denorm_min()};
  float copy[3];
  narrow(DType::f32, values, copy, 3);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(copy[1]), 0x80000000u);
  EXPECT_EQ(load_element(DType::f32, copy, 2), values[2]);
  EXPECT_EQ(size_bytes(DType::f32), 4u);
  EXPECT_EQ(size_bytes(DType::bf16), 2u);
}

}  // namespace
}  // namespace shingle::dtype_test
