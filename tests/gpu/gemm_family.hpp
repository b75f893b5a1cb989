// The fixture of tests of all kernels of a family.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "cuda/kernels/gemm.hpp"
#include "cuda/kernels/sync.hpp"
#include "device.hpp"

namespace shingle::cuda::test {

/// True if a device of this compute capability runs the family's kernels.
inline bool runs(GemmFamily family, int major, int minor) {
  return family == GemmFamily::sm80 ? major >= 8 : major == 9 && minor == 0;
}

class GemmFamilyTest : public ::testing::TestWithParam<GemmFamily> {
 public:
  static std::string name_of(const testing::TestParamInfo<GemmFamily>& family) { return name(family.param); }

 protected:
  void SetUp() override {
    if (!gpu_here()) GTEST_SKIP() << "no GPU here: /dev/nvidia0 does not exist";
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "cudaDeviceGetAttribute");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "cudaDeviceGetAttribute");
    if (!runs(GetParam(), major, minor))
      GTEST_SKIP() << "this GPU has compute capability " << major << "." << minor;
    if (gemm_instances(GetParam()).empty()) GTEST_SKIP() << "this build has no kernels of the family";
    check(preload_sync(), "preload_sync");
  }

  static void launch(const GemmInstance& instance, const GemmArgs& args, const Stream& stream) {
    GemmParams params;
    ASSERT_EQ(instance.prepare(args, &params), cudaSuccess);
    check(instance.load(), "load a kernel");
    check(instance.launch(&params, args.ctas, stream.get()), "launch a kernel");
  }
};

}  // namespace shingle::cuda::test
