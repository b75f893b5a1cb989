// A thread for each local rank, which alone launches on its device.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda/local_rank.hpp"

namespace shingle::cuda {

class Launchers {
 public:
  explicit Launchers(const std::vector<LocalRank>& local);
  ~Launchers();
  Launchers(const Launchers&) = delete;
  Launchers& operator=(const Launchers&) = delete;

  /// Calls action(index of the local rank) on all threads at once, each with its device current, and waits
  /// for them. Throws what the first of them threw. One rank alone is served by the caller's thread.
  void run(const std::function<void(std::size_t)>& action);

 private:
  void serve(std::size_t index, int device);

  std::vector<int> devices_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  const std::function<void(std::size_t)>* action_ = nullptr;
  std::uint64_t generation_ = 0;
  std::size_t running_ = 0;
  std::exception_ptr error_;
  bool quit_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace shingle::cuda
