#include "local_rank.hpp"

#include <algorithm>
#include <atomic>
#include <new>

#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"

namespace shingle::cuda {
namespace {

Signals* allocate_signals() {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, sizeof(Signals), cudaHostAllocPortable | cudaHostAllocMapped),
        "cudaHostAlloc");
  return new (memory) Signals;
}

}  // namespace

LocalRank::LocalRank(int rank, int device) : rank_(rank), device_(device) {
  const DeviceGuard guard(device);
  signals_.reset(allocate_signals());
  claim_ = DeviceMemory(sizeof(std::uint32_t));
  claim_.fill(0);
}

Watch LocalRank::watch(const std::uint32_t* epoch, const WaitTimeout& timeout) const {
  // All 64-bit platforms have unified addressing: devices use the host's pointers.
  return {epoch, &signals_->abort, &signals_->stall, timeout.ns(), claim_.get<std::uint32_t>()};
}

WaitTimeout::WaitTimeout(double timeout_us) : word_(sizeof(std::uint64_t)) {
  set_us(timeout_us);
}

void WaitTimeout::set_us(double timeout_us) {
  constexpr double longest_us = 1e14;
  std::atomic_ref(*word_.get<std::uint64_t>())
      .store(static_cast<std::uint64_t>(std::min(timeout_us, longest_us) * 1e3), std::memory_order_release);
}

void LocalRank::abort() {
  std::atomic_ref(signals_->abort).store(1, std::memory_order_release);
}

bool LocalRank::aborted() const {
  return std::atomic_ref(signals_->abort).load(std::memory_order_acquire) != 0;
}

}  // namespace shingle::cuda
