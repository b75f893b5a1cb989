// The contract of World and Executable themselves: memory, errors, epochs and timelines.
#pragma once

#include <deque>

#include "contract_support.hpp"

namespace shingle::contract {

inline Plan copying_plan(int ranks, int depth = 1) {
  Maker make(ranks);
  const std::int32_t a = make.buffer(Role::a, 9, 8), out = make.buffer(Role::out, 9, 8),
                     staged = make.buffer(Role::internal, 9, 8, DType::f32, depth);
  const std::int32_t ready = make.counter({1, 3});
  for (int rank = 0; rank < ranks; ++rank) {
    make.step(rank, 0, Copy{make.all(a, rank), make.all(staged, rank)});
    make.step(rank, 0, Notify{{ready, rank, 0}, 1});
    make.step(rank, 1, Await{{ready, rank, 0}, 1});
    Elementwise pass = Maker::pass(make.all(staged, rank), make.all(out, rank), 3, 8);
    pass.notify = {{ready, {rank}, {0, 3}}};
    make.step(rank, 1, pass);
    make.step(
        rank, 1,
        Maker::collective(CollectiveKind::allgather, make.rows(a, rank, 0, 0), make.rows(a, rank, 0, 0)));
  }
  return make.plan;
}

TEST_P(BackendContract, WorldDescribesItself) {
  EXPECT_FALSE(world->backend().empty());
  EXPECT_GE(ranks, 1);
  EXPECT_GE(world->machine().workers, 1);
  EXPECT_FALSE(world->capabilities().native_dtypes.empty());
  const std::set<int> local = [&] {
    const auto l = world->local_ranks();
    return std::set<int>(l.begin(), l.end());
  }();
  EXPECT_FALSE(local.empty());
  EXPECT_LT(*local.rbegin(), ranks);
  world->barrier();
  EXPECT_THAT(world->all_max({1.0, double(*local.rbegin())}), testing::ElementsAre(1.0, ranks - 1.0));
}

TEST_P(BackendContract, MemoryHoldsWhatTheHostPutsThere) {
  for (const int rank : world->local_ranks()) {
    const DeviceBuffer memory = world->allocate(rank, 1000);
    EXPECT_GE(memory.bytes(), 1000u);
    auto* bytes = static_cast<std::byte*>(memory.data());
    const std::vector<std::byte> sent(10, std::byte(7 + rank));
    world->fill(rank, bytes, 0xa5, 1000);
    world->upload(rank, bytes + 501, sent.data(), sent.size());
    std::vector<std::byte> expected(1000, std::byte{0xa5}), got(1000);
    std::copy(sent.begin(), sent.end(), expected.begin() + 501);
    world->download(rank, got.data(), bytes, got.size());
    EXPECT_EQ(got, expected);
    if (world->capabilities().host_accessible) {
      EXPECT_EQ(std::memcmp(bytes, expected.data(), expected.size()), 0);
    }
    world->upload(rank, nullptr, nullptr, 0);
    world->download(rank, nullptr, nullptr, 0);
    world->fill(rank, nullptr, 0, 0);
  }
}

TEST_P(BackendContract, RefusesWhatDoesNotFit) {
  const Plan plan = copying_plan(ranks);
  EXPECT_THROW((void)world->compile(copying_plan(ranks + 1)), InvalidArgument);
  Plan some = plan;
  some.ranks.pop_back();  // not all ranks are planned
  EXPECT_THROW((void)world->compile(some), InvalidArgument);
  auto executable = world->compile(plan);
  EXPECT_THROW(executable->bind(world->local_ranks()[0], Role::b, nullptr), InvalidArgument);
  EXPECT_THROW(executable->bind(ranks, Role::a, nullptr), InvalidArgument);
  EXPECT_THROW(executable->run({}), InvalidArgument);  // nothing is bound
  Bench bench(*world, plan);
  EXPECT_THROW(bench.executable->run({.epochs = 0}), InvalidArgument);
  EXPECT_THROW(bench.executable->run({.timeout_us = 0}), InvalidArgument);
  bench.run();  // and is none the worse for it
}

TEST_P(BackendContract, InternalMemoryCountsItsDepth) {
  for (const int depth : {1, 2}) {
    Bench bench(*world, copying_plan(ranks, depth));
    const std::int64_t bytes = bench.executable->internal_bytes(world->local_ranks()[0]);
    EXPECT_GE(bytes, 9 * 8 * 4 * depth);
    EXPECT_LE(bytes, 9 * 8 * 4 * depth + served().extra_bytes);
    bench.run(3);
    bench.expect(Role::out, [](int rank, std::int64_t row, std::int64_t col) {
      return element(rank, Role::a, row, col);
    });
  }
}

/// A plan that reads internal memory before writing it sees what poison() left there.
TEST_P(BackendContract, PoisonIsNotANumber) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    Maker make(ranks);
    const std::int32_t out = make.buffer(Role::out, 4, 4, type),
                       staged = make.buffer(Role::internal, 4, 4, type);
    for (int rank = 0; rank < ranks; ++rank) {
      make.step(rank, 0, Copy{make.all(staged, rank), make.all(out, rank)});
      make.step(rank, 0, Fill{make.all(staged, rank)});
    }
    Bench bench(*world, make.plan);
    bench.run();
    bench.expect(Role::out, [](int, std::int64_t, std::int64_t) { return std::nan(""); });
    bench.run();
    bench.expect(Role::out, [](int, std::int64_t, std::int64_t) { return 0.0; });
    bench.poison();
    bench.run();
    bench.expect(Role::out, [](int, std::int64_t, std::int64_t) { return std::nan(""); });
  }
}

