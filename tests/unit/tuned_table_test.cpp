// Tables of what was tuned for NCCL: as JSON, and as the environment that carries what a tuner cannot set.
#include "cotune/tuned_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cotune/nccl_environment.hpp"
#include "shingle/base/error.hpp"

namespace shingle::tuned_table_test {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

TunedEntry entry(NcclCollective collective, int size_class, CollectiveConfig config) {
  return {.key = {.collective = collective, .size_class = size_class, .ranks = 8}, .config = config};
}

const TunedTable sample{{
    {.key = {.collective = NcclCollective::allgather, .size_class = 27, .ranks = 8},
     .config = {.channels = 4,
                .chunk_bytes = 684 << 10,
                .threads = 256,
                .algorithm = Algorithm::ring,
                .protocol = Protocol::simple,
                .transport = Transport::shm},
     .iteration_us = 1.0 / 3,
     .default_us = 1e6},
    {.key = {.collective = NcclCollective::allreduce,
             .size_class = 0,
             .ranks = 16,
             .nodes = 2,
             .communicator = 3},
     .config = {.channels = 64}},
    entry(NcclCollective::broadcast, 63, {}),
}};

std::string with(const std::string& fields) {
  return R"({"format": "shingle-nccl-tuning", "version": 1, "entries": [{"collective": "allgather", "size_class": 20, "ranks": 8)" +
         fields + "}]}";
}

TEST(TunedTable, JsonKeepsAll) {
  EXPECT_EQ(tuned_table_from_json(to_json(sample)), sample);
  EXPECT_EQ(tuned_table_from_json(to_json(TunedTable{})), TunedTable{});
  const TunedTable empty{{}, "none of 7 configurations was \"faster\""};
  EXPECT_EQ(tuned_table_from_json(to_json(empty)), empty);
}

TEST(TunedTable, RefusesWhatNcclHasNoUseFor) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      tuned_table_from_json(text);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(with("")), "accepted");
  EXPECT_EQ(refusal("[]"), "format must be 'shingle-nccl-tuning'");
  EXPECT_EQ(refusal(R"({"format": "shingle-nccl-tuning"})"), "version is missing");
  EXPECT_EQ(refusal(R"({"format": "shingle-nccl-tuning", "version": 2})"),
            "version 2 is not supported; expected 1");
  EXPECT_EQ(refusal(R"({"format": "shingle-nccl-tuning", "version": 1})"), "entries are missing");
  EXPECT_EQ(refusal(R"({"format": "shingle-nccl-tuning", "version": 1, "entries": [7]})"),
            "an entry must be an object, not 7");
  EXPECT_EQ(refusal(with(R"(, "channels": 65)")), "channels = 65 is outside [0, 64]");
  EXPECT_EQ(refusal(with(R"(, "channels": -1)")), "channels = -1 is outside [0, 64]");
  EXPECT_EQ(refusal(with(R"(, "threads": 100)")), "threads = 100 is not a multiple of 32");
  EXPECT_EQ(refusal(with(R"(, "chunk_bytes": 4095)")),
            "chunk_bytes = 4095 is below 4096; leave it out for NCCL's own choice");
  EXPECT_THAT(refusal(with(R"(, "transport": "pigeon")")), HasSubstr("'pigeon'"));
  EXPECT_THAT(refusal(with(R"(, "transport": "engines")")), HasSubstr("is not NCCL's"));
  EXPECT_EQ(refusal(with(R"(, "algorithm": "ring")")), "give both algorithm and protocol, or neither");
  EXPECT_THAT(refusal(with(R"(, "algorithm": "star", "protocol": "ll")")), HasSubstr("'star'"));
  EXPECT_EQ(refusal(with(R"(, "nodes": 9)")), "nodes = 9 is outside [1, 8]");
  std::string twice =
      to_json({{entry(NcclCollective::allgather, 20, {}), entry(NcclCollective::reduce, 20, {})}});
  twice.replace(twice.find("\"reduce\""), 8, "\"allgather\"");
  EXPECT_EQ(refusal(twice), "two entries for allgather of 1.0 MiB to 2.0 MiB on 8 ranks");
}

TEST(TunedTable, StoresOneEntryAKey) {
  TunedTable table = sample;
  store(table, entry(NcclCollective::broadcast, 63, {.channels = 2}));
  EXPECT_EQ(table.entries.size(), 3u);
  EXPECT_EQ(table.entries[2].config.channels, 2);
  store(table, entry(NcclCollective::broadcast, 62, {.channels = 2}));
  EXPECT_EQ(table.entries.size(), 4u);
}

