#include "flagged.hpp"

#include <fmt/format.h>

#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/raii/stream.hpp"
#include "cuda/runtime/world.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::cuda {
namespace {

constexpr std::int64_t line = 128;  // bytes
static_assert(flagged_copies == 3 && turns % flagged_copies == 0,
              "kernels/flagged takes three copies in turn");

}  // namespace

std::int64_t FlaggedMemory::first_byte(int world) {
  return ceil_div(world * greeting_bytes, line) * line;
}

FlaggedMemory::FlaggedMemory(CudaWorld& world, std::int64_t bytes)
    : world_(world),
      copy_bytes_(ceil_div(first_byte(world.size()) + bytes, line) * line),
      memory_(world, static_cast<std::size_t>(flagged_copies * copy_bytes_)) {
  for (const LocalRank& rank : world.local()) {
    const DeviceGuard guard(rank.device());
    own_.push_back({rank.rank(), DeviceMemory(sizeof(FlaggedState))});
    own_.back().state.fill(0);
    const Stream stream;
    check(launch_clear(memory_.at(rank.rank()), flagged_copies * copy_bytes_, stream.get()),
          "clear flagged memory");
    check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  }
  memory_.share();
}

FlaggedPlace FlaggedMemory::place(int rank) const {
  FlaggedPlace place{
      .copies = {}, .copy_bytes = copy_bytes_, .state = nullptr, .world = world_.size(), .rank = rank};
  if (place.world > flagged_world)
    throw Unsupported(
        fmt::format("CUDA: deliveries between {} ranks; at most {}", place.world, flagged_world));
  for (int other = 0; other < place.world; ++other) {
    place.copies[other] = memory_.at(other);
    if (place.copies[other] == nullptr)
      throw Unsupported(fmt::format("CUDA: rank {} cannot store to the memory of rank {}", rank, other));
  }
  for (const Own& own : own_)
    if (own.rank == rank) place.state = own.state.get<FlaggedState>();
  return place;
}

int FlaggedMemory::awaited(const void* at) const {
  for (const Own& own : own_) {
    const auto offset = static_cast<const char*>(at) - memory_.at(own.rank);
    if (offset < 0 || offset >= flagged_copies * copy_bytes_) continue;
    return static_cast<int>(offset % copy_bytes_ / greeting_bytes);
  }
  return -1;
}

}  // namespace shingle::cuda
