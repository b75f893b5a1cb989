// The functions of the C interface: their results on several ranks against plain loops.
#include "c_api.hpp"

#include <cstring>
#include <string>
#include <thread>

#include "base/log.hpp"
#include "shingle/base/dtype.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/version.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"  // fields left out are 0

namespace shingle::c_api_test {
namespace {

TEST_F(CApi, TellsItsVersion) {
  EXPECT_STREQ(shingle_version(), SHINGLE_VERSION);
  EXPECT_STREQ(shingle_commit(), commit());
  EXPECT_STREQ(shingle_status_name(SHINGLE_OK), "ok");
  EXPECT_STREQ(shingle_status_name(SHINGLE_INTERNAL_ERROR), "internal error");
  EXPECT_STREQ(shingle_status_name(SHINGLE_INTERNAL_ERROR + 1), "unknown status");
  EXPECT_STREQ(shingle_status_name(-1), "unknown status");
}

TEST_F(CApi, TellsWhatIsHere) {
  const char* text = nullptr;
  ASSERT_EQ(shingle_info(&text), SHINGLE_OK) << shingle_last_error();
  for (const char* const part : {"cpu: ", "backend host: ", "mechanism fused: "})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_EQ(shingle_info(nullptr), SHINGLE_INVALID_ARGUMENT);
}

TEST_F(CApi, ListsTheRanksOfAWorld) {
  world = world_of(3);
  std::int32_t size = 0, count = 0;
  EXPECT_EQ(shingle_world_size(world, &size), SHINGLE_OK);
  EXPECT_EQ(size, 3);
  EXPECT_EQ(shingle_world_local_ranks(world, nullptr, &count), SHINGLE_OK);
  ASSERT_EQ(count, 3);
  std::vector<std::int32_t> ranks(3, -1);
  EXPECT_EQ(shingle_world_local_ranks(world, ranks.data(), &count), SHINGLE_OK);
  EXPECT_EQ(ranks, (std::vector<std::int32_t>{0, 1, 2}));
  count = 2;
  expect_invalid(shingle_world_local_ranks(world, ranks.data(), &count), "count = 2 is less than the 3");
  EXPECT_EQ(count, 2);
}

TEST_F(CApi, SumsProductsOverRanks) {
  for (const std::int32_t ranks : {2, 4})
    for (const char* mechanism : {static_cast<const char*>(nullptr), "fused", "chunked chunks=3"}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + (mechanism != nullptr ? mechanism : "automatic"));
      open(ranks, mechanism);
      constexpr std::int64_t n = 24, k = 16;
      const std::int32_t sum = declare(operator_of("gemm+allreduce", 96, n, k));
      const std::int32_t scatter = declare(operator_of("gemm+reducescatter", 96, n, k));
      EXPECT_EQ(sum, 0);
      EXPECT_EQ(scatter, 1);
      for (const std::int64_t m : {96, 1, 33}) {
        std::vector<std::vector<float>> a, b, whole, shard;
        std::vector<shingle_matrix> summed, scattered;
        std::vector<float> expected(static_cast<std::size_t>(m * n), 0);
        const std::int64_t most = (m + ranks - 1) / ranks;
        const auto first = [&](std::int64_t rank) { return std::min(m, rank * most); };
        for (std::int32_t rank = 0; rank < ranks; ++rank) {
          a.push_back(integers(m * k, static_cast<unsigned>(2 * rank)));
          b.push_back(integers(k * n, static_cast<unsigned>(2 * rank + 1)));
          whole.emplace_back(static_cast<std::size_t>(m * n), -1e9f);
          shard.emplace_back(static_cast<std::size_t>((first(rank + 1) - first(rank)) * n), -1e9f);
          const std::vector<float> part = product(a.back(), b.back(), m, n, k);
          for (std::size_t i = 0; i < part.size(); ++i) expected[i] += part[i];
        }
        for (std::int32_t rank = 0; rank < ranks; ++rank) {
          const auto r = static_cast<std::size_t>(rank);
          for (auto* matrices : {&summed, &scattered}) {
            matrices->push_back(matrix_of(rank, SHINGLE_A, a[r], m, k));
            matrices->push_back(matrix_of(rank, SHINGLE_B, b[r], k, n));
          }
          summed.push_back(matrix_of(rank, SHINGLE_OUT, whole[r], m, n));
          scattered.push_back(matrix_of(rank, SHINGLE_OUT, shard[r], first(rank + 1) - first(rank), n));
        }
        const shingle_arguments one = arguments_of(summed), other = arguments_of(scattered);
        ASSERT_EQ(shingle_context_call(context, sum, m, &one), SHINGLE_OK) << shingle_last_error();
        ASSERT_EQ(shingle_context_call(context, scatter, m, &other), SHINGLE_OK) << shingle_last_error();
        ASSERT_EQ(shingle_context_synchronize(context), SHINGLE_OK) << shingle_last_error();
        for (std::int32_t rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(whole[static_cast<std::size_t>(rank)], expected) << "m = " << m << ", rank " << rank;
          EXPECT_EQ(shard[static_cast<std::size_t>(rank)],
                    some_rows(expected, first(rank), first(rank + 1) - first(rank), n))
              << "m = " << m << ", rank " << rank;
        }
      }
      shingle_context_destroy(context);
      shingle_world_destroy(world);
      context = nullptr;
      world = nullptr;
    }
}

/// B is stored transposed, a bias is added, the elements are bf16, rows lie apart, and streams are given.
TEST_F(CApi, PassesOnAllFieldsOfAnOperator) {
  open(2);
  constexpr std::int64_t m = 10, n = 8, k = 4, stride = 12;
  shingle_operator largest = operator_of("allgather+gemm", m, n, k);
  largest.dtype = SHINGLE_BF16;
  largest.transpose_b = 1;
  largest.bias = 1;
  largest.activation = "relu";
  const std::int32_t op = declare(largest);
  const std::vector<float> a = integers(m * k, 1), b = integers(n * k, 2), bias = integers(n, 3);
  const auto narrowed = [](const std::vector<float>& from) {
    std::vector<std::uint16_t> to;
    for (const float element : from) to.push_back(to_bf16(element));
    return to;
  };
  std::vector<std::uint16_t> all_a = narrowed(a), all_b = narrowed(b), all_bias = narrowed(bias);
  std::vector<std::uint16_t> out[2];
  std::vector<shingle_matrix> matrices;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    out[rank].assign(m * stride, 7);
    const auto add = [&](std::int32_t role, std::uint16_t* data, std::int64_t rows, std::int64_t cols,
                         std::int64_t row_stride) {
      matrices.push_back({.struct_size = sizeof(shingle_matrix),
                          .data = data,
                          .rows = rows,
                          .cols = cols,
                          .row_stride = row_stride,
                          .rank = rank,
                          .role = role,
                          .dtype = SHINGLE_BF16});
    };
    add(SHINGLE_A, all_a.data() + rank * 5 * k, 5, k, 0);
    add(SHINGLE_B, all_b.data(), n, k, k);
    add(SHINGLE_BIAS, all_bias.data(), 1, n, 0);
    add(SHINGLE_OUT, out[rank].data(), m, n, stride);
  }
  void* const streams[2] = {};
  shingle_arguments arguments = arguments_of(matrices);
  arguments.streams = streams;
  arguments.stream_count = 2;
  ASSERT_EQ(shingle_context_call(context, op, m, &arguments), SHINGLE_OK) << shingle_last_error();
  ASSERT_EQ(shingle_context_synchronize(context), SHINGLE_OK) << shingle_last_error();
  for (const auto& of_rank : out)
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < stride; ++j) {
        float expected = bias[static_cast<std::size_t>(j % n)];
        for (std::int64_t l = 0; l < k; ++l)
          expected += a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(j % n * k + l)];
        const std::uint16_t bits = of_rank[static_cast<std::size_t>(i * stride + j)];
        EXPECT_EQ(bits, j < n ? to_bf16(std::max(expected, 0.0f)) : 7) << i << ", " << j;
      }
  arguments.stream_count = 1;
  expect_invalid(shingle_context_call(context, op, m, &arguments), "stream_count = 1");
  arguments.stream_count = 2;
  arguments.streams = nullptr;
  expect_invalid(shingle_context_call(context, op, m, &arguments), "arguments.streams is null");
}

