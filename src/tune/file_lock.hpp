// A lock between processes, and between threads that each take it for themselves.
#pragma once

#include <chrono>
#include <string>

namespace shingle::tuning {

/// Holds an exclusive flock() on a file, which it creates and which stays. The system gives it back when a
/// process dies.
class FileLock {
 public:
  /// Waits for others until the deadline. Throws IoError ("PATH: reason").
  FileLock(const std::string& path, std::chrono::milliseconds deadline);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

}  // namespace shingle::tuning
