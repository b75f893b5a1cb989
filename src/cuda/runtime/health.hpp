// State of a world: whether it still works, and whether its memory may still be freed.
#pragma once

#include <atomic>
#include <memory>

#include "backend/failure.hpp"

namespace shingle::cuda {

class Health : public FirstFailure {
 public:
  /// Marks the world as hopeless: work on a device, or a launching thread, did not end although it was told
  /// to. A call that waits for the device (cudaFree, for example) could then wait for ever. Freed memory
  /// could still be in use.
  void give_up() { hopeless_.store(true); }
  bool hopeless() const { return hopeless_.load(); }

 private:
  std::atomic<bool> hopeless_{false};
};

/// Deleter. In a hopeless world it keeps the object until the end of the process.
struct UnlessHopeless {
  std::shared_ptr<const Health> health{};

  template <class T>
  void operator()(T* owned) const {
    if (!health->hopeless()) delete owned;
  }
};

/// Owner of an object that a device may be using.
template <class T>
using Kept = std::unique_ptr<T, UnlessHopeless>;

}  // namespace shingle::cuda
