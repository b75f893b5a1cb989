#include <gtest/gtest.h>

#include <filesystem>

#ifdef SHINGLE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

// On a machine without a GPU, tests with the label gpu are skipped and print the reason.
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
