// The C interface: experts whose tokens are routed on the device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "c_api.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"  // fields left out are 0

namespace shingle::c_api_slots_test {
namespace {

using namespace c_api_test;

/// Four experts of two ranks, which take two rows of each rank.
shingle_operator dispatch() {
  shingle_operator largest = operator_of("alltoall+grouped-gemm", 4, 3, 5);
  largest.experts = 4, largest.topk = 2, largest.capacity = 2;
  return largest;
}

shingle_matrix numbers_of(std::int32_t rank, std::int32_t role, std::vector<std::int32_t>& elements,
                          std::int64_t rows, std::int64_t cols) {
  shingle_matrix matrix{};
  matrix.struct_size = sizeof matrix;
  matrix.data = elements.data();
  matrix.rows = rows, matrix.cols = cols;
  matrix.rank = rank, matrix.role = role, matrix.dtype = SHINGLE_I32;
  return matrix;
}

class CApiSlots : public CApi {
 protected:
  /// Calls the dispatch with these ids, two for each token.
  void call(std::int32_t op, std::int64_t m, std::vector<std::int32_t> (&ids)[2]) {
    std::vector<shingle_matrix> matrices;
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      const auto tokens = static_cast<std::int64_t>(ids[rank].size()) / 2;
      a[rank] = integers(tokens * 5, 11 + static_cast<unsigned>(rank));
      out[rank].assign(2 * 2 * 2 * 3, -99);
      counts[rank].assign(4, -1);
      dropped[rank].assign(2, -1);
      matrices.push_back(matrix_of(rank, SHINGLE_A, a[rank], tokens, 5));
      matrices.push_back(matrix_of(rank, SHINGLE_B, b[rank], 10, 3));
      matrices.push_back(matrix_of(rank, SHINGLE_OUT, out[rank], 8, 3));
      matrices.push_back(numbers_of(rank, SHINGLE_TOPK_IDS, ids[rank], tokens, 2));
      matrices.push_back(numbers_of(rank, SHINGLE_COUNTS, counts[rank], 2, 2));
      matrices.push_back(numbers_of(rank, SHINGLE_DROPPED, dropped[rank], 1, 2));
    }
    const shingle_arguments arguments = arguments_of(matrices);
    ASSERT_EQ(shingle_context_call(context, op, m, &arguments), SHINGLE_OK) << shingle_last_error();
    ASSERT_EQ(shingle_context_synchronize(context), SHINGLE_OK) << shingle_last_error();
  }
  /// Row `slot` of those of a rank's expert from a source must be this token's product, or untouched (-1).
  void expect_row(int rank, int expert, int source, int slot, int token) {
    const std::vector<float> got = some_rows(out[rank], (expert * 2 + source) * 2 + slot, 1, 3);
    const std::vector<float> weight = some_rows(b[rank], expert * 5, 5, 3);
    EXPECT_EQ(got, token < 0 ? std::vector<float>(3, -99) : product(a[source], weight, 1, 3, 5, token))
        << "rank " << rank << ", expert " << expert << ", source " << source << ", slot " << slot;
  }

