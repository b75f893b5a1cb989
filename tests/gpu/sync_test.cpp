// The small kernels: epochs, counts, waits and their deadlines.
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <memory>

#include "cuda/kernels/sync.hpp"
#include "device.hpp"

namespace shingle::cuda::test {
namespace {

class SyncTest : public ::testing::Test {
 protected:
  struct Device {
    Watched watched;
    DeviceMemory counters = upload(std::vector<std::uint32_t>(most_targets));
    Stream stream, other;
  };

  void SetUp() override {
    if (!gpu_here()) GTEST_SKIP() << "no GPU here: /dev/nvidia0 does not exist";
    check(preload_sync(), "preload_sync");
    device_ = std::make_unique<Device>();
  }
  const Stream& stream() const { return device_->stream; }
  const Stream& other() const { return device_->other; }
  Watched::Shared& shared() const { return device_->watched.shared(); }
  std::uint32_t* counter(int i = 0) const { return device_->counters.get<std::uint32_t>() + i; }

  void begin() const { check(launch_begin(device_->watched.epoch(), stream().get()), "launch_begin"); }
  void await(const Target& target) const {
    check(launch_await(&target, 1, device_->watched.watch(), stream().get()), "launch_await");
  }
  void notify(int i, std::uint32_t value, const Stream& on, bool system = true) const {
    check(launch_notify(counter(i), value, system, on.get()), "launch_notify");
  }

  std::unique_ptr<Device> device_;
};

TEST_F(SyncTest, AwaitsManyCountsOverEpochs) {
  std::vector<Target> targets;
  for (int i = 0; i < most_targets; ++i) targets.push_back({counter(i), 2, 5});
  for (int epoch = 0; epoch < 3; ++epoch) {
    begin();
    stream().synchronize();
    const Event done;
    check(launch_await(targets.data(), most_targets, device_->watched.watch(), stream().get()),
          "launch_await");
    done.record(stream().get());
    for (int i = 0; i < most_targets; ++i) notify(i, 1, other(), i % 2 == 0);
    other().synchronize();
    EXPECT_EQ(cudaEventQuery(done.get()), cudaErrorNotReady);  // one is missing everywhere
    for (int i = 0; i < most_targets; ++i) notify(i, 4, other());
    stream().synchronize();
    other().synchronize();
    EXPECT_EQ(shared().abort, 0u);
  }
}

TEST_F(SyncTest, CountsWrapAround) {
  notify(0, 0xfffffff0u, stream());
  begin();
  const Target target{counter(), 8, 0};  // 24 steps ahead
  await(target);
  notify(0, 24, other());
  stream().synchronize();
  EXPECT_EQ(shared().abort, 0u);
}

TEST_F(SyncTest, SetsCountWithinTheEpoch) {
  for (std::uint32_t epoch = 0; epoch < 3; ++epoch) {
    begin();
    check(launch_set(counter(3), 2, 7, device_->watched.watch(), stream().get()), "launch_set");
    stream().synchronize();
    EXPECT_EQ(download<std::uint32_t>(device_->counters)[3], epoch * 7 + 2);
  }
}

TEST_F(SyncTest, TheFirstWaitToFailSaysWhatIsMissing) {
  shared().timeout_ns = 100'000'000;
  notify(1, 3, stream());
  begin();
  const Target target{counter(1), 4, 0}, later{counter(2), 9, 0};
  await(target);
  await(later);
  stream().synchronize();
  const Watched::Shared& left = shared();
  EXPECT_EQ(left.abort, 1u);
  EXPECT_EQ(left.stall.seen, 3u);
  EXPECT_EQ(left.stall.wanted, 4u);
  EXPECT_EQ(left.stall.counter, counter(1));
}

TEST_F(SyncTest, TheHostEndsWaits) {
  shared().timeout_ns = 60'000'000'000;
  begin();
  stream().synchronize();
  const Target target{counter(), 1, 0};
  await(target);
  static_cast<volatile std::uint32_t&>(shared().abort) = 1;
  stream().synchronize();
  EXPECT_EQ(shared().stall.counter, nullptr);
}

TEST_F(SyncTest, RefusesMoreTargetsThanItTakes) {
  const std::vector<Target> targets(most_targets + 1);
  EXPECT_EQ(launch_await(targets.data(), most_targets + 1, device_->watched.watch(), stream().get()),
            cudaErrorInvalidValue);
  EXPECT_EQ(launch_await(nullptr, 0, device_->watched.watch(), stream().get()), cudaSuccess);
}

}  // namespace
}  // namespace shingle::cuda::test

#else
TEST(Sync, NeedsCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
