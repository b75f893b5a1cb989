// Facts about the current device that launches need. Asked once: the runtime takes a microsecond for each.
#pragma once

#include <cuda_runtime_api.h>

namespace shingle::cuda {

struct DeviceFacts {
  int sms = 0;
  int major = 0;  ///< compute capability
  int minor = 0;
  int most_shared = 0;  ///< bytes of shared memory of a CTA
};

/// Of the current device. Any thread may call it.
cudaError_t find_device_facts(DeviceFacts& facts);

}  // namespace shingle::cuda