TEST_F(CApi, SendsRowsByARouting) {
  open(2);
  constexpr std::int64_t n = 6, k = 3;
  const std::int32_t op = declare(operator_of("gemm+alltoall", 8, n, k));
  // Rank 0 sends rows 0 and 2 to rank 1; rank 1 keeps its only row.
  const std::vector<std::int32_t> of_0{1, 0, 1}, of_1{1};
  const std::int32_t* const destinations[] = {of_0.data(), of_1.data()};
  const std::int64_t rows[] = {3, 1};
  shingle_routing routing{.struct_size = sizeof routing, .rows = rows, .destinations = destinations};
  std::vector<float> a[2] = {integers(3 * k, 1), integers(k, 2)},
                     b[2] = {integers(k * n, 3), integers(k * n, 4)};
  std::vector<float> out[2] = {std::vector<float>(n), std::vector<float>(3 * n)};
  std::vector<shingle_matrix> matrices;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    matrices.push_back(matrix_of(rank, SHINGLE_A, a[rank], rows[rank], k));
    matrices.push_back(matrix_of(rank, SHINGLE_B, b[rank], k, n));
    matrices.push_back(matrix_of(rank, SHINGLE_OUT, out[rank], rank == 0 ? 1 : 3, n));
  }
  shingle_arguments arguments = arguments_of(matrices);
  arguments.routing = &routing;
  ASSERT_EQ(shingle_context_call(context, op, 0, &arguments), SHINGLE_OK) << shingle_last_error();
  ASSERT_EQ(shingle_context_synchronize(context), SHINGLE_OK) << shingle_last_error();
  EXPECT_EQ(out[0], product(a[0], b[0], 1, n, k, 1));
  std::vector<float> expected = product(a[0], b[0], 1, n, k, 0);
  for (const std::vector<float>& more : {product(a[0], b[0], 1, n, k, 2), product(a[1], b[1], 1, n, k)})
    expected.insert(expected.end(), more.begin(), more.end());
  EXPECT_EQ(out[1], expected);

  expect_invalid(shingle_context_call(context, op, 2, &arguments), "m = 2 must be 0 or the 3 rows");
  arguments.routing = nullptr;
  expect_invalid(shingle_context_call(context, op, 3, &arguments), "needs a routing");
  arguments.routing = &routing;
  routing.rows = nullptr;
  expect_invalid(shingle_context_call(context, op, 0, &arguments), "routing.rows is null");
  const std::int64_t negative[] = {3, -1};
  routing.rows = negative;
  expect_invalid(shingle_context_call(context, op, 0, &arguments), "routing.rows[1] = -1");
  const std::int32_t* const no_rows[] = {of_0.data(), nullptr};
  routing = {.struct_size = sizeof routing, .rows = rows, .destinations = no_rows};
  expect_invalid(shingle_context_call(context, op, 0, &arguments), "routing.destinations[1] is null");
  const std::int32_t nowhere[] = {2};
  const std::int32_t* const wrong[] = {of_0.data(), nowhere};
  routing.destinations = wrong;
  expect_invalid(shingle_context_call(context, op, 0, &arguments), "routing: ");
  const std::vector<std::int32_t> nine(9, 0);
  const std::int64_t too_many[] = {9, 1};
  const std::int32_t* const to_0[] = {nine.data(), of_1.data()};
  routing = {.struct_size = sizeof routing, .rows = too_many, .destinations = to_0};
  expect_invalid(shingle_context_call(context, op, 0, &arguments), "sends 9 rows");
  const char* json = nullptr;
  expect_invalid(shingle_context_plan_json(context, op, 3, &json), "needs a routing");
}

