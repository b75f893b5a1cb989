// Machines by name, nodes of them, and collectives across nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "base/file.hpp"
#include "shingle/base/error.hpp"
#include "shingle/machine/profile.hpp"
#include "support/variable.hpp"

namespace shingle::machine_spec_test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;

/// Finds the profiles of this source tree, wherever the build is.
class Spec : public testing::Test {
 protected:
  static std::string refused(const std::string& spec) {
    try {
      machine_from_spec(spec);
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    return "nothing";
  }

 private:
  test::Variable machines_{"SHINGLE_MACHINES", SHINGLE_TEST_SOURCE_DIR "/machines"};
};

TEST_F(Spec, KnowsShippedProfilesByName) {
  EXPECT_EQ(machine_from_spec("h200x8"), read_machine(SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json"));
  EXPECT_EQ(machine_from_spec(" h200x8 "),
            machine_from_spec(SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json"));
  EXPECT_THAT(machine_names(), IsSupersetOf({"a40x8-nvlink", "h200x8", "mi300x8"}));
  for (const std::string& name : machine_names()) EXPECT_EQ(machine_from_spec(name).name, name);
}

TEST_F(Spec, PrefersOwnProfiles) {
  const std::filesystem::path own = std::filesystem::path(testing::TempDir()) / "own-machines";
  std::filesystem::create_directories(own);
  Machine machine = machine_from_spec("h200x8");
  machine.workers = 64;
  write_file_atomically((own / "h200x8.json").string(), to_json(machine));
  machine.name = "mine";
  write_file_atomically((own / "mine.json").string(), to_json(machine));
  const test::Variable machines("SHINGLE_MACHINES", own.string());
  EXPECT_EQ(machine_from_spec("h200x8").workers, 64);
  EXPECT_EQ(machine_from_spec("mine").workers, 64);
  EXPECT_THAT(machine_names(), Contains("mine"));
  std::filesystem::remove_all(own);
}

TEST_F(Spec, ComposesNodes) {
  const Machine m = machine_from_spec("h200x8 * 512, 8x400Gb/s");
  EXPECT_EQ(m.ranks, 4096);
  EXPECT_EQ(m.topology.ranks_per_node, 8);
  EXPECT_DOUBLE_EQ(m.topology.node.gbps, 400);
  EXPECT_GT(m.topology.node.latency_us, 0);
  EXPECT_EQ(m.workers, 132);
  EXPECT_EQ(machine_from_spec("h200x8*512,8x400Gb/s"), m);
  EXPECT_EQ(machine_from_json(to_json(m)), m);
  const Link one = machine_from_spec("a40x8-pcie * 2, 100Gb/s,2us").topology.node;
  EXPECT_EQ(one, (Link{12.5, 2}));
  EXPECT_EQ(machine_from_spec("a40x8-nvlink * 2, 2x400Gb/s,0us").topology.node, (Link{100, 0}));
}

TEST_F(Spec, RefusesInOneLine) {
  EXPECT_THAT(refused("b300"), HasSubstr("no machine 'b300' (a file, or one of "));
  EXPECT_THAT(refused("b300"), HasSubstr("h200x8, h800x8"));
  EXPECT_THAT(refused(""), HasSubstr("no machine ''"));
  EXPECT_THAT(refused("b300 * 2, 400Gb/s"), HasSubstr("b300"));
  EXPECT_THAT(refused("h200x8 * 512"), HasSubstr("lacks the link between nodes"));
  EXPECT_THAT(refused("h200x8 * many, 400Gb/s"), HasSubstr("'many' is not a number of nodes"));
  EXPECT_THAT(refused("h200x8 * 2 * 2, 400Gb/s"), HasSubstr("'2 * 2'"));
  EXPECT_THAT(refused("h200x8 * 0, 400Gb/s"), HasSubstr("0 nodes"));
  EXPECT_THAT(refused("h200x8 * 1000000, 400Gb/s"), HasSubstr("1000000 nodes"));
  EXPECT_THAT(refused("h200x8 * 2, 8x"), HasSubstr("link"));
  EXPECT_THAT(refused("h200x8 * 2, 0x400Gb/s"), HasSubstr("link between nodes"));
  EXPECT_THAT(refused("h200x8 * 2, 5us"), HasSubstr("link between nodes"));
  EXPECT_THAT(refused("h200x8 * 2, none"), HasSubstr("link between nodes"));
  EXPECT_THROW(machine_from_spec("nowhere/h200x8.json"), IoError);
  EXPECT_THROW(machine_of_nodes(Machine{}, 2, {50, 5}), InvalidArgument) << "says no ranks";
  EXPECT_THROW(machine_of_nodes(machine_from_spec("h200x8 * 2, 400Gb/s"), 2, {50, 5}), InvalidArgument);
}

TEST_F(Spec, CollectivesWithinANodeAreTheCurves) {
  const Machine node = machine_from_spec("h200x8"), m = machine_from_spec("h200x8 * 4, 8x400Gb/s");
  for (const Traffic traffic : all_traffic)
    for (const int ranks : {1, 2, 5, 8})
      for (const double bytes : {0.0, 1e5, 1e8}) {
        const double us = collective_us(m, traffic, ranks, 0, bytes);
        EXPECT_DOUBLE_EQ(us, collective_us(node, traffic, ranks, 0, bytes));
        EXPECT_DOUBLE_EQ(us, collective_us(node.curves, traffic, ranks, 0, bytes));
      }
}

/// Bytes pass through the node and over the nodes' links at once; latencies add up.
TEST_F(Spec, CollectivesAcrossNodesAreAPipeline) {
  const Machine node = machine_from_spec("h200x8"), m = machine_from_spec("h200x8 * 4, 8x400Gb/s,5us");
  const double bytes = 1e8;  // 250 µs over a node's link of 400 GB/s
  const auto us = [&](Traffic traffic, double of, double link_us, double latency_us) {
    const double first = collective_us(node, traffic, 8, 0, 0),
                 within = collective_us(node, traffic, 8, 0, of);
    return first + latency_us + std::max(within - first, link_us);
  };
  EXPECT_NEAR(collective_us(m, Traffic::allgather, 32, 0, bytes),
              us(Traffic::allgather, bytes, 0.75 * 250, 2 * 5), 1e-6);
  EXPECT_NEAR(collective_us(m, Traffic::allreduce, 32, 0, bytes),
              us(Traffic::allreduce, bytes, 2 * 0.75 * 250, 2 * 2 * 5), 1e-6);
  // Eight ranks send three quarters of their bytes to other nodes, a quarter to their own.
  EXPECT_NEAR(collective_us(m, Traffic::alltoall, 32, 0, bytes),
              us(Traffic::alltoall, bytes / 4, 8 * 0.75 * 250, 5), 1e-6);
}

TEST_F(Spec, CollectivesOfAnyMachineNeverFall) {
  Machine bare, paired, fast;
  bare.link = {50, 3};
  paired.link = {20, 5};
  paired.topology.pair = {200, 1};
  EXPECT_DOUBLE_EQ(collective_us(bare, Traffic::allreduce, 8, 0, 4e6), 6 * 3 + 1.75 * 80);
  EXPECT_DOUBLE_EQ(collective_us(paired, Traffic::allgather, 2, 0, 4e6), 1 + 0.5 * 20);
  EXPECT_DOUBLE_EQ(collective_us(paired, Traffic::allgather, 4, 0, 4e6), 2 * 5 + 0.75 * 200);
  EXPECT_EQ(collective_us(fast, Traffic::allgather, 8, 0, 1e9), 0) << "a link as fast as memory";
  bare.ranks = 4;
  for (const Machine& m : {bare, paired, machine_of_nodes(bare, 100, {25, 5}), machine_from_spec("h200x8"),
                           machine_from_spec("h200x8 * 512, 8x400Gb/s")})
    for (const Traffic traffic : all_traffic)
      for (const int ranks : {1, 2, 3, 8, 9, 31, 400, 4096, 100000})
        for (const int workers : {0, 1, 12, 1000}) {
          double last = 0;
          for (double bytes = 0.5; bytes < 1e11; bytes *= 3) {
            const double us = collective_us(m, traffic, ranks, workers, bytes);
            ASSERT_TRUE(std::isfinite(us));
            ASSERT_GE(us, last * (1 - 1e-12)) << m.name << " " << name(traffic) << " " << ranks;
            last = us;
          }
          EXPECT_EQ(last > 0, ranks > 1) << m.name << " " << name(traffic) << " " << ranks << " " << workers;
        }
}

}  // namespace
}  // namespace shingle::machine_spec_test
