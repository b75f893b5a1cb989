// Distributes work over all cores that this process may use.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <future>
#include <thread>
#include <vector>

namespace shingle {

/// Calls work(0) … work(count − 1), on this thread and others, in any order. Rethrows an exception of a call.
template <class Work>
void parallel_for(std::size_t count, Work work) {
  std::atomic<std::size_t> next{0};
  const auto take = [&] {
    for (std::size_t i; (i = next++) < count;) work(i);
  };
  const std::size_t threads = std::min<std::size_t>(std::max(std::thread::hardware_concurrency(), 1u), count);
  std::vector<std::future<void>> team;
  for (std::size_t t = 1; t < threads; ++t) team.push_back(std::async(std::launch::async, take));
  take();
  for (std::future<void>& member : team) member.get();
}

}  // namespace shingle