  std::vector<float> a[2], b[2] = {integers(30, 1), integers(30, 2)}, out[2];
  std::vector<std::int32_t> counts[2], dropped[2];
};

TEST_F(CApiSlots, AnyIdsByOneOperator) {
  for (const char* mechanism : {"sequential", "fused"}) {
    shingle_operator largest = dispatch();
    largest.mechanism = mechanism;
    if (context == nullptr) open(2);
    const std::int32_t op = declare(largest);
    // Rank 0: expert 0 is asked for four times, first by choice 0 of the tokens; rank 1: one token.
    std::vector<std::int32_t> ids[2] = {{0, 3, 0, 0, 0, 2}, {1, -1}};
    call(op, 4, ids);
    EXPECT_EQ(dropped[0], (std::vector<std::int32_t>{2, 0}));
    EXPECT_EQ(dropped[1], (std::vector<std::int32_t>{0, 0}));
    EXPECT_EQ(counts[0], (std::vector<std::int32_t>{2, 0, 0, 1})) << "sources × experts 0, 1";
    EXPECT_EQ(counts[1], (std::vector<std::int32_t>{1, 1, 0, 0})) << "sources × experts 2, 3";
    expect_row(0, 0, 0, 0, 0);
    expect_row(0, 0, 0, 1, 1);
    expect_row(0, 1, 1, 0, 0);
    expect_row(0, 1, 1, 1, -1);
    expect_row(0, 1, 0, 0, -1);
    expect_row(1, 0, 0, 0, 2);
    expect_row(1, 1, 0, 0, 0);
    expect_row(1, 1, 0, 1, -1);
    // Other ids, and ids of no expert, without another plan.
    std::vector<std::int32_t> others[2] = {{}, {9, 2, -5, 2, 2, 3}};
    call(op, 4, others);
    EXPECT_EQ(dropped[0], (std::vector<std::int32_t>{0, 0}));
    EXPECT_EQ(dropped[1], (std::vector<std::int32_t>{1, 2}));
    EXPECT_EQ(counts[1], (std::vector<std::int32_t>{0, 0, 2, 1}));
    expect_row(1, 0, 1, 0, 2);
    expect_row(1, 0, 1, 1, 0);
    expect_row(1, 1, 1, 0, 2);
  }
}

/// Both ranks have a slice of both experts, and the tokens of both ranks.
TEST_F(CApiSlots, TokensOfAllRanksForSlicesOfExperts) {
  open(2);
  for (const char* mechanism : {"sequential", "chunked", "signal", "fused"}) {
    shingle_operator largest = operator_of("allgather+grouped-gemm", 4, 3, 5);
    largest.experts = 2, largest.topk = 2, largest.capacity = 2, largest.mechanism = mechanism;
    std::vector<std::int32_t> ids[2] = {{0, 1, 0, 0, 0, 1}, {1, -1}};
    call(declare(largest), 4, ids);
    EXPECT_EQ(dropped[0], (std::vector<std::int32_t>{2, 0}));
    EXPECT_EQ(dropped[1], (std::vector<std::int32_t>{0, 0}));
    for (const int rank : {0, 1}) {
      EXPECT_EQ(counts[rank], (std::vector<std::int32_t>{2, 2, 0, 1})) << "sources × experts";
      expect_row(rank, 0, 0, 0, 0);
      expect_row(rank, 0, 0, 1, 1);
      expect_row(rank, 0, 1, 0, -1);
      expect_row(rank, 1, 0, 0, 0);
      expect_row(rank, 1, 0, 1, 2);
      expect_row(rank, 1, 1, 0, 0);
      expect_row(rank, 1, 1, 1, -1);
    }
  }
}

TEST_F(CApiSlots, TellMemoryAndPlanBefore) {
  open(2, "fused");
  const shingle_operator largest = dispatch();
  const shingle_world_options machine{
      .struct_size = sizeof machine, .backend = "host", .ranks = 2, .workers_per_rank = 1};
  const shingle_context_options options{.struct_size = sizeof options, .mechanism = "fused"};
  std::int64_t needed = 0, held = 0;
  ASSERT_EQ(shingle_arena_bytes_needed(&machine, &options, &largest, &needed), SHINGLE_OK)
      << shingle_last_error();
  const std::int32_t op = declare(largest);
  EXPECT_EQ(shingle_context_arena_bytes(context, &held), SHINGLE_OK);
  EXPECT_EQ(held, needed);
  std::vector<std::int32_t> ids[2] = {{0, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0}};
  call(op, 4, ids);
  EXPECT_EQ(shingle_context_arena_bytes(context, &held), SHINGLE_OK);
  EXPECT_EQ(held, needed) << "whatever the ids";
  const char* json = nullptr;
  ASSERT_EQ(shingle_context_plan_json(context, op, 4, &json), SHINGLE_OK) << shingle_last_error();
  EXPECT_THAT(json, HasSubstr("assign-slots"));
}

TEST_F(CApiSlots, RefuseARouting) {
  open(2);
  const std::int32_t op = declare(dispatch());
  const std::int64_t rows[] = {2, 0};
  const std::int32_t to[] = {0, 1};
  const std::int32_t* const destinations[] = {to, nullptr};
  const shingle_routing routing{
      .struct_size = sizeof routing, .rows = rows, .destinations = destinations, .experts = 4};
  shingle_arguments arguments{.struct_size = sizeof arguments};
  arguments.routing = &routing;
  expect_invalid(shingle_context_call(context, op, 0, &arguments), "routes on the device");
}

}  // namespace
}  // namespace shingle::c_api_slots_test

#pragma GCC diagnostic pop
