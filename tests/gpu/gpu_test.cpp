#include <gtest/gtest.h>

#include <filesystem>

#ifdef SHINGLE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

// The gpu label says "skipped", with the reason, wherever there is no GPU to test on.
TEST(Gpu, DeviceAnswers) {
#ifdef SHINGLE_WITH_CUDA
  if (!std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "no GPU here: /dev/nvidia0 does not exist";
  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  EXPECT_GT(devices, 0);
#else
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
#endif
}
