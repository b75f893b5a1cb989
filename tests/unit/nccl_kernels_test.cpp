// How the tuner plugin of NCCL times computation and communication apart, by the kernels that CUPTI records.
#include "nccl_tuner/kernels.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <random>

#include "nccl_tuner/call.hpp"
#include "nccl_tuner/cupti.hpp"
#include "shingle/base/error.hpp"

namespace shingle::nccl_tuner::nccl_kernels_test {
namespace {

constexpr auto broadcast = static_cast<std::int8_t>(NcclCollective::broadcast);
constexpr auto reduce = static_cast<std::int8_t>(NcclCollective::reduce);
constexpr auto gather = static_cast<std::int8_t>(NcclCollective::allgather);
constexpr auto scatter = static_cast<std::int8_t>(NcclCollective::reducescatter);
constexpr auto sum = static_cast<std::int8_t>(NcclCollective::allreduce);

TEST(NcclKernels, AreToldApartByName) {
  EXPECT_EQ(kind_of_kernel("_Z31ncclDevKernel_AllGather_RING_LL24ncclDevKernelArgsStorageILm4096EE"), gather);
  EXPECT_EQ(kind_of_kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgs)"), scatter);
  EXPECT_EQ(kind_of_kernel("ncclDevKernel_AllReduce_Sum_f32_TREE_LL"), sum);
  EXPECT_EQ(kind_of_kernel("ncclDevKernel_Reduce_Sum_f32_RING_LL"), reduce);
  EXPECT_EQ(kind_of_kernel("ncclKernel_Broadcast_RING_LL_Sum_int8_t"), broadcast);
  EXPECT_EQ(kind_of_kernel("ncclDevKernel_SendRecv"), Kernel::other_communication);
  EXPECT_EQ(kind_of_kernel("_Z37ncclSymkDevKernel_AllGather_LL"), Kernel::other_communication)
      << "NCCL asks no tuner about symmetric kernels";
  EXPECT_EQ(kind_of_kernel("sm90_xmma_gemm_bf16bf16"), Kernel::computation);
  EXPECT_EQ(kind_of_kernel(""), Kernel::computation);
}

std::uint64_t call(std::int8_t collective, std::uint64_t bytes) {
  return Call{static_cast<std::uint8_t>(collective), bytes}.signature();
}

/// Iterations of `us` µs: two gathers and a scatter beside a product, from `phase` calls on.
std::vector<Kernel> program(int iterations, double us, std::size_t phase = 0, std::uint64_t stream = 7) {
  std::vector<Kernel> kernels;
  for (int i = 0; i < iterations; ++i) {
    const double at = i * us;
    kernels.push_back({gather, stream, at + 0, at + 10});
    kernels.push_back({gather, stream, at + 20, at + 25});
    kernels.push_back({scatter, stream, at + 60, at + 90});
    kernels.push_back({Kernel::computation, 1, at + 5, at + 40});
    kernels.push_back({Kernel::computation, 2, at + 30, at + 70});
    kernels.push_back({Kernel::other_communication, 9, at + 70, at + 95});
  }
  for (; phase > 0; --phase)
    kernels.erase(std::ranges::find_if(kernels, [](const Kernel& kernel) { return kernel.kind >= 0; }));
  return kernels;
}
const std::vector<std::uint64_t> iteration{call(gather, 1 << 24), call(gather, 1 << 20),
                                           call(scatter, 1 << 24)};

TEST(NcclKernels, TimeComputationAndCommunicationApart) {
  for (std::size_t phase = 0; phase < 3; ++phase)
    for (std::size_t known = 0; known < 3; ++known) {  // the call that the iteration is taken to begin with
      std::vector<Kernel> kernels = program(6, 100, phase);
      std::ranges::shuffle(kernels, std::mt19937(3));
      auto calls = iteration;
      std::ranges::rotate(calls, calls.begin() + static_cast<std::ptrdiff_t>(known));
      const auto apart = timed_apart(kernels, calls);
      ASSERT_TRUE(apart) << phase << " " << known;
      // Collectives run alone in [0, 5) and [70, 95).
      EXPECT_NEAR(apart->exposed, 0.30, 1e-9);
      const double us[] = {10, 5, 30};
      for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(apart->call_us[i], us[(known + i) % 3], 1e-9);
    }
}

TEST(NcclKernels, OfLargerCallsLastLonger) {
  std::vector<Kernel> kernels;
  for (int i = 0; i < 20; ++i) kernels.push_back({sum, 7, i * 10.0, i * 10.0 + (i % 2 == 0 ? 2 : 8)});
  const std::vector<std::uint64_t> large_first{call(sum, 1 << 26), call(sum, 1 << 20)};
  const auto apart = timed_apart(kernels, large_first);
  ASSERT_TRUE(apart);
  EXPECT_NEAR(apart->call_us[0], 8, 1e-9);
  EXPECT_NEAR(apart->call_us[1], 2, 1e-9);
}

TEST(NcclKernels, TellNothingWhereTheyDoNotFit) {
  EXPECT_FALSE(timed_apart({}, iteration));
  EXPECT_FALSE(timed_apart(program(6, 100), {}));
  EXPECT_FALSE(timed_apart(program(3, 100), iteration)) << "too few";
  const std::vector<std::uint64_t> other{call(sum, 1 << 24), call(gather, 1 << 20), call(scatter, 1 << 24)};
  EXPECT_FALSE(timed_apart(program(6, 100), other));
  auto two = program(6, 100);
  const auto second = program(6, 100, 0, 8);
  two.insert(two.end(), second.begin(), second.end());
  EXPECT_FALSE(timed_apart(two, iteration)) << "two communicators make the same calls";
}

TEST(NcclKernels, OfOtherGpusDoNotCount) {
  auto kernels = program(6, 100);
  kernels.push_back({Kernel::computation, std::uint64_t{1} << 32 | 1, 0, 600});
  const auto apart = timed_apart(kernels, iteration);
  ASSERT_TRUE(apart);
  EXPECT_NEAR(apart->exposed, 0.30, 1e-9);
}

class NcclCupti : public testing::Test {
 protected:
  template <class Function>
  Function* fake(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library, name));
  }
  void* library = ::dlopen(SHINGLE_TEST_FAKE_CUPTI, RTLD_NOW);
  void (*kernel)(const char*, std::uint32_t, std::uint32_t, double, double) =
      fake<void(const char*, std::uint32_t, std::uint32_t, double, double)>("fake_cupti_kernel");
  void (*refuse)(bool) = fake<void(bool)>("fake_cupti_refuse");
  bool (*enabled)() = fake<bool()>("fake_cupti_enabled");
};