TEST_F(CApi, AttendsToSequencesWhoseLengthsTheCallGives) {
  open(2);
  constexpr std::int64_t dim = 4, most = 12;
  shingle_operator attention = operator_of("allgather+attention", most, dim, dim);
  attention.heads = attention.kv_heads = 1;
  attention.head_dim = dim;
  const std::int32_t op = declare(attention);
  std::vector<float> q[2], keys[2], values[2], out[2];
  std::vector<shingle_matrix> matrices;
  const auto bind = [&](std::int64_t rows) {
    matrices.clear();
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      q[rank] = integers(rows * dim, 1), keys[rank].assign(static_cast<std::size_t>(rows * dim), 0);
      values[rank] = integers(rows * dim, 2 + static_cast<unsigned>(rank));
      out[rank].assign(static_cast<std::size_t>(rows * dim), -1);
      for (const auto& [role, matrix] : {std::pair{SHINGLE_A, &q[rank]},
                                         {SHINGLE_KEYS, &keys[rank]},
                                         {SHINGLE_VALUES, &values[rank]},
                                         {SHINGLE_OUT, &out[rank]}})
        matrices.push_back(matrix_of(rank, role, *matrix, rows, dim));
    }
  };
  // Keys are 0, so that a token gets the mean of the values of its sequence.
  const auto expect_means = [&](std::int64_t rows, const std::vector<std::int64_t>& lengths) {
    std::vector<float> all = values[0];
    all.insert(all.end(), values[1].begin(), values[1].end());
    std::int64_t token = 0;
    for (const std::int64_t length : lengths)
      for (const std::int64_t first = token; token < first + length; ++token)
        for (std::int64_t col = 0; col < dim; ++col) {
          float sum = 0;
          for (std::int64_t i = first; i < first + length; ++i)
            sum += all[static_cast<std::size_t>(i * dim + col)];
          EXPECT_NEAR(out[token / rows][static_cast<std::size_t>(token % rows * dim + col)],
                      sum / static_cast<float>(length), 1e-5);
        }
  };
  for (const auto& [rows, lengths] : std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>>{
           {6, {5, 1, 6}}, {6, {12}}, {6, {2, 10}}, {4, {5, 3}}, {6, {5, 1, 6}}}) {
    bind(rows);
    shingle_arguments arguments = arguments_of(matrices);
    arguments.lengths = lengths.data();
    arguments.length_count = static_cast<std::int64_t>(lengths.size());
    ASSERT_EQ(shingle_context_call(context, op, 2 * rows, &arguments), SHINGLE_OK) << shingle_last_error();
    ASSERT_EQ(shingle_context_synchronize(context), SHINGLE_OK) << shingle_last_error();
    expect_means(rows, lengths);
  }
  bind(6);
  const shingle_arguments one_sequence = arguments_of(matrices);
  ASSERT_EQ(shingle_context_call(context, op, 12, &one_sequence), SHINGLE_OK) << shingle_last_error();
  ASSERT_EQ(shingle_context_synchronize(context), SHINGLE_OK) << shingle_last_error();
  expect_means(6, {12});
}

