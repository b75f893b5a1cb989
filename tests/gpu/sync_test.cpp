// The sync kernels: epochs, counters, waits and deadlines.
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
    DeviceMemory counters = upload(std::vector<std::uint32_t>(most_sync_ops));
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
  cudaError_t launch(const std::vector<SyncOp>& ops, const Stream& on) const {
    return launch_sync(ops.data(), static_cast<int>(ops.size()), device_->watched.watch(), on.get());
  }
  void run(const std::vector<SyncOp>& ops, const Stream& on) const { check(launch(ops, on), "launch_sync"); }
  SyncOp until(int i, std::uint32_t target, std::uint32_t growth) const {
    return {SyncKind::await, counter(i), target, growth};
  }
  void await(int i, std::uint32_t target) const { run({until(i, target, 0)}, stream()); }
  void notify(int i, std::uint32_t value, const Stream& on, bool system = true) const {
    run({{SyncKind::add, counter(i), value, 0, system}}, on);
  }

  std::unique_ptr<Device> device_;
};

TEST_F(SyncTest, AwaitsManyCountsOverEpochs) {
  std::vector<SyncOp> awaits;
  for (int i = 0; i < most_sync_ops; ++i) awaits.push_back(until(i, 2, 5));
  for (int epoch = 0; epoch < 3; ++epoch) {
    begin();
    stream().synchronize();
    const Event done;
    run(awaits, stream());
    done.record(stream().get());
    for (int i = 0; i < most_sync_ops; ++i) notify(i, 1, other(), i % 2 == 0);
    other().synchronize();
    EXPECT_EQ(cudaEventQuery(done.get()), cudaErrorNotReady);  // every counter still lacks one
    for (int i = 0; i < most_sync_ops; ++i) notify(i, 4, other());
    stream().synchronize();
    other().synchronize();
    EXPECT_EQ(shared().abort, 0u);
  }
}

TEST_F(SyncTest, CountsWrapAround) {
  notify(0, 0xfffffff0u, stream());
  begin();
  await(0, 8);  // 24 ahead
  notify(0, 24, other());
  stream().synchronize();
  EXPECT_EQ(shared().abort, 0u);
}

TEST_F(SyncTest, SetsCountWithinTheEpoch) {
  for (std::uint32_t epoch = 0; epoch < 3; ++epoch) {
    begin();
    run({{SyncKind::set, counter(3), 2, 7}}, stream());
    stream().synchronize();
    EXPECT_EQ(download<std::uint32_t>(device_->counters)[3], epoch * 7 + 2);
  }
}

TEST_F(SyncTest, TheFirstWaitToFailSaysWhatIsMissing) {
  shared().timeout_ns = 100'000'000;
  notify(1, 3, stream());
  begin();
  await(1, 4);
  await(2, 9);
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
  await(0, 1);
  static_cast<volatile std::uint32_t&>(shared().abort) = 1;
  stream().synchronize();
  EXPECT_EQ(shared().stall.counter, nullptr);
}

TEST_F(SyncTest, DoesOneAfterTheOther) {
  begin();
  run({{SyncKind::add, counter(0), 1}, until(1, 1, 0), {SyncKind::add, counter(2), 1}}, stream());
  notify(1, 1, other());
  stream().synchronize();
  const auto counts = download<std::uint32_t>(device_->counters);
  EXPECT_EQ(counts[0], 1u);
  EXPECT_EQ(counts[2], 1u);
}

TEST_F(SyncTest, RefusesMoreThanItTakes) {
  EXPECT_EQ(launch(std::vector<SyncOp>(most_sync_ops + 1), stream()), cudaErrorInvalidValue);
  EXPECT_EQ(launch({}, stream()), cudaSuccess);
}

}  // namespace
}  // namespace shingle::cuda::test

#else
TEST(Sync, NeedsCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
