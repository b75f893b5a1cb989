// The first failure of a world, which stops it for good.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <string>

namespace shingle {

class FirstFailure {
 public:
  /// Records a failure; true for the first.
  bool fail(std::exception_ptr error);
  /// Becomes true with the first failure, and stays so.
  const std::atomic<bool>& stopped() const { return stopped_; }
  std::exception_ptr error() const;
  /// The message of the first failure; empty without one.
  std::string reason() const;
  /// Throws Timeout, with the reason, where the world has failed before.
  void require() const;

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> stopped_{false};
};

}  // namespace shingle