TEST_F(CApi, TellsMemoryBeforeAndAfter) {
  open(4);
  std::int64_t bytes = -1, needed = -1;
  EXPECT_EQ(shingle_context_arena_bytes(context, &bytes), SHINGLE_OK);
  EXPECT_EQ(bytes, 0);
  const shingle_world_options machine{
      .struct_size = sizeof machine, .backend = "host", .ranks = 4, .workers_per_rank = 1};
  std::int64_t largest = 0;
  for (const char* op : {"gemm+reducescatter", "gemm+allreduce", "gemm+alltoall"}) {
    const shingle_operator declared = operator_of(op, 200, 64, 32);
    EXPECT_EQ(shingle_arena_bytes_needed(&machine, nullptr, &declared, &needed), SHINGLE_OK)
        << shingle_last_error();
    largest = std::max(largest, needed);
    declare(declared);
    EXPECT_EQ(shingle_context_arena_bytes(context, &bytes), SHINGLE_OK);
    EXPECT_EQ(bytes, largest) << op;
  }
  EXPECT_GT(bytes, 0);
  const shingle_context_options least{.struct_size = sizeof least, .arena_bytes = 1 << 20};
  const shingle_operator small = operator_of("gemm+allreduce", 8, 8, 8);
  EXPECT_EQ(shingle_arena_bytes_needed(&machine, &least, &small, &needed), SHINGLE_OK);
  EXPECT_EQ(needed, 1 << 20);
}

TEST_F(CApi, GivesRegisteredMemory) {
  world = world_of(1);
  const shingle_context_options options{.struct_size = sizeof options, .registered_bytes = 4096};
  ASSERT_EQ(shingle_context_create(world, &options, &context), SHINGLE_OK) << shingle_last_error();
  void *all = nullptr, *none = nullptr;
  ASSERT_EQ(shingle_context_allocate(context, 0, 4096, &all), SHINGLE_OK) << shingle_last_error();
  std::memset(all, 1, 4096);
  expect_error(shingle_context_allocate(context, 0, 1, &none), SHINGLE_UNSUPPORTED, "no block of 1 bytes");
  expect_invalid(shingle_context_allocate(context, 1, 1, &none), "rank 1 is not a rank of this process");
  expect_invalid(shingle_context_release(context, static_cast<char*>(all) + 512), "is not registered memory");
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(shingle_context_release(context, all), SHINGLE_OK);

  EXPECT_EQ(shingle_plugged_malloc(16, 0, nullptr), nullptr) << "no context is plugged";
  ASSERT_EQ(shingle_context_plug(context), SHINGLE_OK);
  void* const plugged = shingle_plugged_malloc(4000, 0, nullptr);
  EXPECT_EQ(plugged, all) << "the same calls give the same offsets";
  EXPECT_EQ(shingle_plugged_malloc(4000, 0, nullptr), nullptr);
  shingle_plugged_free(plugged, 4000, 0, nullptr);
  void* const again = shingle_plugged_malloc(4000, 0, nullptr);
  EXPECT_EQ(again, all);
  shingle_context_destroy(context);
  context = nullptr;
  std::memset(again, 2, 4000);  // a framework may hold memory for longer
  shingle_plugged_free(again, 4000, 0, nullptr);
  EXPECT_EQ(shingle_plugged_malloc(16, 0, nullptr), nullptr) << "the context is gone";
}

