// Worlds, operators and matrices for tests of the C interface.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "shingle/shingle.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"  // fields left out are 0

namespace shingle::c_api_test {

using testing::HasSubstr;

inline shingle_world* world_of(std::int32_t ranks) {
  const shingle_world_options options{
      .struct_size = sizeof options, .backend = "host", .ranks = ranks, .workers_per_rank = 1};
  shingle_world* world = nullptr;
  EXPECT_EQ(shingle_world_create(&options, &world), SHINGLE_OK) << shingle_last_error();
  return world;
}

/// An m×n×k operator; the tests change its other fields.
inline shingle_operator operator_of(const char* op, std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.struct_size = sizeof(shingle_operator), .op = op, .m = m, .n = n, .k = k};
}

inline shingle_matrix matrix_of(std::int32_t rank, std::int32_t role, std::vector<float>& elements,
                                std::int64_t rows, std::int64_t cols) {
  return {.struct_size = sizeof(shingle_matrix),
          .data = elements.data(),
          .rows = rows,
          .cols = cols,
          .rank = rank,
          .role = role};
}

inline shingle_arguments arguments_of(const std::vector<shingle_matrix>& matrices) {
  return {.struct_size = sizeof(shingle_arguments),
          .matrices = matrices.data(),
          .matrix_count = static_cast<std::int32_t>(matrices.size())};
}

/// Small integers, whose sums are exact.
inline std::vector<float> integers(std::int64_t count, unsigned seed) {
  std::mt19937 draw(seed);
  std::vector<float> all(static_cast<std::size_t>(count));
  for (float& element : all) element = static_cast<float>(static_cast<int>(draw() % 9) - 4);
  return all;
}

/// rows×n: rows of A, [first, first + rows), times B.
inline std::vector<float> product(const std::vector<float>& a, const std::vector<float>& b, std::int64_t rows,
                                  std::int64_t n, std::int64_t k, std::int64_t first = 0) {
  std::vector<float> c(static_cast<std::size_t>(rows * n), 0);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t l = 0; l < k; ++l)
        c[static_cast<std::size_t>(i * n + j)] +=
            a[static_cast<std::size_t>((first + i) * k + l)] * b[static_cast<std::size_t>(l * n + j)];
  return c;
}

/// The rows [first, first + rows) of a matrix of n columns.
inline std::vector<float> some_rows(const std::vector<float>& all, std::int64_t first, std::int64_t rows,
                                    std::int64_t n) {
  return {all.begin() + first * n, all.begin() + (first + rows) * n};
}

class CApi : public testing::Test {
 protected:
  ~CApi() override {
    shingle_context_destroy(context);
    shingle_world_destroy(world);
  }

  void open(std::int32_t ranks, const char* mechanism = nullptr) {
    world = world_of(ranks);
    const shingle_context_options options{.struct_size = sizeof options, .mechanism = mechanism};
    ASSERT_EQ(shingle_context_create(world, &options, &context), SHINGLE_OK) << shingle_last_error();
  }
  std::int32_t declare(const shingle_operator& largest) {
    std::int32_t op = -1;
    EXPECT_EQ(shingle_context_declare(context, &largest, &op), SHINGLE_OK) << shingle_last_error();
    return op;
  }
  /// The call must fail with this status and a text that holds this part.
  void expect_error(shingle_status status, shingle_status expected, const char* part) {
    EXPECT_EQ(status, expected);
    EXPECT_THAT(shingle_last_error(), HasSubstr(part));
  }
  void expect_invalid(shingle_status status, const char* part) {
    expect_error(status, SHINGLE_INVALID_ARGUMENT, part);
  }

  shingle_world* world = nullptr;
  shingle_context* context = nullptr;
};

}  // namespace shingle::c_api_test

#pragma GCC diagnostic pop
