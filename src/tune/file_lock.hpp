// A lock between processes, and between threads that each create a FileLock.
#pragma once

#include <chrono>
#include <string>

namespace shingle::tuning {

/// Holds an exclusive flock() on a file. Creates the file and never removes it. The kernel releases the lock
/// when the process dies.
class FileLock {
 public:
  /// Waits for other holders until the deadline. Throws IoError ("PATH: reason").
  FileLock(const std::string& path, std::chrono::milliseconds deadline);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

}  // namespace shingle::tuning
