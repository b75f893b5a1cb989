// The phases of copy engines: as text, in profiles, and on the clock of the host's engines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "host/executor/copy_queue.hpp"
#include "shingle/base/error.hpp"
#include "shingle/machine/profile.hpp"

namespace shingle::engine_phases_test {
namespace {

using testing::HasSubstr;

constexpr EnginePhases all{.control_us = 1,
                           .schedule_us = 2,
                           .copy_us = 3,
                           .gbps = 60,
                           .sync_us = 4,
                           .fetch_us = 5,
                           .queued_us = 0.5,
                           .poll_us = 6,
                           .broadcast_us = 7,
                           .swap_us = 8};

TEST(EnginePhases, AreReadFromText) {
  EXPECT_EQ(parse_engine("control=1us,schedule=2us,copy=3us,rate=60GB/s,sync=4us,fetch=5us,queued=0.5us,"
                         "poll=6us,broadcast=7us,swap=8us"),
            all);
  EXPECT_EQ(parse_engine("poll=6us"), EnginePhases{.poll_us = 6});
  EXPECT_TRUE(parse_engine("queued=1us").paced());
  for (const char* wrong : {"polls=1us", "fetch=1us,fetch=2us", "swap"})
    EXPECT_THROW(parse_engine(wrong), InvalidArgument) << wrong;
}

Machine machine_with(const EnginePhases& engine) {
  Machine machine;
  machine.name = "engines";
  machine.engine = engine;
  for (const char* of : {"workers", "engine"}) machine.sources.push_back({of, Origin::assumed, "a test"});
  return machine;
}

TEST(EnginePhases, StayInProfiles) {
  EXPECT_EQ(machine_from_json(to_json(machine_with(all))).engine, all);
  nlohmann::json old = nlohmann::json::parse(to_json(machine_with(all)));
  const std::vector<const char*> added{"fetch_us", "queued_us", "poll_us", "broadcast_us", "swap_us"};
  for (const char* key : added) old["engine"].erase(key);
  const EnginePhases first{.control_us = 1, .schedule_us = 2, .copy_us = 3, .gbps = 60, .sync_us = 4};
  EXPECT_EQ(machine_from_json(old.dump()).engine, first) << "profiles without them are valid";
  for (const char* key : added)
    EXPECT_FALSE(nlohmann::json::parse(to_json(machine_with(first)))["engine"].contains(key)) << key;
  old["engine"]["poll_us"] = -1;
  EXPECT_THROW(machine_from_json(old.dump()), InvalidArgument);
}

double us_since(host::Clock::time_point start, host::Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - start).count();
}

constexpr double second_us = 1e6;  // that this test's thread may be held up

TEST(EnginePhases, AreSpentByTheHostsEngines) {
  const auto start = host::Clock::now();
  host::CopyQueue queue({.copy_us = 30e6, .sync_us = 5e6, .queued_us = 10e6});
  queue.start(0, start, 0);
  EXPECT_NEAR(us_since(start, queue.done()), 30e6, second_us);
  queue.start(0, start, 7e6);
  EXPECT_NEAR(us_since(start, queue.done()), 10e6 + 30e6 + 7e6, second_us) << "behind another, and beyond";
  EXPECT_NEAR(us_since(start, queue.synchronised()), 47e6 + 5e6, second_us);
  host::Launchers launchers({.control_us = 2e6, .schedule_us = 3e6, .fetch_us = 20e6}, 1);
  EXPECT_NEAR(us_since(start, launchers.submit(0, 2, 1)), 7e6 + 20e6, second_us);
  EXPECT_NEAR(us_since(start, launchers.submit(0, 2, 1)), 14e6 + 20e6, second_us)
      << "fetched beside each other";
}

}  // namespace
}  // namespace shingle::engine_phases_test
