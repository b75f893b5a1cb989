// The first failure of a world. It stops the world for good.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <string>

namespace shingle {

class FirstFailure {
 public:
  /// Records a failure. Returns true for the first.
  bool fail(std::exception_ptr error);
  /// Becomes true with the first failure and stays true.
  const std::atomic<bool>& stopped() const { return stopped_; }
  std::exception_ptr error() const;
  /// The message of the first failure; empty without one.
  std::string reason() const;
  /// Throws Timeout with the reason if the world has failed.
  void require() const;

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> stopped_{false};
};

}  // namespace shingle
