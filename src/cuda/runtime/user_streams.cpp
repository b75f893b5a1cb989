#include "user_streams.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {

void require_one_each(const std::vector<LocalRank>& local, std::span<void* const> streams) {
  if (streams.size() != local.size())
    throw InvalidArgument(
        fmt::format("{} streams for {} ranks of this process; expected one a rank, in order of rank",
                    streams.size(), local.size()));
}

bool are_captured(const std::vector<LocalRank>& local, std::span<void* const> streams) {
  std::size_t captured = 0;
  for (std::size_t index = 0; index < streams.size(); ++index) {
    const DeviceGuard guard(local[index].device());
    cudaStreamCaptureStatus status{};
    check(cudaStreamIsCapturing(static_cast<cudaStream_t>(streams[index]), &status), "cudaStreamIsCapturing");
    captured += status != cudaStreamCaptureStatusNone ? 1 : 0;
  }
  if (captured != 0 && captured < streams.size())
    throw InvalidArgument("only some of the streams are being captured; capture all or none");
  return captured != 0;
}

std::string too_many_for_graph(std::size_t lanes) {
  return fmt::format(
      "the plan's {0} lanes do not run concurrently as branches of a graph here; "
      "CUDA_DEVICE_MAX_CONNECTIONS must be at least {0}",
      lanes);
}

}  // namespace shingle::cuda
