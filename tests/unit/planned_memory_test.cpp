// What plans for GPUs hold beside the user's matrices: one output of the GEMM, whatever the mechanism.
#include <gtest/gtest.h>

#include "shingle/api/registry.hpp"
#include "shingle/machine/profile.hpp"

namespace shingle::planned_memory_test {
namespace {

/// M×N of the dtype, and half a MiB; a reduce-scatter holds what it receives as well, 1/world of that. Tables
/// (docs/backends/cuda.md) come on top.
TEST(PlannedMemory, IsOneOutputAndWhatAReduceScatterReceives) {
  const Machine machine = read_machine(SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json");
  int planned = 0;
  for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter})
    for (const Mechanism mechanism : {Mechanism::sequential, Mechanism::chunked, Mechanism::signal})
      for (const std::int64_t m : {16, 128, 777, 1024, 2048, 4100, 8192, 16384, 32768})
        for (const std::int64_t n : {1024, 7168, 8192, 12288}) {
          Problem p;
          p.op = op;
          p.world = 8;
          p.m = m;
          p.n = n;
          p.k = 1024;
          p.dtype = DType::bf16;
          const Result<Plan> plan = make_plan(p, machine, default_params(mechanism));
          if (!plan) continue;
          ++planned;
          std::int64_t bytes = 0;
          for (const Buffer& buffer : plan->buffers)
            if (buffer.role == Role::internal) bytes += buffer.bytes(0);
          const double output = 2.0 * static_cast<double>(m * n);
          const double received = op == Op::gemm_reducescatter ? output / p.world : 0;
          EXPECT_LE(static_cast<double>(bytes), 1.02 * output + received + (1 << 19))
              << describe(p) << " by " << name(mechanism) << ": " << static_cast<double>(bytes) / output;
        }
  EXPECT_GT(planned, 150);
}

}  // namespace
}  // namespace shingle::planned_memory_test
