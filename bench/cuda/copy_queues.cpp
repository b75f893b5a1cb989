// Which copies wait in the queue of which: copies that are blocked on one device, and one more copy on
// another stream. `push` copies to the peer, `pull` from it, `local` within the device. Needs two GPUs that
// reach each other.
#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "../report.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/raii/stream.hpp"
#include "shingle/base/error.hpp"

using namespace shingle;

namespace {

constexpr std::array copies{"push", "pull", "local"};
constexpr std::size_t bytes = 192 << 10;
constexpr int most_streams = 9;  // one more than the queues that a context has by default

std::atomic<bool> open{true};

void CUDART_CB wait_until_open(void*) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!open && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

struct Device {
  explicit Device(int number) : guard(number), memory(4 * bytes), streams(most_streams) {
    int reaches = 0;
    cuda::check(cudaDeviceCanAccessPeer(&reaches, number, 1 - number), "cudaDeviceCanAccessPeer");
    if (reaches == 0) throw Unsupported("the two GPUs do not reach each other");
    cuda::check(cudaDeviceEnablePeerAccess(1 - number, 0), "cudaDeviceEnablePeerAccess");
  }
  char* at(std::size_t part) const { return memory.get<char>() + part * bytes; }

  cuda::DeviceGuard guard;  // first: the rest is made on this device
  cuda::DeviceMemory memory;
  std::vector<cuda::Stream> streams;
};

/// Blocked and free copies use parts of their own.
void copy(const Device& own, const Device& peer, std::string_view kind, const cuda::Stream& stream,
          std::size_t part) {
  char* const to = kind == "push" ? peer.at(part) : own.at(part);
  const char* const from = kind == "pull" ? peer.at(part + 1) : own.at(part + 1);
  cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()), "cudaMemcpyAsync");
}

/// True if the copy on the first device ends while `count` copies are blocked.
bool passes(const std::array<const Device*, 2>& devices, int blocked_on, int count, std::string_view blocked,
            std::string_view kind) {
  open = false;
  {
    const cuda::DeviceGuard guard(blocked_on);
    const Device& own = *devices[static_cast<std::size_t>(blocked_on)];
    for (int i = 0; i < count; ++i) {
      const cuda::Stream& stream = own.streams[static_cast<std::size_t>(i)];
      cuda::check(cudaLaunchHostFunc(stream.get(), wait_until_open, nullptr), "cudaLaunchHostFunc");
      copy(own, *devices[static_cast<std::size_t>(1 - blocked_on)], blocked, stream, 0);
    }
  }
  const cuda::DeviceGuard guard(0);
  const cuda::Stream& stream = devices[0]->streams.back();
  copy(*devices[0], *devices[1], kind, stream, 2);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  bool passed = false;
  while (!passed && std::chrono::steady_clock::now() < end) passed = stream.idle();
  open = true;
  for (int number = 0; number < 2; ++number) {
    const cuda::DeviceGuard on(number);
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  return passed;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Which copies between two GPUs wait behind which");
  std::string json;
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);
  try {
    auto record = bench::record(argc, argv);
    const Device first(0), second(1);
    const std::array devices{&first, &second};
    for (const int on : {0, 1})
      for (const int count : {1, most_streams - 1})
        for (const std::string_view blocked : copies) {
          fmt::print("behind {} blocked {} of the {} device:", count, blocked, on == 0 ? "same" : "peer");
          for (const std::string_view kind : copies) {
            const bool passed = passes(devices, on, count, blocked, kind);
            fmt::print("  {} {}", kind, passed ? "passes" : "waits");
            record["rows"].push_back({{"blocked_on", on == 0 ? "same" : "peer"},
                                      {"blocked", blocked},
                                      {"count", count},
                                      {"copy", kind},
                                      {"passes", passed}});
          }
          fmt::print("\n");
        }
    bench::write(record, json);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "bench_cuda_copy_queues: {}\n", error.what());
    return 1;
  }
}
