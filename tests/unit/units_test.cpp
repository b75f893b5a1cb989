#include "shingle/base/units.hpp"

#include <gtest/gtest.h>

#include "shingle/base/error.hpp"

namespace shingle::units_test {
namespace {

TEST(ParseSize, TakesBinarySuffixes) {
  EXPECT_EQ(parse_size("0"), 0);
  EXPECT_EQ(parse_size("512"), 512);
  EXPECT_EQ(parse_size("512B"), 512);
  EXPECT_EQ(parse_size("8K"), 8 << 10);
  EXPECT_EQ(parse_size("8k"), 8 << 10);
  EXPECT_EQ(parse_size("8KB"), 8 << 10);
  EXPECT_EQ(parse_size("8KiB"), 8 << 10);
  EXPECT_EQ(parse_size("128M"), std::int64_t{128} << 20);
  EXPECT_EQ(parse_size("4G"), std::int64_t{4} << 30);
  EXPECT_EQ(parse_size("3T"), std::int64_t{3} << 40);
  EXPECT_EQ(parse_size(" 16 MiB "), 16 << 20);
}

TEST(ParseSize, KeepsEveryDigit) {
  EXPECT_EQ(parse_size("4611686018427387903"), (std::int64_t{1} << 62) - 1);
  EXPECT_EQ(parse_size("4611686018427387904"), std::int64_t{1} << 62);
}

TEST(ParseSize, RefusesTheRest) {
  for (const char* text :
       {"", " ", "-1", "+1", "K", "x", "1.5M", "1e9", "0x10", "12Q", "12 34", "1KK", "nan", "8Ki",
        "4611686018427387905", "4194305T", "4503599627370497K", "99999999999999999999"})
    EXPECT_THROW(parse_size(text), InvalidArgument) << text;
}

TEST(ParseLink, TakesRateAndLatencyInEitherOrder) {
  EXPECT_EQ(parse_link("8GB/s,10us"), (Link{8, 10}));
  EXPECT_EQ(parse_link("10us, 8GB/s"), (Link{8, 10}));
  EXPECT_EQ(parse_link("400Gb/s"), (Link{50, 0}));
  EXPECT_EQ(parse_link("250MB/s"), (Link{0.25, 0}));
  EXPECT_EQ(parse_link("1.5ms"), (Link{0, 1500}));
  EXPECT_FALSE(parse_link("none").paced());
  EXPECT_TRUE(parse_link("1us").paced());
}

TEST(ParseLink, RefusesTheRest) {
  for (const char* text :
       {"", "fast", "8GB", "8XB/s", "-8GB/s", "0GB/s", "inf GB/s", ",10us", "8GB/s;10us"}) {
    EXPECT_THROW(parse_link(text), InvalidArgument) << text;
  }
}

TEST(Link, TransferTimeIsLatencyPlusBytesOverRate) {
  EXPECT_DOUBLE_EQ((Link{8, 10}).transfer_us(8e6), 1010);  // 8 MB at 8e9 bytes/s is 1 ms
  EXPECT_DOUBLE_EQ((Link{0, 10}).transfer_us(8e6), 10);
  EXPECT_DOUBLE_EQ(Link{}.transfer_us(8e6), 0);
}

TEST(ParseTime, TakesUnits) {
  EXPECT_DOUBLE_EQ(parse_time_us("10us"), 10);
  EXPECT_DOUBLE_EQ(parse_time_us("250ms"), 250e3);
  EXPECT_DOUBLE_EQ(parse_time_us("30s"), 30e6);
  EXPECT_DOUBLE_EQ(parse_time_us("30"), 30e6);
  EXPECT_DOUBLE_EQ(parse_time_us("2m"), 120e6);
  EXPECT_DOUBLE_EQ(parse_time_us("0.5 s"), 0.5e6);
  for (const char* text : {"", "s", "-1s", "nan", "inf", "1h", "1e999s", "1 s s"})
    EXPECT_THROW(parse_time_us(text), InvalidArgument) << text;
}

TEST(Format, ReadsWell) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1.5 * 1024 * 1024), "1.5 MiB");
  EXPECT_EQ(format_bytes(5e15), "4547.5 TiB");
  EXPECT_EQ(format_us(412), "412 us");
  EXPECT_EQ(format_us(3200), "3.20 ms");
  EXPECT_EQ(format_us(2.5e6), "2.50 s");
}

}  // namespace
}  // namespace shingle::units_test