TEST_F(CApi, ShowsThePlanOfACall) {
  open(2, "chunked chunks=4");
  const std::int32_t op = declare(operator_of("gemm+allreduce", 64, 8, 8));
  const char* mechanism = nullptr;
  ASSERT_EQ(shingle_context_mechanism(context, op, 64, &mechanism), SHINGLE_OK) << shingle_last_error();
  EXPECT_STREQ(mechanism, "chunked");
  const char* json = nullptr;
  ASSERT_EQ(shingle_context_plan_json(context, op, 64, &json), SHINGLE_OK) << shingle_last_error();
  EXPECT_EQ(std::get<Problem>(parse_plan(json).work).m, 64);
  expect_invalid(shingle_context_plan_json(context, op, 65, &json), "outside [1, 64]");
  expect_invalid(shingle_context_mechanism(context, op, 0, &mechanism), "outside [1, 64]");
}

TEST_F(CApi, AnOperatorMayHaveAMechanismOfItsOwn) {
  open(2, "chunked chunks=4");
  shingle_operator largest = operator_of("gemm+allreduce", 64, 8, 8);
  const std::int32_t usual = declare(largest);
  largest.mechanism = "ring slices=2";
  const std::int32_t own = declare(largest);
  const char* mechanism = nullptr;
  ASSERT_EQ(shingle_context_mechanism(context, usual, 64, &mechanism), SHINGLE_OK) << shingle_last_error();
  EXPECT_STREQ(mechanism, "chunked");
  ASSERT_EQ(shingle_context_mechanism(context, own, 64, &mechanism), SHINGLE_OK) << shingle_last_error();
  EXPECT_STREQ(mechanism, "ring");
}

TEST_F(CApi, ContextsKeepTheirWorld) {
  open(2);
  shingle_world_destroy(world);
  world = nullptr;
  const std::int32_t op = declare(operator_of("gemm+allreduce", 8, 8, 8));
  const char* mechanism = nullptr;
  EXPECT_EQ(shingle_context_mechanism(context, op, 8, &mechanism), SHINGLE_OK);
}

// Where callers of the first version find the last field of each struct. Fields are added behind these.
static_assert(offsetof(shingle_world_options, workers_per_rank) == 36);
static_assert(offsetof(shingle_context_options, registered_bytes) == 48);
static_assert(offsetof(shingle_operator, row_order) == 124);
static_assert(offsetof(shingle_operator, mechanism) == 128);
static_assert(offsetof(shingle_operator, capacity) == 148);
static_assert(offsetof(shingle_operator, scale) == 152);
static_assert(offsetof(shingle_operator, m_step) == 160);
static_assert(offsetof(shingle_operator, f32_sums) == 168);
static_assert(offsetof(shingle_operator, workers) == 172);
static_assert(offsetof(shingle_matrix, reserved) == 52);
static_assert(offsetof(shingle_routing, destinations) == 16);
static_assert(offsetof(shingle_arguments, stream_count) == 36);

/// Options as a later version may have them.
struct Newer {
  shingle_world_options known;
  std::int64_t added;
};

