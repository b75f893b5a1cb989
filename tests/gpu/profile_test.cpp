// GPUs measure their own profile. Skipped with a reason if there is no GPU.
#include "shingle/tune/profile.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "shingle/api/registry.hpp"
#include "shingle/machine/profile.hpp"

#ifdef SHINGLE_WITH_CUDA
#include "cuda/runtime/devices.hpp"
#endif

namespace shingle {
namespace {

int gpus() {
#ifdef SHINGLE_WITH_CUDA
  std::string why;
  return cuda::count_gpus(why);
#else
  return 0;
#endif
}

std::string origin_of(const Machine& machine, const std::string& of) {
  for (const Source& source : machine.sources)
    if (source.of == of) return std::string(name(source.origin));
  return "none";
}

/// Bounds that hold for any GPU with tensor cores.
TEST(CudaProfile, IsOfThisWorld) {
  if (gpus() == 0) GTEST_SKIP() << "no GPU here, or a build without CUDA";
  const auto world = make_world(gpus(), {.backend = "cuda"});
  const Machine found =
      profile(*world, {.repeat = 3, .budget_us = 60e6, .progress = [](const std::string& what) {
                         std::cout << what << std::endl;
                       }});
  for (const char* of :
       {"memory_gbps", "pass_gbps", "launch_us", "signal_us", "sync_us", "tiles", "library_rate"})
    EXPECT_EQ(origin_of(found, of), "measured") << of;
  EXPECT_GT(found.memory_gbps, 300);
  EXPECT_LT(found.memory_gbps, 20e3);
  EXPECT_GT(found.launch_us, 0.3);
  EXPECT_LT(found.launch_us, 30);
  EXPECT_GT(found.sync_us + found.signal_us, 0.3) << "until a lane goes on";
  EXPECT_LT(found.signal_us, 60);
  EXPECT_GT(found.library_rate, 0.7);
  EXPECT_LT(found.library_rate, 1.6);
  for (const TileShape& shape : world->capabilities().tiles) {
    const double us = wave_us(found, shape.rows, shape.cols, 4096);
    const double tflops = 2.0 * shape.rows * shape.cols * 4096 * found.workers / us * 1e-6;
    EXPECT_GT(tflops, 50) << shape.rows << "x" << shape.cols;
    EXPECT_LT(tflops, 5000) << shape.rows << "x" << shape.cols;
  }
  const bool sums = gpus() > 1 && world->capabilities().remote_memory;
  EXPECT_EQ(origin_of(found, "reduce_gbps"), sums ? "measured" : "none");
  EXPECT_EQ(origin_of(found, "engine") == "measured", sums);
  if (sums) {
    const EnginePhases& engine = found.engine;
    std::cout << "engines: control " << engine.control_us << ", schedule " << engine.schedule_us << ", copy "
              << engine.copy_us << ", sync " << engine.sync_us << ", queued " << engine.queued_us << ", poll "
              << engine.poll_us << ", broadcast " << engine.broadcast_us << ", swap " << engine.swap_us
              << " us; " << engine.gbps << " GB/s" << std::endl;
    EXPECT_GT(engine.gbps, 5);
    EXPECT_LT(engine.gbps, 1000);
    EXPECT_GT(engine.control_us, 0.05);
    EXPECT_LT(engine.control_us, 50);
    EXPECT_LT(engine.schedule_us, 100);
    EXPECT_GT(engine.queued_us, 0.05);
    EXPECT_LT(engine.sync_us, 50);
  }
  if (gpus() > 1) {
    const auto us = [&](double bytes) {
      return collective_us(found.curves, Traffic::allreduce, gpus(), 0, bytes);
    };
    EXPECT_GT(us(4096), 2);
    EXPECT_LT(us(4096), 200);
    EXPECT_GT(us(256 << 20), 5 * us(1 << 20));
  }
  EXPECT_EQ(machine_from_json(to_json(found)), found);
}

/// Checks the fit of how communication between several GPUs slows their computation.
TEST(CudaProfile, FitsContention) {
  if (gpus() < 2) GTEST_SKIP() << "fewer than two GPUs here, or a build without CUDA";
  const auto world = make_world(gpus(), {.backend = "cuda"});
  const Machine found =
      profile(*world, {.repeat = 3, .contention_only = true, .progress = [](const std::string& what) {
                         std::cout << what << std::endl;
                       }});
  ASSERT_GE(found.contention_samples.size(), 12u) << "of 24; some may not have been beside each other";
  for (const ContentionSample& sample : found.contention_samples) {
    SCOPED_TRACE(testing::Message() << name(sample.traffic) << " " << sample.workers << " " << sample.bytes);
    EXPECT_GT(sample.product_beside_us, 0.9 * sample.product_us);
    EXPECT_LT(sample.product_beside_us, 3 * sample.product_us);
    EXPECT_GT(sample.beside_us, 0.8 * sample.us);
  }
  EXPECT_EQ(origin_of(found, "contention"), "fitted");
  EXPECT_LT(*found.contention.product_residual, 0.2);
  EXPECT_EQ(machine_from_json(to_json(found)), found);
}

}  // namespace
}  // namespace shingle
