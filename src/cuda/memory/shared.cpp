#include "shared.hpp"

#include <algorithm>

#include "cuda/raii/device_guard.hpp"
#include "cuda/runtime/world.hpp"

namespace shingle::cuda {

SharedMemory::SharedMemory(CudaWorld& world, std::size_t bytes)
    : world_(world), places_(static_cast<std::size_t>(world.size()), nullptr) {
  for (const LocalRank& rank : world.local()) {
    const DeviceGuard guard(rank.device());
    own_.emplace_back(whole_shared_units(std::max<std::size_t>(bytes, 1)));
    places_[static_cast<std::size_t>(rank.rank())] = own_.back().get<char>();
  }
}

SharedMemory::~SharedMemory() {
  if (!number_) return;
  mappings_ = {};
  world_.retired().add(*number_, std::move(own_));
}

void SharedMemory::share() {
  if (own_.size() == places_.size() || !world_.apart().empty()) return;
  const LocalRank& own = world_.local().front();
  const DeviceGuard guard(own.device());
  number_ = world_.retired().number();
  world_.in_step([&] {
    const auto all =
        mappings_.exchange(world_.processes(), own.rank(), {own_.front().get()}, world_.options().timeout_us);
    for (std::size_t rank = 0; rank < places_.size(); ++rank) places_[rank] = all[rank][0];
  });
}

void SharedMemory::fill(std::uint8_t value) const {
  for (std::size_t index = 0; index < own_.size(); ++index) {
    const DeviceGuard guard(world_.local()[index].device());
    own_[index].fill(value);
  }
}

}  // namespace shingle::cuda
