// Flat buckets of data parallelism as operators of a context: in place, scaled, summed in fp32, with little
// staging memory.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "shingle/api/context.hpp"
#include "shingle/base/dtype.hpp"
#include "shingle/base/error.hpp"
#include "shingle/host/host.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle::buckets_test {
namespace {

constexpr std::int64_t width = 8;

Problem bucket(Op op, int ranks, std::int64_t elements, DType dtype = DType::f32) {
  return {.op = op, .world = ranks, .m = elements / width, .n = width, .k = width, .dtype = dtype};
}

Params engines(CopyVariant variant, std::int32_t slices) {
  return CopyEngineParams{
      .variant = variant, .trigger = EngineTrigger::direct, .sum_slices = slices, .sum_workers = 1};
}

/// A bucket on each rank. bf16 is held as its upper 16 bits.
template <class T>
using Buckets = std::vector<std::vector<T>>;

Buckets<float> random_buckets(int ranks, std::int64_t elements, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> draw;
  Buckets<float> all(static_cast<std::size_t>(ranks), std::vector<float>(static_cast<std::size_t>(elements)));
  for (auto& of_rank : all)
    for (float& x : of_rank) x = draw(bits);
  return all;
}

Buckets<std::uint16_t> as_bf16(const Buckets<float>& all) {
  Buckets<std::uint16_t> narrow_all;
  for (const auto& of_rank : all) {
    narrow_all.emplace_back(of_rank.size());
    narrow(DType::bf16, of_rank.data(), narrow_all.back().data(), of_rank.size());
  }
  return narrow_all;
}

Argument matrix(int rank, Role role, void* data, std::int64_t elements, DType dtype) {
  return {rank, role, {data, {elements / width, width}, dtype}};
}

std::vector<CopyVariant> variants(bool gathers) {
  std::vector<CopyVariant> all{CopyVariant::pcpy, CopyVariant::b2b, CopyVariant::ring};
  if (gathers) all.push_back(CopyVariant::bcst);
  return all;
}

TEST(Buckets, GatherInPlace) {
  for (const int ranks : {2, 3, 4}) {
    const std::int64_t shard = 4 * width, all = ranks * shard;
    for (const CopyVariant variant : variants(true)) {
      const auto world = make_thread_world(ranks, {.workers_per_rank = 1});
      const auto registered = static_cast<std::int64_t>(sizeof(float)) * all;
      Context context(*world, {.registered_bytes = registered, .verify = true});
      const int op = context.declare(bucket(Op::allgather, ranks, all), {engines(variant, 0), ranks});
      EXPECT_EQ(context.arena_bytes(), 0) << "shards go straight to their places";
      const Buckets<float> given = random_buckets(ranks, shard, 5);
      std::vector<DeviceBuffer> out;
      std::vector<Argument> arguments;
      for (int r = 0; r < ranks; ++r) {
        out.push_back(context.allocate(r, registered));
        auto* const at = static_cast<float*>(out.back().data());
        std::fill_n(at, all, std::nanf(""));
        std::ranges::copy(given[static_cast<std::size_t>(r)], at + r * shard);
        arguments.push_back(matrix(r, Role::a, at + r * shard, shard, DType::f32));
        arguments.push_back(matrix(r, Role::out, at, all, DType::f32));
      }
      context.call(op, all / width, arguments);
      context.synchronize();
      for (const DeviceBuffer& whole : out)
        for (int r = 0; r < ranks; ++r)
          EXPECT_EQ(std::memcmp(static_cast<float*>(whole.data()) + r * shard,
                                given[static_cast<std::size_t>(r)].data(),
                                static_cast<std::size_t>(shard) * sizeof(float)),
                    0)
              << name(variant) << ", shard " << r << " of " << ranks;
    }
  }
}

/// No step but the copy from A stores to a rank's own shard, so A may be that shard.
TEST(Buckets, NoPeerStoresToTheOwnShardOfAGather) {
  for (int ranks = 2; ranks <= 6; ++ranks)
    for (const CopyVariant variant : variants(true)) {
      const Problem p = bucket(Op::allgather, ranks, ranks * 3 * width);
      const Plan plan = make_plan(p, Machine{}, engines(variant, 0)).value();
      const auto check = [&](const Slice& from, const Slice& to) {
        if (plan.buffers[static_cast<std::size_t>(to.buffer)].role != Role::out) return;
        const std::int64_t own = to.rank * p.shard_rows();
        const bool reaches = to.row < own + p.shard_rows() && own < to.row + to.rows;
        EXPECT_EQ(reaches,
                  plan.buffers[static_cast<std::size_t>(from.buffer)].role == Role::a && from.rank == to.rank)
            << name(variant) << " on " << ranks << " ranks";
      };
      for (const RankPlan& rank : plan.ranks)
        for (const Lane& lane : rank.lanes)
          for (const Step& step : lane.steps) {
            EXPECT_FALSE(std::holds_alternative<Elementwise>(step));
            if (const auto* copy = std::get_if<Copy>(&step)) check(copy->from, copy->to);
            if (const auto* both = std::get_if<Broadcast>(&step))
              for (const Slice& to : both->to) check(both->from, to);
          }
    }
}

/// Means of bf16 gradients: in fp32 in rank order, not rounded (f32_sums) or rounded once.
TEST(Buckets, ReduceScatterAsFp32SumsInRankOrder) {
  for (const int ranks : {2, 3, 4})
    for (const bool wide : {false, true})
      for (const int slices : {0, 3, 5}) {
        const std::int64_t shard = 7 * width, all = ranks * shard;
        const Buckets<std::uint16_t> given = as_bf16(random_buckets(ranks, all, 7));
        Problem p = bucket(Op::reducescatter, ranks, all, DType::bf16);
        p.f32_sums = wide;
        p.epilogue.scale = 1.0f / static_cast<float>(ranks);
        const auto world = make_thread_world(ranks, {.workers_per_rank = 2});
        Context context(*world, {.verify = true});
        const int op = context.declare(p, {engines(CopyVariant::automatic, slices), ranks});
        EXPECT_EQ(context.arena_bytes(), 1024) << "the other ranks' parts of a shard, and nothing more";
        EXPECT_EQ(context.plan(op, p.m).mechanism, Mechanism::copy_engine);
        Buckets<float> out(static_cast<std::size_t>(ranks),
                           std::vector<float>(static_cast<std::size_t>(shard)));
        std::vector<Argument> arguments;
        for (int r = 0; r < ranks; ++r) {
          auto* const parts = const_cast<std::uint16_t*>(given[static_cast<std::size_t>(r)].data());
          arguments.push_back(matrix(r, Role::a, parts, all, DType::bf16));
          arguments.push_back(matrix(r, Role::out, out[static_cast<std::size_t>(r)].data(), shard,
                                     wide ? DType::f32 : DType::bf16));
        }
        context.call(op, p.m, arguments);
        context.synchronize();
        for (int r = 0; r < ranks; ++r)
          for (std::int64_t i = 0; i < shard; ++i) {
            float sum = 0;
            for (int source = 0; source < ranks; ++source) {
              float part = 0;
              const auto at = static_cast<std::size_t>(r * shard + i);
              widen(DType::bf16, &given[static_cast<std::size_t>(source)][at], &part, 1);
              sum += part;
            }
            sum *= p.epilogue.scale;
            float got = 0;
            const float* const row = out[static_cast<std::size_t>(r)].data();
            if (wide) {
              got = row[i];
            } else {
              std::uint16_t rounded = 0;
              narrow(DType::bf16, &sum, &rounded, 1);
              widen(DType::bf16, &rounded, &sum, 1);
              widen(DType::bf16, reinterpret_cast<const std::byte*>(row) + 2 * i, &got, 1);
            }
            ASSERT_EQ(got, sum) << ranks << " ranks, " << slices << " slices, element " << i;
          }
      }
}

TEST(Buckets, AllReduceInPlace) {
  for (const int ranks : {2, 3, 4})
    for (const int slices : {0, 2}) {
      const std::int64_t all = 11 * width;  // no multiple of the ranks: shards are uneven
      Problem p = bucket(Op::allreduce, ranks, all);
      p.epilogue.scale = 0.25f;
      const auto world = make_thread_world(ranks, {.workers_per_rank = 1});
      Context context(*world, {.verify = true});
      const int op = context.declare(p, {engines(CopyVariant::automatic, slices)});
      EXPECT_EQ(context.plan(op, p.m).mechanism, Mechanism::copy_engine);
      for (unsigned turn = 0; turn < 3; ++turn) {
        const Buckets<float> given = random_buckets(ranks, all, turn);
        Buckets<float> x = given;
        std::vector<Argument> arguments;
        for (int r = 0; r < ranks; ++r)
          for (const Role role : {Role::a, Role::out})
            arguments.push_back(matrix(r, role, x[static_cast<std::size_t>(r)].data(), all, DType::f32));
        context.call(op, p.m, arguments);
        context.synchronize();
        for (std::size_t i = 0; i < static_cast<std::size_t>(all); ++i) {
          float sum = 0;
          for (const auto& of_rank : given) sum += of_rank[i];
          for (const auto& of_rank : x)
            ASSERT_EQ(of_rank[i], 0.25f * sum) << ranks << " ranks, element " << i;
        }
      }
    }
}

TEST(Buckets, AnMThatIsNoMultipleOfTheStepIsRefused) {
  const auto world = make_thread_world(2, {.workers_per_rank = 1});
  Context context(*world);
  const int op = context.declare(bucket(Op::allgather, 2, 8 * width), {.m_step = 2});
  EXPECT_NO_THROW((void)context.plan(op, 4));
  EXPECT_THROW((void)context.plan(op, 3), InvalidArgument);
  EXPECT_THROW(context.declare(bucket(Op::allgather, 2, 7 * width), {.m_step = 2}), InvalidArgument);
}

}  // namespace
}  // namespace shingle::buckets_test
