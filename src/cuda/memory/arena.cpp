#include "arena.hpp"

#include <cstring>

#include "cuda/raii/device_guard.hpp"
#include "cuda/runtime/world.hpp"

namespace shingle::cuda {

ArenaMemory::ArenaMemory(CudaWorld& world, std::int64_t bytes, std::uint32_t first_call,
                         std::shared_ptr<const CudaHeap> heap)
    : world_(world),
      bytes_(bytes),
      heap_(std::move(heap)),
      staging_(world, static_cast<std::size_t>(bytes)),
      shared_(world, shared_bytes(static_cast<std::size_t>(world.size()))),
      places_(static_cast<std::size_t>(world.size())),
      local_(world.local().size()) {
  const auto ranks = places_.size();
  shared_.fill(0);
  const std::vector<std::uint32_t> begins(ranks, first_call);
  for (const LocalRank& rank : world.local())  // done on return: peers write these words once they are mapped
    world.upload(rank.rank(), placed(rank.rank()).begins, begins.data(), ranks * sizeof(std::uint32_t));
  staging_.share();
  shared_.share();
  if (world.size() > 1 && world.size() <= flagged_world && world.apart().empty())
    flagged_.emplace(world, most_flagged_bytes);
  for (int rank = 0; rank < world.size(); ++rank)
    if (staging_.at(rank) != nullptr) places_[static_cast<std::size_t>(rank)] = placed(rank);
  for (std::size_t index = 0; index < local_.size(); ++index)
    set_words(local_[index], world.local()[index], first_call);
}

std::size_t ArenaMemory::shared_bytes(std::size_t ranks) {
  const std::size_t words = (most_counts + ranks) * sizeof(std::uint32_t) + sizeof(Call);
  return words + ranks * calls_kept * sizeof(Call);
}

ArenaMemory::Place ArenaMemory::placed(int rank) const {
  auto* const counts = reinterpret_cast<std::uint32_t*>(shared_.at(rank));
  auto* const begins = counts + most_counts;
  constexpr std::size_t words = sizeof(Call) / sizeof(std::uint32_t);  // calls are aligned
  auto* const calls = reinterpret_cast<Call*>(begins) + ceil_div(places_.size(), words);
  return {staging_.at(rank), counts, begins, calls};
}

/// Sets the words of a local rank that its own kernels use.
void ArenaMemory::set_words(Local& local, const LocalRank& at, std::uint32_t first_call) {
  const DeviceGuard guard(at.device());
  const int rank = at.rank();
  // Ranks that cannot access each other's memory tell each other nothing.
  const std::size_t ranks = world_.apart().empty() ? places_.size() : 1;
  std::vector<Call*> calls(ranks, nullptr);
  std::vector<std::uint32_t*> begins(ranks, nullptr);
  for (std::size_t other = 0; other < ranks; ++other) {
    if (const auto& place = places_[other]; place) {
      calls[other] = place->calls + static_cast<std::size_t>(rank) * calls_kept;
      begins[other] = place->begins + rank;
    }
  }
  const std::uint32_t own[2] = {first_call - 1, 0};
  const std::size_t calls_bytes = ranks * sizeof(Call*), begins_bytes = ranks * sizeof(std::uint32_t*);
  local.own = DeviceMemory(sizeof own + calls_bytes + begins_bytes);
  std::vector<char> bytes(local.own.bytes());
  std::memcpy(bytes.data(), own, sizeof own);
  std::memcpy(bytes.data() + sizeof own, calls.data(), calls_bytes);
  std::memcpy(bytes.data() + sizeof own + calls_bytes, begins.data(), begins_bytes);
  world_.upload(rank, local.own.get(), bytes.data(), bytes.size());
  char* const start = local.own.get<char>();
  local.words = {.epoch = local.own.get<std::uint32_t>(),
                 .busy = local.own.get<std::uint32_t>() + 1,
                 .calls = places_[static_cast<std::size_t>(rank)]->calls,
                 .own_calls = reinterpret_cast<Call* const*>(start + sizeof own),
                 .own_begins = reinterpret_cast<std::uint32_t* const*>(start + sizeof own + calls_bytes),
                 .world = static_cast<std::int32_t>(ranks),
                 .rank = ranks == 1 ? 0 : rank};
}

}  // namespace shingle::cuda
