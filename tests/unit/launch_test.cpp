// How a process finds out who started it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "backend/launch.hpp"
#include "shingle/base/error.hpp"

namespace shingle::launch_test {
namespace {

Launched from(const std::map<std::string, std::string>& variables) {
  return find_launcher([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Launch, AloneWithoutALauncher) {
  const Launched launched = from({});
  EXPECT_EQ(launched.by, "");
  EXPECT_FALSE(launched.several());
  EXPECT_EQ(launched.rank, 0);
  EXPECT_EQ(launched.size, 1);
}

TEST(Launch, Torchrun) {
  const Launched launched = from({{"RANK", "5"},
                                  {"WORLD_SIZE", "8"},
                                  {"LOCAL_RANK", "1"},
                                  {"LOCAL_WORLD_SIZE", "4"},
                                  {"MASTER_ADDR", "node7"},
                                  {"MASTER_PORT", "12345"}});
  EXPECT_EQ(launched.by, "torchrun");
  EXPECT_EQ(launched.rank, 5);
  EXPECT_EQ(launched.size, 8);
  EXPECT_EQ(launched.local_rank, 1);
  EXPECT_EQ(launched.local_size, 4);
  EXPECT_EQ(launched.master_host, "node7");
  EXPECT_EQ(launched.master_port, 12345);
}

TEST(Launch, OthersSetRankAndWorldSizeToo) {
  EXPECT_FALSE(from({{"RANK", "1"}, {"WORLD_SIZE", "2"}}).several());
}

TEST(Launch, OpenMpiOnOneHostNeedsNoAddress) {
  const Launched launched = from({{"OMPI_COMM_WORLD_RANK", "2"},
                                  {"OMPI_COMM_WORLD_SIZE", "4"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_EQ(launched.by, "mpirun");
  EXPECT_EQ(launched.local_rank, 2);
  EXPECT_EQ(launched.master_host, "127.0.0.1");
}

TEST(Launch, SeveralHostsNeedAnAddress) {
  const Launched launched = from({{"OMPI_COMM_WORLD_RANK", "2"},
                                  {"OMPI_COMM_WORLD_SIZE", "4"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(launched.master_host, "");
}

TEST(Launch, MpichWithoutLocalRanks) {
  const Launched launched = from({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}});
  EXPECT_EQ(launched.by, "mpirun");
  EXPECT_EQ(launched.local_rank, 1);
  EXPECT_EQ(launched.local_size, 3);
}

TEST(Launch, SlurmStepButNotItsBatchScript) {
  std::map<std::string, std::string> variables{{"SLURM_JOB_ID", "77"},
                                               {"SLURM_PROCID", "3"},
                                               {"SLURM_NTASKS", "8"},
                                               {"SLURM_LOCALID", "3"},
                                               {"MASTER_ADDR", "node1"}};
  EXPECT_FALSE(from(variables).several());
  variables["SLURM_STEP_ID"] = "0";
  variables["SLURM_STEP_TASKS_PER_NODE"] = "4(x2)";
  const Launched launched = from(variables);
  EXPECT_EQ(launched.by, "srun");
  EXPECT_EQ(launched.rank, 3);
  EXPECT_EQ(launched.size, 8);
  EXPECT_EQ(launched.local_size, 4);
}

TEST(Launch, NamesTheVariableThatIsWrong) {
  const std::map<std::string, std::string> good{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}};
  EXPECT_TRUE(from(good).several());
  const std::pair<const char*, const char*> wrong[] = {
      {"RANK", "two"},     {"RANK", "2"},        {"RANK", "-1"},           {"RANK", ""},
      {"RANK", "1x"},      {"RANK", "1(2"},      {"WORLD_SIZE", "0"},      {"WORLD_SIZE", "9999999999"},
      {"LOCAL_RANK", "7"}, {"MASTER_PORT", "0"}, {"MASTER_PORT", "65536"}, {"LOCAL_WORLD_SIZE", "3"}};
  for (const auto& [name, value] : wrong) {
    auto variables = good;
    variables[name] = value;
    try {
      from(variables);
      ADD_FAILURE() << name << "=" << value;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(std::string(name) + "=" + value + " is not"));
    }
  }
}

}  // namespace
}  // namespace shingle::launch_test
