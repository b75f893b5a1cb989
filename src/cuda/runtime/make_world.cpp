// Chooses the ranks of this process and their devices.
#include <fmt/format.h>

#include "cuda/nccl/api.hpp"
#include "cuda/raii/check.hpp"
#include "devices.hpp"
#include "shingle/base/error.hpp"
#include "world.hpp"

namespace shingle {
namespace {

using cuda::CudaWorld;
using cuda::LocalRank;

void require_devices(int wanted, int first) {
  const int count = cuda::require_gpu();
  if (first < 0 || first + wanted > count)
    throw Unsupported(fmt::format("{} rank{} from device {} on need {} GPUs; {} here", wanted,
                                  wanted == 1 ? "" : "s", first, first + wanted,
                                  count == 1 ? "1 is" : fmt::format("{} are", count)));
}

/// The ranks of a process that a launcher started as one of several: one rank.
CudaWorld::Parts parts_of_process(const Launched& launched, const CudaOptions& options) {
  // Slurm may restrict each process to its own device.
  const int device = cuda::require_gpu() == 1 ? 0 : options.first_device + launched.local_rank;
  require_devices(1, device);
  CudaWorld::Parts parts{launched.size, {}, connect(launched, options.timeout_us), options};
  parts.local.emplace_back(launched.rank, device);
  return parts;
}

CudaWorld::Parts parts_of_all(int ranks, const CudaOptions& options) {
  require_devices(ranks, options.first_device);
  CudaWorld::Parts parts{ranks, {}, alone(), options};
  for (int rank = 0; rank < ranks; ++rank) parts.local.emplace_back(rank, options.first_device + rank);
  return parts;
}

}  // namespace

std::unique_ptr<World> make_cuda_world(int ranks, const CudaOptions& options) {
  const Launched launched = find_launcher();
  const int size = ranks == 0 ? default_cuda_ranks() : ranks;
  if (size < 1 || size > max_world)
    throw InvalidArgument(fmt::format("a world of {} ranks is outside [1, {}]", size, max_world));
  if (launched.several() && size != launched.size)
    throw InvalidArgument(
        fmt::format("{} ranks, but {} started {} processes", size, launched.by, launched.size));
  return std::make_unique<CudaWorld>(launched.several() ? parts_of_process(launched, options)
                                                        : parts_of_all(size, options));
}

std::unique_ptr<World> make_cuda_world(const Bootstrap& bootstrap, const CudaOptions& options) {
  if (bootstrap.size > max_world)
    throw InvalidArgument(fmt::format("a world of {} ranks is outside [1, {}]", bootstrap.size, max_world));
  require_devices(1, bootstrap.device);
  CudaWorld::Parts parts{bootstrap.size, {}, connect(bootstrap, options.timeout_us), options};
  parts.local.emplace_back(bootstrap.rank, bootstrap.device);
  return std::make_unique<CudaWorld>(std::move(parts));
}

std::unique_ptr<World> make_cuda_world(std::span<ncclComm* const> communicators, const CudaOptions& options) {
  if (communicators.empty()) throw InvalidArgument("a world needs at least one communicator");
  CudaWorld::Parts parts{1, {}, alone(), options};
  for (const ncclComm_t comm : communicators) {
    int rank = 0, device = 0;
    cuda::check(cuda::nccl().ncclCommUserRank(comm, &rank), "ncclCommUserRank");
    cuda::check(cuda::nccl().ncclCommCuDevice(comm, &device), "ncclCommCuDevice");
    cuda::check(cuda::nccl().ncclCommCount(comm, &parts.size), "ncclCommCount");
    parts.local.emplace_back(rank, device);
  }
  const auto local = static_cast<int>(parts.local.size());
  if (local != 1 && local != parts.size)
    throw Unsupported(fmt::format(
        "a process must hold one rank of the communicator or all {}; this one holds {}", parts.size, local));
  return std::make_unique<CudaWorld>(std::move(parts), communicators);
}

int default_cuda_ranks() {
  const Launched launched = find_launcher();
  return launched.several() ? launched.size : cuda::require_gpu();
}

}  // namespace shingle
