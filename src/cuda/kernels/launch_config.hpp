// The configuration of a launch with attributes: clusters, and programmatic dependent launch (PDL).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace shingle::cuda {

struct LaunchTraits {
  int cluster = 1;     ///< CTAs in a cluster
  bool early = false;  ///< PDL: may start before the previous kernel of the stream has ended
};

class LaunchConfig {
 public:
  LaunchConfig(int ctas, int threads, std::size_t shared_bytes, cudaStream_t stream,
               const LaunchTraits& traits) {
    config_.gridDim = dim3(static_cast<unsigned>(ctas));
    config_.blockDim = dim3(static_cast<unsigned>(threads));
    config_.dynamicSmemBytes = shared_bytes;
    config_.stream = stream;
    config_.attrs = attributes_;
    if (traits.cluster > 1) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes_[config_.numAttrs++].val.clusterDim = {static_cast<unsigned>(traits.cluster), 1, 1};
    }
    if (traits.early) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes_[config_.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
  }
  LaunchConfig(const LaunchConfig&) = delete;  // the configuration points at the attributes
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  const cudaLaunchConfig_t& get() const { return config_; }

 private:
  cudaLaunchAttribute attributes_[2]{};
  cudaLaunchConfig_t config_{};
};

}  // namespace shingle::cuda
