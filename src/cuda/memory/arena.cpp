#include "arena.hpp"

#include <cstring>

#include "cuda/raii/device_guard.hpp"
#include "cuda/runtime/world.hpp"

namespace shingle::cuda {
namespace {

std::size_t whole_units(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + shared_unit - 1) / shared_unit * shared_unit;
}

}  // namespace

ArenaMemory::ArenaMemory(CudaWorld& world, std::int64_t bytes, std::uint32_t first_call)
    : world_(world), bytes_(bytes), places_(static_cast<std::size_t>(world.size())) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::size_t words = (most_counts + ranks) * sizeof(std::uint32_t) + sizeof(Call);
  for (const LocalRank& rank : world.local()) {
    const DeviceGuard guard(rank.device());
    Local& local = local_.emplace_back();
    local.device = rank.device();
    local.staging = DeviceMemory(whole_units(static_cast<std::size_t>(bytes)));
    local.shared = DeviceMemory(whole_units(words + ranks * calls_kept * sizeof(Call)));
    local.shared.fill(0);
    const Place own = placed(local.staging.get<char>(), local.shared.get<char>());
    places_[static_cast<std::size_t>(rank.rank())] = own;
    const std::vector<std::uint32_t> begins(ranks, first_call);
    // Done on return: peers write these words once they are mapped.
    world.upload(rank.rank(), own.begins, begins.data(), ranks * sizeof(std::uint32_t));
  }
  if (world.local().size() < ranks && world.apart().empty()) {
    const LocalRank& own = world.local().front();
    const DeviceGuard guard(own.device());
    number_ = world.retired().number();
    world.in_step([&] {
      const auto all = mappings_.exchange(world.processes(), own.rank(),
                                          {local_.front().staging.get(), local_.front().shared.get()},
                                          world.options().timeout_us);
      for (std::size_t other = 0; other < ranks; ++other)
        if (static_cast<int>(other) != own.rank()) places_[other] = placed(all[other][0], all[other][1]);
    });
  }
  for (std::size_t index = 0; index < local_.size(); ++index)
    set_words(local_[index], world.local()[index].rank(), first_call);
}

ArenaMemory::~ArenaMemory() {
  if (!number_) return;
  mappings_ = {};
  std::vector<DeviceMemory> own;
  for (Local& local : local_) {
    own.push_back(std::move(local.staging));
    own.push_back(std::move(local.shared));
  }
  world_.retired().add(*number_, std::move(own));
}

ArenaMemory::Place ArenaMemory::placed(char* staging, char* shared) const {
  auto* const counts = reinterpret_cast<std::uint32_t*>(shared);
  auto* const begins = counts + most_counts;
  const std::size_t words = (places_.size() + 1) / 2;  // pairs of begins, which keep calls aligned
  return {staging, counts, begins, reinterpret_cast<Call*>(begins) + words};
}

/// Sets the words of a local rank that its own kernels use.
void ArenaMemory::set_words(Local& local, int rank, std::uint32_t first_call) {
  const DeviceGuard guard(local.device);
  // Ranks that cannot access each other's memory tell each other nothing.
  const std::size_t ranks = world_.apart().empty() ? places_.size() : 1;
  std::vector<Call*> calls(ranks, nullptr);
  std::vector<std::uint32_t*> begins(ranks, nullptr);
  for (std::size_t other = 0; other < ranks; ++other) {
    if (const auto& at = places_[other]; at) {
      calls[other] = at->calls + static_cast<std::size_t>(rank) * calls_kept;
      begins[other] = at->begins + rank;
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
  char* const at = local.own.get<char>();
  local.words = {.epoch = local.own.get<std::uint32_t>(),
                 .busy = local.own.get<std::uint32_t>() + 1,
                 .calls = places_[static_cast<std::size_t>(rank)]->calls,
                 .own_calls = reinterpret_cast<Call* const*>(at + sizeof own),
                 .own_begins = reinterpret_cast<std::uint32_t* const*>(at + sizeof own + calls_bytes),
                 .world = static_cast<std::int32_t>(ranks),
                 .rank = rank};
}

void ArenaMemory::poison() const {
  for (const Local& local : local_) {
    const DeviceGuard guard(local.device);
    local.staging.fill(0xff);  // a NaN in every dtype
  }
}

}  // namespace shingle::cuda
