// Whether a world still works, and whether its memory can still be freed.
#pragma once

#include <atomic>
#include <memory>

#include "backend/failure.hpp"

namespace shingle::cuda {

class Health : public FirstFailure {
 public:
  /// Work on a device, or a thread that launches, did not end although it was told to: whatever waits for the
  /// device (cudaFree, say) could wait for ever, and what is freed could still be used.
  void give_up() { hopeless_.store(true); }
  bool hopeless() const { return hopeless_.load(); }

 private:
  std::atomic<bool> hopeless_{false};
};

/// Deletes, unless the world is hopeless: then what there is stays until the end of the process.
struct UnlessHopeless {
  std::shared_ptr<const Health> health{};

  template <class T>
  void operator()(T* owned) const {
    if (!health->hopeless()) delete owned;
  }
};

/// Owner of what a device may be using.
template <class T>
using Kept = std::unique_ptr<T, UnlessHopeless>;

}  // namespace shingle::cuda
