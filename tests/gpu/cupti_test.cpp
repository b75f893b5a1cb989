// What the NCCL tuner plugin knows of CUPTI, against CUPTI's own header and library.
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <cstddef>
#include <memory>

#include "cuda/kernels/sync.hpp"
#include "device.hpp"
#include "nccl_tuner/cupti.hpp"
#include "shingle/base/error.hpp"

#if __has_include(<cupti.h>)
#include <cupti.h>

namespace shingle::nccl_tuner::cupti {

static_assert(concurrent_kernel == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
static_assert(forced == CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);

template <class Theirs>
constexpr bool begins_alike() {
  return offsetof(KernelRecord, kind) == offsetof(Theirs, kind) &&
         offsetof(KernelRecord, begin_ns) == offsetof(Theirs, start) &&
         offsetof(KernelRecord, end_ns) == offsetof(Theirs, end) &&
         offsetof(KernelRecord, device) == offsetof(Theirs, deviceId) &&
         offsetof(KernelRecord, stream) == offsetof(Theirs, streamId) &&
         offsetof(KernelRecord, name) == offsetof(Theirs, name);
}
static_assert(begins_alike<CUpti_ActivityKernel4>() && begins_alike<CUpti_ActivityKernel9>());
#if CUDART_VERSION >= 13000
static_assert(begins_alike<CUpti_ActivityKernel10>());
#endif

}  // namespace shingle::nccl_tuner::cupti
#endif

namespace shingle::cuda::test {
namespace {

TEST(CuptiTest, RecordsTheKernelsOfThisProcess) {
  if (!gpu_here()) GTEST_SKIP() << "no GPU here: /dev/nvidia0 does not exist";
  std::unique_ptr<nccl_tuner::KernelRecorder> recorder;
  for (const char* library : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"}) try {
      recorder = nccl_tuner::make_cupti_recorder(library);
      break;
    } catch (const Error&) {  // the next
    }
  if (!recorder) GTEST_SKIP() << "CUPTI is not installed";
  check(preload_sync(), "preload_sync");
  Watched watched;
  const Stream stream;
  constexpr std::size_t kernels = 5;
  recorder->start();
  for (std::size_t i = 0; i < kernels; ++i)
    check(launch_begin(watched.epoch(), stream.get()), "launch_begin");
  stream.synchronize();
  const auto taken = recorder->take();
  recorder->stop();
  ASSERT_EQ(taken.size(), kernels);
  for (const nccl_tuner::Kernel& kernel : taken) {
    EXPECT_EQ(kernel.kind, nccl_tuner::Kernel::computation);
    EXPECT_GT(kernel.end_us, kernel.begin_us);
    EXPECT_LT(kernel.end_us - kernel.begin_us, 1e6);
  }
}

}  // namespace
}  // namespace shingle::cuda::test

#endif