TEST_F(NcclCupti, RecordsWhileItRuns) {
  const auto recorder = make_cupti_recorder(SHINGLE_TEST_FAKE_CUPTI);
  kernel("too_early", 0, 1, 1, 2);
  EXPECT_FALSE(enabled());
  recorder->start();
  recorder->start();
  EXPECT_TRUE(recorder->take().empty());
  kernel("ncclDevKernel_AllGather_RING_LL", 1, 5, 10, 20.5);
  kernel("gemm", 1, 3, 11, 19);
  kernel("incomplete", 1, 3, 0, 0);
  const auto kernels = recorder->take();
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].kind, gather);
  EXPECT_EQ(kernels[0].stream, (std::uint64_t{1} << 32 | 5));
  EXPECT_EQ(kernels[0].begin_us, 10);
  EXPECT_EQ(kernels[0].end_us, 20.5);
  EXPECT_EQ(kernels[1].kind, Kernel::computation);
  constexpr std::size_t many = 5000;  // several buffers
  for (std::size_t i = 0; i < many; ++i)
    kernel("gemm", 0, 1, 1 + static_cast<double>(i), 2 + static_cast<double>(i));
  EXPECT_EQ(recorder->take().size(), many);
  kernel("gemm", 0, 1, 1, 2);
  recorder->stop();
  EXPECT_FALSE(enabled());
  recorder->start();
  EXPECT_TRUE(recorder->take().empty()) << "what was recorded before is forgotten";
}

TEST_F(NcclCupti, SaysWhyItRecordsNothing) {
  EXPECT_THROW(make_cupti_recorder("/nowhere/libcupti.so"), Error);
  EXPECT_THROW(make_cupti_recorder("libm.so.6"), Error) << "it has no such functions";
  const auto recorder = make_cupti_recorder(SHINGLE_TEST_FAKE_CUPTI);
  refuse(true);
  EXPECT_THROW(recorder->start(), Error);
  refuse(false);
  recorder->start();
  EXPECT_TRUE(enabled());
}

}  // namespace
}  // namespace shingle::nccl_tuner::nccl_kernels_test