TEST_P(BackendContract, BindingAgainMovesTheResult) {
  Bench bench(*world, copying_plan(ranks));
  bench.run();
  std::vector<DeviceBuffer> other;
  for (const int rank : world->local_ranks()) {
    other.push_back(world->allocate(rank, 9 * 8 * 4));
    world->fill(rank, other.back().data(), 0xff, 9 * 8 * 4);
    bench.executable->bind(rank, Role::out, other.back().data());
  }
  bench.poison();
  bench.run();
  bench.expect(Role::out, [](int, std::int64_t, std::int64_t) { return std::nan(""); });
  for (std::size_t i = 0; i < other.size(); ++i) {
    const int rank = world->local_ranks()[i];
    std::vector<float> got(9 * 8);
    world->download(rank, got.data(), other[i].data(), 9 * 8 * 4);
    EXPECT_EQ(got[9], element(rank, Role::a, 1, 1));
  }
}

/// Rows of a matrix in memory with gaps between them. The gaps hold NaN, and must keep it.
class ApartRows {
 public:
  ApartRows(World& world, int rank, std::int64_t rows, std::int64_t cols, std::int64_t stride)
      : world_(world), rank_(rank), rows_(rows), cols_(cols), stride_(stride) {
    host_.assign(static_cast<std::size_t>(rows * stride), std::nanf(""));
    memory_ = world.allocate(rank, host_.size() * sizeof(float));
    upload();
  }
  void set(Role role) {
    for (std::int64_t row = 0; row < rows_; ++row)
      for (std::int64_t col = 0; col < cols_; ++col)
        host_[static_cast<std::size_t>(row * stride_ + col)] = element(rank_, role, row, col);
    upload();
  }
  MatrixMemory memory() const { return {memory_.data(), stride_}; }
  void expect(Role role) {
    world_.download(rank_, host_.data(), memory_.data(), memory_.bytes());
    for (std::int64_t row = 0; row < rows_; ++row)
      for (std::int64_t col = 0; col < stride_; ++col) {
        const float got = host_[static_cast<std::size_t>(row * stride_ + col)];
        if (col < cols_)
          EXPECT_EQ(got, element(rank_, role, row, col)) << "row " << row << ", column " << col;
        else
          EXPECT_TRUE(std::isnan(got)) << "row " << row << ", column " << col << " is outside the matrix";
      }
  }

 private:
  void upload() { world_.upload(rank_, memory_.data(), host_.data(), memory_.bytes()); }

  World& world_;
  int rank_;
  std::int64_t rows_, cols_, stride_;
  std::vector<float> host_;
  DeviceBuffer memory_;
};

TEST_P(BackendContract, RowsOfAMatrixMayLieApart) {
  Bench bench(*world, copying_plan(ranks));
  std::deque<ApartRows> inputs, outputs;
  for (const int rank : world->local_ranks()) {
    inputs.emplace_back(*world, rank, 9, 8, 11).set(Role::a);
    outputs.emplace_back(*world, rank, 9, 8, 10);
    bench.executable->bind(rank, Role::a, inputs.back().memory());
    bench.executable->bind(rank, Role::out, outputs.back().memory());
  }
  bench.poison();
  bench.run(2);
  for (ApartRows& output : outputs) output.expect(Role::a);
  EXPECT_THROW(bench.executable->bind(world->local_ranks()[0], Role::a, {inputs[0].memory().data, 7}),
               InvalidArgument);
}