TEST(TunedTable, SizeClassesArePowersOfTwo) {
  EXPECT_EQ(size_class(0), 0);
  EXPECT_EQ(size_class(1), 0);
  EXPECT_EQ(size_class(1023), 9);
  EXPECT_EQ(size_class(1024), 10);
  EXPECT_EQ(size_class(~std::uint64_t{0}), 63);
}

std::string value(const NcclEnvironment& environment, const std::string& name) {
  for (const NcclVariable& variable : environment.variables)
    if (variable.name == name) return variable.value;
  return "unset";
}

CollectiveConfig chunk(std::int64_t bytes, Algorithm algorithm, Protocol protocol) {
  return {.chunk_bytes = bytes, .algorithm = algorithm, .protocol = protocol};
}

// Against calcCollChunking() of NCCL 2.28.9, done by hand.
TEST(NcclEnvironment, MakesRoomForAChunk) {
  const auto buffer = [](NcclCollective collective, CollectiveConfig config, const char* name) {
    return value(nccl_environment({{entry(collective, 25, config)}}), name);
  };
  using enum NcclCollective;
  EXPECT_EQ(buffer(allgather, chunk(1 << 20, Algorithm::ring, Protocol::simple), "NCCL_BUFFSIZE"), "2097152");
  EXPECT_EQ(buffer(reducescatter, chunk(1 << 20, {}, {}), "NCCL_BUFFSIZE"), "2097152");
  EXPECT_EQ(buffer(broadcast, chunk(1 << 20, Algorithm::ring, Protocol::simple), "NCCL_BUFFSIZE"), "8388608");
  EXPECT_EQ(buffer(allreduce, chunk(1 << 20, Algorithm::tree, Protocol::simple), "NCCL_BUFFSIZE"), "8388608");
  EXPECT_EQ(buffer(allreduce, chunk(1 << 14, Algorithm::ring, Protocol::ll), "NCCL_LL_BUFFSIZE"), "262144");
  // 4,915,200 bytes, the default, hold chunks of 576,000.
  EXPECT_EQ(buffer(allreduce, chunk(576000, Algorithm::ring, Protocol::ll128), "NCCL_LL128_BUFFSIZE"),
            "4915200");
  EXPECT_EQ(buffer(allgather, chunk(1000, {}, {}), "NCCL_BUFFSIZE"), "4096") << "whole steps";
}

TEST(NcclEnvironment, SetsThreadsWithinNcclsLimits) {
  const auto threads = [](std::int32_t count, Protocol protocol) {
    return nccl_environment(
        {{entry(NcclCollective::allreduce, 30,
                {.threads = count, .algorithm = Algorithm::ring, .protocol = protocol})}});
  };
  EXPECT_EQ(value(threads(256, Protocol::simple), "NCCL_NTHREADS"), "256");
  EXPECT_EQ(value(threads(640, Protocol::simple), "NCCL_NTHREADS"), "512");
  EXPECT_EQ(value(threads(32, Protocol::ll), "NCCL_NTHREADS"), "64");
  EXPECT_EQ(value(threads(128, Protocol::ll128), "NCCL_LL128_NTHREADS"), "160");
  EXPECT_EQ(value(threads(256, Protocol::simple), "NCCL_THREAD_THRESHOLDS"), "unset");
}

TEST(NcclEnvironment, LowersTheThresholdOfSmallMessages) {
  // 16 KiB for 512 threads: 32 bytes each, less than the 64 below which NCCL halves them.
  const auto environment = nccl_environment(
      {{entry(NcclCollective::allreduce, 14,
              {.threads = 512, .algorithm = Algorithm::tree, .protocol = Protocol::simple})}});
  EXPECT_EQ(value(environment, "NCCL_THREAD_THRESHOLDS"), "-1 -1 32 -1 -1 -1");
}

TEST(NcclEnvironment, TheLargestSizeGetsItsValue) {
  const auto environment = nccl_environment({{
      entry(NcclCollective::allgather, 20, {.channels = 9, .chunk_bytes = 1 << 16}),
      entry(NcclCollective::allgather, 27, {.channels = 4, .chunk_bytes = 1 << 20}),
      entry(NcclCollective::reducescatter, 26, {.chunk_bytes = 1 << 20}),
  }});
  EXPECT_EQ(value(environment, "NCCL_BUFFSIZE"), "2097152");
  EXPECT_EQ(value(environment, "NCCL_MIN_CTAS"), "9") << "or the plugin is cut down";
  EXPECT_THAT(environment.conflicts,
              ElementsAre("allgather of 1.0 MiB to 2.0 MiB on 8 ranks needs NCCL_BUFFSIZE=131072"));
  EXPECT_THAT(environment.communicators, IsEmpty());
}