TEST_F(CApi, TakesStructsOfOtherVersions) {
  Newer newer{.known = {.struct_size = sizeof newer, .backend = "host", .ranks = 2}, .added = 0};
  EXPECT_EQ(shingle_world_create(&newer.known, &world), SHINGLE_OK) << shingle_last_error();
  shingle_world_destroy(world);
  world = nullptr;
  newer.added = std::int64_t{1} << 56;
  expect_invalid(shingle_world_create(&newer.known, &world), "update the library");

  // An older caller, whose struct ends before `ranks`: what lies there is not read.
  shingle_world_options older{
      .struct_size = offsetof(shingle_world_options, ranks), .backend = "host", .ranks = -5};
  EXPECT_EQ(shingle_world_create(&older, &world), SHINGLE_OK) << shingle_last_error();
  std::int32_t size = 0;
  EXPECT_EQ(shingle_world_size(world, &size), SHINGLE_OK);
  EXPECT_EQ(size, 4);
  shingle_world_destroy(world);
  world = nullptr;

  for (const std::size_t wrong : {std::size_t{0}, std::size_t{7}, std::size_t{1} << 20}) {
    older.struct_size = wrong;
    expect_invalid(shingle_world_create(&older, &world), "options.struct_size = ");
  }
  const shingle_operator no_size{.op = "gemm", .m = 1, .n = 1, .k = 1};
  std::int64_t bytes = 0;
  expect_invalid(shingle_arena_bytes_needed(nullptr, nullptr, &no_size, &bytes), "operator.struct_size = 0");
}

/// The distance between the structs of an array is the caller's.
TEST_F(CApi, TakesArraysOfOtherVersions) {
  struct NewerMatrix {
    shingle_matrix known;
    std::int64_t added = 0;
  };
  open(1);
  const std::int32_t op = declare(operator_of("gemm", 1, 1, 1));
  std::vector<float> a{3}, b{5}, out{0};
  NewerMatrix matrices[] = {{matrix_of(0, SHINGLE_A, a, 1, 1)},
                            {matrix_of(0, SHINGLE_B, b, 1, 1)},
                            {matrix_of(0, SHINGLE_OUT, out, 1, 1)}};
  for (NewerMatrix& matrix : matrices) matrix.known.struct_size = sizeof matrix;
  const shingle_arguments arguments{
      .struct_size = sizeof arguments, .matrices = &matrices[0].known, .matrix_count = 3};
  ASSERT_EQ(shingle_context_call(context, op, 1, &arguments), SHINGLE_OK) << shingle_last_error();
  ASSERT_EQ(shingle_context_synchronize(context), SHINGLE_OK);
  EXPECT_EQ(out[0], 15);
  matrices[1].added = 1;
  expect_invalid(shingle_context_call(context, op, 1, &arguments), "arguments.matrices[1].struct_size");
  matrices[1] = {matrix_of(0, SHINGLE_B, b, 1, 1)};
  expect_invalid(shingle_context_call(context, op, 1, &arguments), "differs from the");
}

TEST_F(CApi, KeepsTheLastErrorOfEachThread) {
  expect_invalid(shingle_world_size(nullptr, nullptr), "world is null");
  std::thread([] {
    EXPECT_STREQ(shingle_last_error(), "");
    EXPECT_EQ(shingle_context_synchronize(nullptr), SHINGLE_INVALID_ARGUMENT);
    EXPECT_STREQ(shingle_last_error(), "context is null");
  }).join();
  EXPECT_STREQ(shingle_last_error(), "world is null");
  world = world_of(1);  // a call that succeeds leaves the text
  EXPECT_STREQ(shingle_last_error(), "world is null");
}

TEST_F(CApi, SendsLogLinesToTheCaller) {
  std::vector<std::string> lines[3];
  shingle_set_log(
      [](void* user, std::int32_t level, const char* text) {
        static_cast<std::vector<std::string>*>(user)[level].push_back(text);
      },
      lines);
  open(2, "chunked");
  const std::int32_t op = declare(operator_of("gemm+allreduce", 64, 8, 8));
  const char* mechanism = nullptr;
  EXPECT_EQ(shingle_context_mechanism(context, op, 32, &mechanism), SHINGLE_OK);
  log_line(LogLevel::warning, "watch out");
  shingle_set_log(nullptr, nullptr);
  log_line(LogLevel::info, "not any more");
  ASSERT_EQ(lines[SHINGLE_LOG_INFO].size(), 1u);
  EXPECT_THAT(lines[SHINGLE_LOG_INFO][0], HasSubstr("operator 0: gemm+allreduce"));
  ASSERT_EQ(lines[SHINGLE_LOG_DEBUG].size(), 1u);
  EXPECT_THAT(lines[SHINGLE_LOG_DEBUG][0], HasSubstr("by chunked"));
  EXPECT_EQ(lines[SHINGLE_LOG_WARNING], std::vector<std::string>{"watch out"});
}

}  // namespace
}  // namespace shingle::c_api_test

#pragma GCC diagnostic pop
