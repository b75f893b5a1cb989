#include "shingle/common/surroundings.hpp"

#include <fmt/format.h>

#include "shingle/host/host.hpp"
#ifdef SHINGLE_WITH_CUDA
#include "shingle/cuda/cuda.hpp"
#endif

namespace shingle::cli {

std::string gpus_text() {
#ifdef SHINGLE_WITH_CUDA
  return describe(cuda_info());
#else
  return {};
#endif
}

nlohmann::ordered_json gpus_json() {
#ifdef SHINGLE_WITH_CUDA
  const CudaInfo cuda = cuda_info();
  nlohmann::ordered_json json{{"devices", nlohmann::json::array()}};
  for (const CudaDevice& device : cuda.devices)
    json["devices"].push_back({{"name", device.name},
                               {"sms", device.sms},
                               {"compute_capability", fmt::format("{}.{}", device.major, device.minor)},
                               {"gemm_kernels", device.gemm},
                               {"memory_bytes", device.memory_bytes}});
  if (!cuda.missing.empty()) json["missing"] = cuda.missing;
  json["driver"] = cuda.driver;
  json["runtime"] = cuda.runtime;
  json["nccl"] = cuda.nccl;
  json["gemm_kernels"] = cuda.gemm;
  return json;
#else
  return {};
#endif
}

nlohmann::ordered_json surroundings_json() {
  const HostInfo host = host_info();
  nlohmann::ordered_json json{{"cpu", host.cpu}, {"cores", host.cores}, {"onednn", host.onednn}};
  if (auto gpus = gpus_json(); !gpus.is_null()) json["cuda"] = std::move(gpus);
  return json;
}

}  // namespace shingle::cli
