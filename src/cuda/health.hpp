// Whether a world still works: the first failure stops it for good.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <string>

namespace shingle::cuda {

class Health {
 public:
  /// Records a failure; true for the first.
  bool fail(std::exception_ptr error);
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  std::exception_ptr error() const;
  /// The message of the first failure.
  std::string reason() const;
  /// Throws Timeout where the world has failed before.
  void require() const;

  /// Work on a device did not end although it was aborted: whatever waits for the device (cudaFree, say)
  /// could wait for ever, so memory is left to the process's end.
  void give_up() { hopeless_.store(true); }
  bool hopeless() const { return hopeless_.load(); }

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> hopeless_{false};
};

}  // namespace shingle::cuda