/// Between two runs the user may free the matrices. Memory that is allocated and bound anew often has the
/// addresses of the former.
TEST_P(BackendContract, MatricesMayBeFreedAndOthersAllocatedAtTheirAddresses) {
  const auto executable = world->compile(copying_plan(ranks));
  std::set<const void*> addresses;
  bool again = false;
  for (int round = 0; round < 6; ++round) {
    const Role values = round % 2 == 0 ? Role::a : Role::b;
    const std::int64_t stride = round / 2 == 1 ? 11 : 8;
    std::deque<ApartRows> inputs, outputs;
    for (const int rank : world->local_ranks()) {
      inputs.emplace_back(*world, rank, 9, 8, stride).set(values);
      outputs.emplace_back(*world, rank, 9, 8, stride);
      executable->bind(rank, Role::a, inputs.back().memory());
      executable->bind(rank, Role::out, outputs.back().memory());
      again = !addresses.insert(inputs.back().memory().data).second || again;
    }
    executable->run({.epochs = 2, .timeout_us = 20e6});
    for (ApartRows& output : outputs) output.expect(values);
  }
  if (!again) GTEST_SKIP() << "the allocator gave no address twice";
}

/// Calls on one arena: other matrices each time, and no wait between them.
TEST_P(BackendContract, CallsBringTheirMatrices) {
  const Plan plan = copying_plan(ranks);
  std::shared_ptr<Arena> arena;
  try {
    arena = world->make_arena(1 << 16);
  } catch (const Unsupported& reason) {
    GTEST_SKIP() << reason.what();
  }
  EXPECT_EQ(arena->bytes(), 1 << 16);
  world->prepare(plan, arena);
  const auto first = world->compile(plan, arena, 20e6), second = world->compile(plan, arena, 20e6);
  const std::vector<void*> streams(world->local_ranks().size(), nullptr);
  std::deque<ApartRows> inputs, outputs;
  std::vector<CallMatrix> matrices;
  for (std::uint32_t call = 0; call < 12; ++call) {
    matrices.clear();
    for (const int rank : world->local_ranks()) {
      const std::int64_t stride = call % 3 == 0 ? 8 : 9 + call % 2;
      inputs.emplace_back(*world, rank, 9, 8, stride).set(Role::a);
      outputs.emplace_back(*world, rank, 9, 8, 19 - stride);
      matrices.push_back({rank, Role::a, inputs.back().memory()});
      matrices.push_back({rank, Role::out, outputs.back().memory()});
    }
    (call % 4 == 1 ? second : first)->enqueue({.op = 0, .m = 9, .number = call}, matrices, streams);
  }
  matrices.pop_back();
  EXPECT_THROW(world->compile(plan, arena, 20e6)->enqueue({}, matrices, streams), InvalidArgument);
  first->synchronize();
  second->synchronize();
  for (ApartRows& output : outputs) output.expect(Role::a);
  const auto small = world->make_arena(0);
  EXPECT_THROW((void)world->compile(plan, small, 20e6), InvalidArgument);
}

TEST_P(BackendContract, TimelineCoversEveryStepOfEveryRank) {
  Bench bench(*world, copying_plan(ranks));
  bench.run();
  EXPECT_TRUE(bench.run(1).spans.empty());
  const RunReport report = bench.run(2, true);
  EXPECT_GT(report.elapsed_us, 0);
  std::multiset<std::tuple<int, int, int, int, int>> seen;
  for (const Span& span : report.spans) {
    EXPECT_LE(span.begin_us, span.end_us);
    EXPECT_LE(span.end_us - span.begin_us, report.elapsed_us * 1.001 + 1);
    seen.insert({span.rank, span.lane, span.step, span.epoch, span.group});
  }
  std::multiset<std::tuple<int, int, int, int, int>> expected;
  for (int rank = 0; rank < ranks; ++rank)
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const int step : {0, 1}) expected.insert({rank, 0, step, epoch, -1});
      expected.insert({rank, 1, 0, epoch, -1});
      // The second group of tiles: the first is empty.
      expected.insert({rank, 1, 1, epoch, served().group_spans ? 1 : -1});
      expected.insert({rank, 1, 2, epoch, -1});
    }
  EXPECT_EQ(seen, expected);
}

}  // namespace shingle::contract
