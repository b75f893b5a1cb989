#include "processes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "cuda/nccl/api.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/runtime/deadline.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::cuda {
namespace {

CommKey all_ranks(int size) {
  CommKey key;
  key.ranks.resize(static_cast<std::size_t>(size));
  std::iota(key.ranks.begin(), key.ranks.end(), 0);
  key.max_ctas = 1;
  key.copy = -1;  // differs from that of every plan
  return key;
}

struct StreamDelete {
  void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
};

class NcclProcesses final : public Processes {
 public:
  NcclProcesses(Communicators& communicators, const LocalRank& rank, int size)
      : communicators_(communicators), rank_(rank), size_(size) {
    const DeviceGuard guard(rank.device());
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    stream_.reset(stream);
  }

  void tell(std::string_view) noexcept override {}
  void watch() override {}
  void peek() override {}

 private:
  std::vector<std::string> gather(std::string_view own, double timeout_us, std::size_t most_bytes) override {
    const DeviceGuard guard(rank_.device());
    const std::uint64_t bytes = own.size();
    const std::string sizes = gather_equal({reinterpret_cast<const char*>(&bytes), sizeof bytes}, timeout_us);
    std::vector<std::uint64_t> by_rank(static_cast<std::size_t>(size_));
    std::memcpy(by_rank.data(), sizes.data(), sizes.size());
    const std::uint64_t most = *std::ranges::max_element(by_rank);
    if (most > most_bytes)  // before allocating memory for it
      throw Timeout(fmt::format("rank {} sends {} bytes; at most {} are expected",
                                std::ranges::max_element(by_rank) - by_rank.begin(), most, most_bytes));
    std::string padded(own);
    padded.resize(most);
    const std::string whole = gather_equal(padded, timeout_us);
    std::vector<std::string> all;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank)
      all.push_back(whole.substr(rank * most, by_rank[rank]));
    return all;
  }

  /// Gathers the same number of bytes from every process.
  std::string gather_equal(std::string_view own, double timeout_us) {
    std::string all(own.size() * static_cast<std::size_t>(size_), '\0');
    if (own.empty()) return all;
    // Kept between calls: freeing it would wait for the device, which may wait for the outcome of this
    // exchange.
    if (scratch_.bytes() < all.size()) scratch_ = DeviceMemory(all.size());
    void* const memory = scratch_.get();
    char* const mine = static_cast<char*>(memory) + own.size() * static_cast<std::size_t>(rank_.rank());
    check(cudaMemcpyAsync(mine, own.data(), own.size(), cudaMemcpyHostToDevice, stream_.get()),
          "cudaMemcpyAsync");
    const ncclComm_t comm = communicators_.get(all_ranks(size_)).of(rank_.rank());
    check(nccl().ncclAllGather(mine, memory, own.size(), ncclUint8, comm, stream_.get()), "ncclAllGather");
    wait(timeout_us);
    check(cudaMemcpyAsync(all.data(), memory, all.size(), cudaMemcpyDeviceToHost, stream_.get()),
          "cudaMemcpyAsync");
    wait(timeout_us);
    return all;
  }

  void wait(double timeout_us) {
    const auto begin = std::chrono::steady_clock::now();
    for (cudaError_t state; (state = cudaStreamQuery(stream_.get())) != cudaSuccess;) {
      if (state != cudaErrorNotReady) check(state, "cudaStreamQuery");
      communicators_.check();
      const std::chrono::duration<double, std::micro> waited = std::chrono::steady_clock::now() - begin;
      if (waited.count() > timeout_us)
        throw UnnamedTimeout(fmt::format("not all processes came within {}", format_us(timeout_us)),
                             rank_.rank());
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  Communicators& communicators_;
  const LocalRank& rank_;
  int size_;
  std::unique_ptr<CUstream_st, StreamDelete> stream_;
  DeviceMemory scratch_;
};

}  // namespace

std::unique_ptr<Processes> connect_by_nccl(Communicators& communicators, const LocalRank& rank, int size) {
  return std::make_unique<NcclProcesses>(communicators, rank, size);
}

}  // namespace shingle::cuda
