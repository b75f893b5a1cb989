// The errors of the C interface: status and text of each wrong argument.
#include "c_api.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"  // fields left out are 0

namespace shingle::c_api_test {
namespace {

class CApiRefuses : public CApi {};

TEST_F(CApiRefuses, Null) {
  std::int32_t number = 0;
  std::int64_t bytes = 0;
  const char* text = nullptr;
  const shingle_operator small = operator_of("gemm+allreduce", 8, 8, 8);
  const shingle_arguments none{.struct_size = sizeof none};
  expect_invalid(shingle_world_create(nullptr, nullptr), "world is null");
  expect_invalid(shingle_world_size(nullptr, &number), "world is null");
  expect_invalid(shingle_world_local_ranks(nullptr, nullptr, &number), "world is null");
  expect_invalid(shingle_context_create(nullptr, nullptr, &context), "world is null");
  expect_invalid(shingle_context_declare(nullptr, &small, &number), "context is null");
  expect_invalid(shingle_context_call(nullptr, 0, 1, &none), "context is null");
  expect_invalid(shingle_context_synchronize(nullptr), "context is null");
  expect_invalid(shingle_context_gathered(nullptr, 0, nullptr), "context is null");
  expect_invalid(shingle_context_gathers_in_order(nullptr, 0, 1, &number), "context is null");
  expect_invalid(shingle_context_extend(nullptr, nullptr, 0), "context is null");
  expect_invalid(shingle_context_arena_bytes(nullptr, &bytes), "context is null");
  expect_invalid(shingle_context_plan_json(nullptr, 0, 1, &text), "context is null");
  expect_invalid(shingle_context_mechanism(nullptr, 0, 1, &text), "context is null");
  expect_invalid(shingle_arena_bytes_needed(nullptr, nullptr, nullptr, &bytes), "operator is null");
  expect_invalid(shingle_arena_bytes_needed(nullptr, nullptr, &small, nullptr), "bytes is null");
  shingle_world_destroy(nullptr);
  shingle_context_destroy(nullptr);
  open(2);
  const std::int32_t op = declare(small);
  expect_invalid(shingle_world_size(world, nullptr), "size is null");
  expect_invalid(shingle_world_local_ranks(world, nullptr, nullptr), "count is null");
  expect_invalid(shingle_context_create(world, nullptr, nullptr), "context is null");
  expect_invalid(shingle_context_declare(context, nullptr, &number), "operator is null");
  expect_invalid(shingle_context_declare(context, &small, nullptr), "op is null");
  expect_invalid(shingle_context_call(context, op, 1, nullptr), "arguments is null");
  expect_invalid(shingle_context_gathered(context, 0, nullptr), "rows is null");
  expect_invalid(shingle_context_gathers_in_order(context, op, 1, nullptr), "in_order is null");
  expect_invalid(shingle_context_extend(context, nullptr, 2), "streams is null");
  expect_invalid(shingle_context_extend(context, nullptr, 1),
                 "stream_count = 1 must be 0 or the 2 local ranks");
  expect_invalid(shingle_context_arena_bytes(context, nullptr), "bytes is null");
  expect_invalid(shingle_context_plan_json(context, op, 1, nullptr), "json is null");
  expect_invalid(shingle_context_mechanism(context, op, 1, nullptr), "mechanism is null");
  const shingle_arguments no_array{.struct_size = sizeof no_array, .matrix_count = 1};
  expect_invalid(shingle_context_call(context, op, 1, &no_array), "arguments.matrices is null");
}

TEST_F(CApiRefuses, WrongOptions) {
  const auto create = [&](const shingle_world_options& options) {
    const shingle_status status = shingle_world_create(&options, &world);
    EXPECT_EQ(world, nullptr);
    return status;
  };
  constexpr std::size_t size = sizeof(shingle_world_options);
  expect_invalid(create({.struct_size = size, .backend = "abacus"}),
                 "options.backend: unknown backend 'abacus'");
  expect_invalid(create({.struct_size = size, .backend = "host", .link = "fast"}), "options.link: ");
  expect_invalid(create({.struct_size = size, .backend = "host", .timeout_us = -1}),
                 "options.timeout_us = -1");
  expect_invalid(create({.struct_size = size, .backend = "host", .ranks = -1}), "options.ranks = -1");
  expect_invalid(create({.struct_size = size, .backend = "host", .ranks = 65}), "65");
  expect_invalid(create({.struct_size = size, .backend = "host", .workers_per_rank = -1}),
                 "workers_per_rank = -1");
#ifndef SHINGLE_WITH_CUDA
  expect_error(create({.struct_size = size, .backend = "cuda"}), SHINGLE_UNSUPPORTED, "no CUDA backend");
#endif
  world = world_of(2);
  const auto make = [&](shingle_context_options options) {
    options.struct_size = sizeof options;
    return shingle_context_create(world, &options, &context);
  };
  expect_invalid(make({.mechanism = "magic"}), "options.mechanism: unknown mechanism 'magic'");
  expect_invalid(make({.mechanism = ""}), "options.mechanism: is empty");
  expect_invalid(make({.mechanism = "chunked chunks=many"}), "options.mechanism: --chunks");
  expect_invalid(make({.mechanism = "fused nose=1"}), "nose");
  expect_invalid(make({.arena_bytes = -1}), "arena_bytes = -1");
  expect_invalid(make({.most_plans = -1}), "options.most_plans = -1");
  expect_invalid(make({.timeout_us = -1}), "options.timeout_us = -1");
  expect_invalid(make({.verify = -1}), "options.verify = -1 must be 0 or 1");
  expect_invalid(make({.registered_bytes = -1}), "registered_bytes = -1 must not be negative");
}

TEST_F(CApiRefuses, WrongOperators) {
  open(2);
  const auto refuse = [&](auto change, const char* part) {
    shingle_operator wrong = operator_of("gemm+allreduce", 8, 8, 8);
    change(wrong);
    std::int32_t op = -7;
    expect_invalid(shingle_context_declare(context, &wrong, &op), part);
    EXPECT_EQ(op, -7);
  };
  refuse([](auto& op) { op.op = nullptr; }, "operator.op is null");
  refuse([](auto& op) { op.op = "gem"; }, "operator.op: ");
  refuse([](auto& op) { op.m = 0; }, "operator: m = 0");
  refuse([](auto& op) { op.n = -3; }, "operator: n = -3");
  refuse([](auto& op) { op.k = 0; }, "operator: k = 0");
  refuse([](auto& op) { op.inner = 4; }, "operator: inner = 4");
  refuse([](auto& op) { op.dtype = 4; }, "operator.dtype = 4 is not 0 (SHINGLE_F32)");
  refuse([](auto& op) { op.dtype = SHINGLE_I32; }, "operator: dtype = i32 is not f32, bf16 or f16");
  refuse([](auto& op) { op.activation = "tanh"; }, "operator.activation: ");
  refuse([](auto& op) { op.transpose_a = 2; }, "operator.transpose_a = 2");
  refuse([](auto& op) { op.transpose_b = 2; }, "operator.transpose_b = 2");
  refuse([](auto& op) { op.bias = 5; }, "operator.bias = 5");
  refuse([](auto& op) { op.norm = 5; }, "operator.norm = 5");
  refuse([](auto& op) { op.residual = 1; }, "operator: a residual needs norm");
  refuse([](auto& op) { op.causal = 7; }, "operator.causal = 7");
  refuse([](auto& op) { op.returns_lse = 2; }, "operator.returns_lse = 2");
  refuse([](auto& op) { op.returns_lse = 1; }, "has no attention");
  refuse([](auto& op) { op.m_step = 3; }, "m_step = 3 must divide m = 8");
  refuse([](auto& op) { op.m_step = -1; }, "m_step = -1 must divide m = 8");
  refuse([](auto& op) { op.f32_sums = 2; }, "operator.f32_sums = 2");
  refuse([](auto& op) { op.f32_sums = 1; }, "gemm+allreduce takes neither a scale nor f32 sums");
  refuse([](auto& op) { op.scale = 0.5; }, "gemm+allreduce takes neither a scale nor f32 sums");
  refuse([](auto& op) { op.op = "allgather", op.scale = 0.5; }, "allgather takes neither a scale");
  refuse([](auto& op) { op.op = "allreduce", op.scale = 1e300; }, "operator: scale = inf must be finite");
  refuse([](auto& op) { op.workers = -1; }, "workers = -1 is outside [0, ");
  refuse([](auto& op) { op.workers = 1 << 20; }, "workers = 1048576 is outside [0, ");
  refuse([](auto& op) { op.capacity = 1; }, "operator: gemm+allreduce has no experts");
  refuse([](auto& op) { op.op = "moe", op.inner = 4, op.experts = 2, op.topk = 1, op.capacity = -1; },
         "operator: capacity = -1 must not be negative");
  refuse([](auto& op) { op.op = "moe", op.inner = 4, op.experts = 3, op.topk = 1, op.capacity = 1; },
         "operator.capacity: routing: 3 experts do not divide among 2 ranks");
  refuse([](auto& op) { op.op = "moe-tp", op.inner = 4, op.experts = 3, op.topk = 1, op.capacity = -1; },
         "operator: capacity = -1 must not be negative");
  refuse([](auto& op) { op.heads = 4; }, "operator: gemm+allreduce has no attention");
  refuse([](auto& op) { op.row_order = 3; }, "operator.row_order = 3");
  refuse([](auto& op) { op.mechanism = "magic"; }, "operator.mechanism: unknown mechanism 'magic'");
  refuse([](auto& op) { op.row_block = 4; }, "operator: row_block = 4");
  refuse([](auto& op) { op.norm = 1, op.norm_epsilon = -1; }, "operator: norm epsilon");
  refuse([](auto& op) { op.op = "alltoall+gemm", op.m = std::int64_t{1} << 40; }, "operator.m = ");
}

TEST_F(CApiRefuses, WrongCalls) {
  open(2);
  const std::int32_t op = declare(operator_of("gemm+allreduce", 8, 4, 2));
  std::vector<float> a(16), b(8);
  std::vector<std::vector<float>> out(2, std::vector<float>(32));
  std::vector<shingle_matrix> right;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    right.push_back(matrix_of(rank, SHINGLE_A, a, 8, 2));
    right.push_back(matrix_of(rank, SHINGLE_B, b, 2, 4));
    right.push_back(matrix_of(rank, SHINGLE_OUT, out[static_cast<std::size_t>(rank)], 8, 4));
  }
  const auto call = [&](std::int32_t number, std::int64_t m, const std::vector<shingle_matrix>& matrices) {
    const shingle_arguments arguments = arguments_of(matrices);
    return shingle_context_call(context, number, m, &arguments);
  };
  expect_invalid(call(op, 0, right), "m = 0");
  expect_invalid(call(op, 9, right), "m = 9 of a call of operator 0 is outside [1, 8]");
  expect_invalid(call(op + 1, 8, right), "operator 1 is not declared");
  expect_invalid(call(-1, 8, right), "operator -1 is not declared");
  expect_invalid(call(op, 7, right), "matrix 'a' of rank 0: 8x2 f32 given, expected 7x2 f32");
  expect_invalid(call(op, 8, {}), "matrix 'a' of rank 0: ");
  const auto refuse = [&](auto change, const char* part) {
    std::vector<shingle_matrix> wrong = right;
    change(wrong[3]);
    expect_invalid(call(op, 8, wrong), part);
  };
  refuse([](auto& matrix) { matrix.role = 20; }, "arguments.matrices[3].role = 20 is outside [0");
  refuse([](auto& matrix) { matrix.role = -1; }, "arguments.matrices[3].role = -1");
  refuse([](auto& matrix) { matrix.role = SHINGLE_BIAS; }, "has no matrix 'bias'");
  refuse([](auto& matrix) { matrix.role = SHINGLE_B; }, "matrix 'b' of rank 1");
  refuse([](auto& matrix) { matrix.rank = 0; }, "given twice");
  refuse([](auto& matrix) { matrix.rank = 2; }, "rank 2 is not a rank of this process");
  refuse([](auto& matrix) { matrix.dtype = 9; }, "arguments.matrices[3].dtype = 9");
  refuse([](auto& matrix) { matrix.dtype = SHINGLE_F16; }, "8x2 f16 given");
  refuse([](auto& matrix) { matrix.rows = 6; }, "matrix 'a' of rank 1: 6x2 f32 given");
  refuse([](auto& matrix) { matrix.row_stride = 1; }, "row_stride = 1");
  refuse([](auto& matrix) { matrix.data = nullptr; }, "matrix 'a' of rank 1: ");
  refuse([](auto& matrix) { matrix.reserved = 1; }, "reserved = 1 must be 0");
  shingle_arguments negative = arguments_of(right);
  negative.matrix_count = -1;
  expect_invalid(shingle_context_call(context, op, 8, &negative), "-1 structs in arguments.matrices");
  const std::vector<std::int32_t> to_0(8, 0);
  const std::int32_t* const destinations[] = {to_0.data(), to_0.data()};
  const std::int64_t rows[] = {8, 8};
  const shingle_routing routing{.struct_size = sizeof routing, .rows = rows, .destinations = destinations};
  shingle_arguments routed = arguments_of(right);
  routed.routing = &routing;
  expect_invalid(shingle_context_call(context, op, 8, &routed), "exchanges no rows");
  EXPECT_EQ(call(op, 8, right), SHINGLE_OK) << shingle_last_error();
  EXPECT_EQ(shingle_context_synchronize(context), SHINGLE_OK)
      << shingle_last_error();  // the matrices end here
}

TEST_F(CApiRefuses, WrongLengths) {
  open(2);
  shingle_operator attention = operator_of("ulysses-attention", 8, 8, 8);
  attention.heads = attention.kv_heads = 2;
  attention.head_dim = 4;
  const std::int32_t op = declare(attention), product = declare(operator_of("gemm+allreduce", 8, 8, 8));
  const auto call = [&](std::int32_t number, std::int64_t m, const std::vector<std::int64_t>& lengths) {
    const shingle_arguments arguments{.struct_size = sizeof arguments,
                                      .lengths = lengths.data(),
                                      .length_count = static_cast<std::int64_t>(lengths.size())};
    return shingle_context_call(context, number, m, &arguments);
  };
  expect_invalid(call(op, 8, {3, 4}), "arguments.lengths has 7 tokens in 2 sequences, but m = 8");
  expect_invalid(call(op, 8, {8, 0}), "arguments.lengths[1] = 0 is outside [1, ");
  expect_invalid(call(op, 9, {3, 6}), "m = 9 of a call of operator 0 is outside [1, 8]");
  expect_invalid(call(product, 8, {3, 5}), "is no attention: a call needs an m, not lengths of sequences");
  shingle_arguments arguments{.struct_size = sizeof arguments, .length_count = 2};
  expect_invalid(shingle_context_call(context, op, 8, &arguments),
                 "arguments.length_count = 2 does not match arguments.lengths");
}

}  // namespace
}  // namespace shingle::c_api_test

#pragma GCC diagnostic pop
