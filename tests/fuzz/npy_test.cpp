// Fuzz of the .npy reader: whatever the bytes, a matrix or InvalidArgument, and no more memory than the bytes
// justify.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "check/npy.hpp"
#include "shingle/base/error.hpp"

namespace shingle {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto budget = std::chrono::seconds(2);  // a bound for slow machines; the rounds suffice on others

int accepted = 0;

void feed(const std::string& bytes) {
  try {
    const NpyArray array = parse_npy(std::as_bytes(std::span(bytes)), "fuzz");
    ++accepted;
    ASSERT_EQ(array.data.size(), static_cast<std::size_t>(array.rows * array.cols) * size_bytes(array.dtype));
    ASSERT_LE(array.data.size(), bytes.size());
  } catch (const InvalidArgument& error) {
    ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
}

class NpyFuzz : public ::testing::TestWithParam<unsigned> {
 protected:
  std::mt19937_64 random_{GetParam()};
  Clock::time_point end_ = Clock::now() + budget;

  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
  template <std::size_t N>
  std::string pick(const char* const (&words)[N]) {
    return words[below(N)];
  }

  /// A file whose parts are mostly right.
  std::string plausible() {
    static constexpr const char* descrs[] = {"'<f4'", "'<f2'",         "'<u2'", "'<f8'",
                                             "'>f4'", "[('a','<f4')]", "'",     "None"};
    static constexpr const char* orders[] = {"False", "True", "Tru", "0", ""};
    static constexpr const char* extents[] = {"0",
                                              "1",
                                              "2",
                                              "3",
                                              "16",
                                              "2147483647",
                                              "4294967296",
                                              "-1",
                                              "18446744073709551615",
                                              "99999999999999999999999",
                                              "",
                                              "1.5",
                                              "x"};
    const bool tame = below(2) == 0;
    std::string shape = "(" + (tame ? std::to_string(below(5)) : pick(extents)) + ",";
    if (below(4) != 0) shape += tame ? std::to_string(below(5)) : pick(extents);
    shape += ")";
    std::string text = "{'descr': " + (tame ? descrs[below(3)] : pick(descrs)) +
                       ", 'fortran_order': " + (tame ? orders[below(2)] : pick(orders)) +
                       ", 'shape': " + shape + "}";
    text.append(below(4), ' ');
    std::string file = "\x93NUMPY";
    const std::size_t major = tame ? 1 + below(3) : below(6);
    file += static_cast<char>(major);
    file += '\0';
    const std::size_t length = text.size() + (tame ? 0 : below(3));
    for (std::size_t i = 0; i < (major == 1 ? 2u : 4u); ++i) file += static_cast<char>(length >> (8 * i));
    file += text;
    for (std::size_t i = 2 * below(40); i > 0; --i) file += static_cast<char>(random_());
    return file;
  }
  std::string mutated(std::string bytes) {
    for (std::size_t i = below(4); i > 0 && !bytes.empty(); --i) {
      const std::size_t at = below(bytes.size());
      switch (below(4)) {
        case 0:
          bytes[at] = static_cast<char>(random_());
          break;
        case 1:
          bytes.erase(at, 1 + below(8));
          break;
        case 2:
          bytes.insert(at, bytes.substr(below(bytes.size()), below(16)));
          break;
        default:
          bytes.resize(at);
          break;
      }
    }
    return bytes;
  }
};

TEST_P(NpyFuzz, PlausibleFilesAndTheirMutants) {
  accepted = 0;
  for (int round = 0; round < 15'000 && Clock::now() < end_; ++round) {
    const std::string file = plausible();
    feed(file);
    feed(mutated(file));
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 10);  // else the fuzz would only ever see the first check
}

TEST_P(NpyFuzz, EveryPrefixAndNoise) {
  const std::string file = plausible();
  for (std::size_t length = 0; length <= file.size(); ++length) feed(file.substr(0, length));
  for (int round = 0; round < 10'000 && Clock::now() < end_; ++round) {
    std::string noise = below(2) == 0 ? "\x93NUMPY\x01" : "";
    for (std::size_t i = below(200); i > 0; --i) noise += static_cast<char>(random_());
    feed(noise);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, NpyFuzz, ::testing::Values(1u, 2u));

}  // namespace
}  // namespace shingle
