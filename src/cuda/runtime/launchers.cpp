#include "launchers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/raii/check.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::cuda {
namespace {

constexpr double grace_us = 10e6;  // for the other threads to return once one has failed

}  // namespace

Launchers::Launchers(const std::vector<LocalRank>& local) {
  for (const LocalRank& rank : local) {
    ranks_.push_back(rank.rank());
    devices_.push_back(rank.device());
  }
  for (std::size_t i = 0; i < devices_.size(); ++i) threads_.emplace_back([this, i] { serve(i); });
}

Launchers::~Launchers() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Launchers::run(std::function<void(std::size_t)> action, double timeout_us,
                    const std::function<void()>& watch) {
  auto deadline = deadline_in(timeout_us);
  std::unique_lock lock(mutex_);
  action_ = std::move(action);
  running_ = threads_.size();
  back_.assign(threads_.size(), false);
  error_ = nullptr;
  failed_ = false;
  ++generation_;
  wake_.notify_all();
  while (!idle_.wait_for(lock, attention, [&] { return running_ == 0; })) {
    if (!error_) {
      lock.unlock();
      try {
        watch();
        lock.lock();
      } catch (...) {
        lock.lock();
        note(std::current_exception());
      }
    }
    if (error_) deadline = std::min(deadline, deadline_in(grace_us));
    if (Clock::now() < deadline) continue;
    stuck_ = true;
    failed_ = true;
    const auto at = static_cast<std::size_t>(std::ranges::find(back_, false) - back_.begin());
    if (error_) break;
    throw UnnamedTimeout(
        fmt::format("rank {} is stuck in a call that launches, for {}", ranks_[at], format_us(timeout_us)),
        ranks_[at]);
  }
  if (error_) std::rethrow_exception(error_);
}

/// Requires the mutex.
void Launchers::note(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
  failed_ = true;
}

void Launchers::serve(std::size_t index) {
  const cudaError_t own_device = cudaSetDevice(devices_[index]);
  std::unique_lock lock(mutex_);
  for (std::uint64_t served = 0;; ++served) {
    wake_.wait(lock, [&] { return quit_ || generation_ > served; });
    if (quit_) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      check(own_device, "cudaSetDevice");
      action_(index);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) note(error);
    back_[index] = true;
    if (--running_ == 0) idle_.notify_all();
  }
}

}  // namespace shingle::cuda
