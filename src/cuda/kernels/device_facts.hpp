// Facts about the current device that launches need. Asked once: the runtime takes a microsecond for each.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shingle::cuda {

struct DeviceFacts {
  int sms = 0;
  int major = 0;  ///< compute capability
  int minor = 0;
  int most_shared = 0;  ///< bytes of shared memory of a CTA
};

/// Of the current device. Any thread may call it.
cudaError_t find_device_facts(DeviceFacts& facts);

/// As many CTAs of `cta_threads` as `threads` threads need, up to those that the current device holds at a
/// time.
cudaError_t find_cta_count(std::int64_t threads, int cta_threads, unsigned& ctas);

}  // namespace shingle::cuda
