#include "launchers.hpp"

#include "cuda/raii/device_guard.hpp"

namespace shingle::cuda {

Launchers::Launchers(const std::vector<LocalRank>& local) {
  for (const LocalRank& rank : local) devices_.push_back(rank.device());
  if (local.size() == 1) return;
  for (std::size_t i = 0; i < devices_.size(); ++i)
    threads_.emplace_back([this, i] { serve(i, devices_[i]); });
}

Launchers::~Launchers() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Launchers::run(const std::function<void(std::size_t)>& action) {
  if (threads_.empty()) {
    const DeviceGuard guard(devices_.front());
    return action(0);
  }
  std::unique_lock lock(mutex_);
  action_ = &action;
  running_ = threads_.size();
  error_ = nullptr;
  ++generation_;
  wake_.notify_all();
  idle_.wait(lock, [&] { return running_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

void Launchers::serve(std::size_t index, int device) {
  const cudaError_t own_device = cudaSetDevice(device);
  std::unique_lock lock(mutex_);
  for (std::uint64_t served = 0;; ++served) {
    wake_.wait(lock, [&] { return quit_ || generation_ > served; });
    if (quit_) return;
    const auto& action = *action_;
    lock.unlock();
    std::exception_ptr error;
    try {
      check(own_device, "cudaSetDevice");
      action(index);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
    if (--running_ == 0) idle_.notify_all();
  }
}

}  // namespace shingle::cuda