/// From NCCL 2.30 on the plugin sets the chunk of each call, within the buffers.
TEST(NcclEnvironment, OnlyRaisesBuffersWhereThePluginSetsChunks) {
  const auto simple = [](std::int64_t bytes) { return chunk(bytes, Algorithm::ring, Protocol::simple); };
  const TunedTable table{{
      entry(NcclCollective::allgather, 20, simple(1 << 16)),
      entry(NcclCollective::allgather, 27, simple(3 << 20)),
      entry(NcclCollective::reducescatter, 27, simple(4 << 20)),
      entry(NcclCollective::allreduce, 14, chunk(1 << 14, Algorithm::ring, Protocol::ll)),
      entry(NcclCollective::broadcast, 20, {.channels = 2}),
  }};
  const auto environment = nccl_environment(table, true);
  EXPECT_EQ(value(environment, "NCCL_BUFFSIZE"), "8388608");
  EXPECT_EQ(value(environment, "NCCL_LL_BUFFSIZE"), "unset") << "NCCL's own is large enough";
  EXPECT_THAT(environment.conflicts, IsEmpty());
  EXPECT_THAT(nccl_environment(table).conflicts.size(), 2u);
}

TEST(NcclEnvironment, ForbidsFasterTransports) {
  const auto environment = [](Transport transport) {
    return nccl_environment({{entry(NcclCollective::allgather, 27, {.transport = transport})}});
  };
  EXPECT_EQ(value(environment(Transport::p2p), "NCCL_P2P_LEVEL"), "SYS");
  EXPECT_EQ(value(environment(Transport::shm), "NCCL_P2P_LEVEL"), "LOC");
  EXPECT_EQ(value(environment(Transport::shm), "NCCL_SHM_DISABLE"), "0");
  EXPECT_EQ(value(environment(Transport::net), "NCCL_SHM_DISABLE"), "1");
  EXPECT_THAT(environment(Transport::automatic).variables, IsEmpty());
  const auto both = nccl_environment({{entry(NcclCollective::allgather, 27, {.transport = Transport::p2p}),
                                       entry(NcclCollective::allgather, 20, {.transport = Transport::shm})}});
  EXPECT_EQ(value(both, "NCCL_P2P_LEVEL"), "SYS");
  EXPECT_THAT(both.conflicts,
              ElementsAre("allgather of 1.0 MiB to 2.0 MiB on 8 ranks needs NCCL_P2P_LEVEL=LOC"));
}

TEST(NcclEnvironment, LimitsCommunicatorsThatAreToldApart) {
  TunedTable table{{entry(NcclCollective::allgather, 27, {.channels = 4}),
                    entry(NcclCollective::allgather, 20, {.channels = 2}),
                    entry(NcclCollective::reducescatter, 27, {.channels = 8})}};
  for (const int i : {0, 1, 2}) table.entries[static_cast<std::size_t>(i)].key.communicator = i / 2;
  const auto environment = nccl_environment(table);
  EXPECT_EQ(value(environment, "NCCL_MIN_CTAS"), "unset");
  EXPECT_THAT(environment.communicators,
              ElementsAre(CommunicatorLimits{0, 8, 4, 4, {NcclCollective::allgather}},
                          CommunicatorLimits{1, 8, 8, 8, {NcclCollective::reducescatter}}));
  EXPECT_EQ(shell_text(environment),
            "# communicator 0 of 8 ranks (allgather): ncclConfig_t minCTAs = 4, maxCTAs = 4\n"
            "# communicator 1 of 8 ranks (reducescatter): ncclConfig_t minCTAs = 8, maxCTAs = 8\n");
}

TEST(NcclEnvironment, IsTextForAShell) {
  EXPECT_EQ(shell_text(nccl_environment({{entry(NcclCollective::allgather, 27, {.chunk_bytes = 1 << 20})}})),
            "export NCCL_BUFFSIZE='2097152'  # allgather of 128.0 MiB to 256.0 MiB on 8 ranks\n");
}

}  // namespace
}  // namespace shingle::tuned_table_test
