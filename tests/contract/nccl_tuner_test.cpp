// The tuner plugin of NCCL with a table: what it answers is what the table says, and whatever is wrong with
// table, surroundings or peers, the answer is NCCL's own choice, on all ranks alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "base/file.hpp"
#include "support/free_port.hpp"
#include "support/in_processes.hpp"
#include "support/nccl_harness.hpp"

namespace shingle::test::nccl_tuner_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr NcclDecision ring_simple{abi::ring, abi::simple, 0};  // NCCL's choice with the usual costs
constexpr std::size_t mib = 1 << 20;

class NcclTuner : public testing::Test {
 protected:
  NcclTuner() {
    std::string name = testing::TempDir() + "nccl_tuner.XXXXXX";
    folder = ::mkdtemp(name.data());
    path = folder / "table.json";
    NcclLog::take();
  }
  ~NcclTuner() override { std::filesystem::remove_all(folder); }

  void write(const TunedTable& table) const { write_file_atomically(path.string(), to_json(table)); }
  /// The first rank's answers, all of which are in one process.
  std::vector<NcclDecision> ask_all(std::size_t ranks, NcclCollective collective, std::size_t bytes) {
    std::vector<NcclDecision> answers(ranks);
    const std::uint64_t id = next_id++;
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        NcclCommunicator communicator(plugin, id, ranks);
        answers[rank] = communicator.call(collective, bytes);
      });
    for (std::thread& thread : threads) thread.join();
    for (const NcclDecision& answer : answers) EXPECT_EQ(answer, answers[0]);
    return answers;
  }
  NcclDecision ask(NcclCollective collective, std::size_t bytes) { return ask_all(2, collective, bytes)[0]; }

  std::filesystem::path folder, path;
  NcclPlugin plugin{SHINGLE_TEST_NCCL_TUNER};
  std::uint64_t next_id = std::uint64_t(::getpid()) << 20;
};

TunedEntry entry(NcclCollective collective, std::size_t bytes, CollectiveConfig config, int ranks = 2) {
  return {.key = {.collective = collective, .size_class = size_class(bytes), .ranks = ranks},
          .config = config};
}

const CollectiveConfig two_channels{.channels = 2};
const CollectiveConfig ring_ll128{.channels = 4, .algorithm = Algorithm::ring, .protocol = Protocol::ll128};
const CollectiveConfig tree_simple{.algorithm = Algorithm::tree, .protocol = Protocol::simple};

TEST_F(NcclTuner, AnswersWhatTheTableSays) {
  write({{entry(NcclCollective::allgather, 16 * mib, ring_ll128),
          entry(NcclCollective::allreduce, 16 * mib, tree_simple),
          entry(NcclCollective::reducescatter, 16 * mib, two_channels)}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  EXPECT_EQ(ask(NcclCollective::allgather, 16 * mib), (NcclDecision{abi::ring, abi::ll128, 4}));
  EXPECT_EQ(ask(NcclCollective::allgather, 32 * mib - 1), (NcclDecision{abi::ring, abi::ll128, 4}));
  EXPECT_EQ(ask(NcclCollective::allgather, 32 * mib), ring_simple) << "another class";
  EXPECT_EQ(ask(NcclCollective::allgather, 16 * mib - 1), ring_simple) << "another class";
  EXPECT_EQ(ask(NcclCollective::allreduce, 16 * mib), (NcclDecision{abi::tree, abi::simple, 0}));
  EXPECT_EQ(ask(NcclCollective::reducescatter, 16 * mib), (NcclDecision{abi::ring, abi::simple, 2}));
  EXPECT_EQ(ask(NcclCollective::broadcast, 16 * mib), ring_simple);
  EXPECT_EQ(ask_all(3, NcclCollective::allgather, 16 * mib)[0], ring_simple) << "another number of ranks";
  EXPECT_THAT(NcclLog::take(), IsEmpty());
}

TEST_F(NcclTuner, ChangesNothingButTheCostOfItsChoice) {
  write({{entry(NcclCollective::allgather, mib, ring_ll128)}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string()), deadline("SHINGLE_TUNER_DEADLINE", "50ms");
  NcclPlugin own(SHINGLE_TEST_NCCL_TUNER);
  std::thread peer([&, id = next_id] { NcclCommunicator communicator(own, id, 2); });
  NcclCommunicator communicator(own, next_id, 2);
  peer.join();
  Costs costs = usual_costs(NcclCollective::allgather), expected = costs;
  expected[abi::ring][abi::ll128] = 0;
  int channels = 0;
  communicator.ask(static_cast<int>(NcclCollective::allgather), mib, costs, channels);
  EXPECT_EQ(costs, expected);
  EXPECT_EQ(channels, 4);

  // Where the call cannot run so, all stays as it was.
  costs[abi::ring][abi::ll128] = abi::ignored;
  expected = costs;
  for (channels = 0; int i : {0, 1, 2}) {
    communicator.ask(static_cast<int>(NcclCollective::allgather), mib, costs, channels);
    EXPECT_EQ(std::memcmp(&costs, &expected, sizeof costs), 0) << i;
    EXPECT_EQ(channels, 0);
  }
  EXPECT_THAT(NcclLog::take(), ElementsAre(HasSubstr("allgather of 1.0 MiB cannot run as the table says")));
}

TEST_F(NcclTuner, LeavesChannelsAloneWhereNcclWouldNotCapThem) {
  write({{entry(NcclCollective::allreduce, mib, two_channels)}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  std::thread peer([&, id = next_id] { NcclCommunicator communicator(plugin, id, 2); });
  NcclCommunicator communicator(plugin, next_id, 2);
  peer.join();
  Costs costs = usual_costs(NcclCollective::allreduce);
  costs[abi::collnet_chain][abi::simple] = 40;
  int channels = 0;
  communicator.ask(static_cast<int>(NcclCollective::allreduce), mib, costs, channels);
  EXPECT_EQ(decide(costs, channels), (NcclDecision{abi::collnet_chain, abi::simple, 0}));
}

TEST_F(NcclTuner, KeepsInsideATableOfAnotherShape) {
  write({{entry(NcclCollective::allgather, mib, ring_ll128),
          entry(NcclCollective::reducescatter, mib, two_channels)}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  std::thread peer([&, id = next_id] { NcclCommunicator communicator(plugin, id, 2); });
  NcclCommunicator communicator(plugin, next_id, 2);
  peer.join();
  auto& tuner = plugin.symbol<abi::TunerV5>("ncclTunerPlugin_v5");
  const auto ask_shape = [&](int function, std::vector<float>& costs, int algorithms, int protocols) {
    int channels = 0;
    EXPECT_EQ(
        tuner.get_coll_info(communicator.context(), function, mib, 1, reinterpret_cast<float**>(costs.data()),
                            algorithms, protocols, 1, &channels),
        abi::success);
    return channels;
  };
  const auto gather = static_cast<int>(NcclCollective::allgather);
  std::vector<float> wide(9 * 4, 5.f), narrow(2, 5.f), none;
  EXPECT_EQ(ask_shape(gather, wide, 9, 4), 4);
  EXPECT_EQ(wide[abi::ring * 4 + abi::ll128], 0.f);
  EXPECT_EQ(std::ranges::count(wide, 0.f), 1);
  EXPECT_EQ(ask_shape(gather, narrow, 2, 1), 0) << "has no column for LL128";
  EXPECT_THAT(narrow, ElementsAre(5.f, 5.f));
  for (const int function : {-1, 5, 8, 255, 256, 1 << 30}) {
    std::vector<float> costs(21, 5.f);
    EXPECT_EQ(ask_shape(function, costs, 7, 3), 0);
    EXPECT_EQ(std::ranges::count(costs, 5.f), 21);
  }
  EXPECT_EQ(ask_shape(gather, none, 0, 0), 0);
  int channels = 0;
  EXPECT_EQ(tuner.get_coll_info(communicator.context(), gather, mib, 1, nullptr, 7, 3, 0, &channels),
            abi::success);
  EXPECT_EQ(tuner.get_coll_info(nullptr, gather, mib, 1, reinterpret_cast<float**>(wide.data()), 9, 4, 0,
                                &channels),
            abi::success);
  EXPECT_EQ(tuner.finalize(nullptr), abi::success);
}

TEST_F(NcclTuner, ServesVersion4) {
  write({{entry(NcclCollective::allgather, mib, ring_ll128)}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string()),
      learn("SHINGLE_TUNER_LEARN", (folder / "l").string());
  auto& tuner = plugin.symbol<abi::TunerV4>("ncclTunerPlugin_v4");
  void* context = nullptr;
  ASSERT_EQ(tuner.init(2, 1, NcclLog::log, &context), abi::success);
  Costs costs = usual_costs(NcclCollective::allgather);
  int channels = 0;
  ASSERT_EQ(tuner.get_coll_info(context, static_cast<int>(NcclCollective::allgather), mib, 1,
                                reinterpret_cast<float**>(costs.data()), 7, 3, 0, &channels),
            abi::success);
  EXPECT_EQ(decide(costs, channels), (NcclDecision{abi::ring, abi::ll128, 4}));
  EXPECT_EQ(tuner.destroy(context), abi::success);
  EXPECT_THAT(NcclLog::take(), ElementsAre(HasSubstr("does not tune online")));
}

/// Two ranks with version 6 of the interface.
struct Pair {
  Pair(const NcclPlugin& plugin, std::uint64_t id) {
    std::thread other([&] { second = std::make_unique<NcclCommunicator>(plugin, id, 2, 1, 6); });
    first = std::make_unique<NcclCommunicator>(plugin, id, 2, 1, 6);
    other.join();
  }
  std::vector<NcclDecision> call_group(const std::vector<NcclCommunicator::Part>& group) const {
    const auto told = first->call_group(group);
    EXPECT_EQ(second->call_group(group), told);
    return told;
  }
  NcclDecision call(NcclCollective collective, std::size_t bytes) const {
    return call_group({{collective, bytes}}).front();
  }
  std::unique_ptr<NcclCommunicator> first, second;
};

TEST_F(NcclTuner, SetsTheChunkSizeOfACallWithVersion6) {
  write({{entry(NcclCollective::allgather, 16 * mib, {.channels = 4, .chunk_bytes = 684 << 10}),
          entry(NcclCollective::allgather, 64 * mib, {.chunk_bytes = 1 << 20}),
          entry(NcclCollective::reducescatter, 16 * mib, {.chunk_bytes = 64 * mib}),
          entry(NcclCollective::allreduce, 16 * mib,
                {.chunk_bytes = 1 << 16, .algorithm = Algorithm::tree, .protocol = Protocol::simple})}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  const Pair ranks(plugin, next_id++);
  const auto chunk = [&](NcclCollective collective, std::size_t bytes) {
    return ranks.call(collective, bytes).chunk_bytes;
  };
  EXPECT_EQ(ranks.call(NcclCollective::allgather, 16 * mib),
            (NcclDecision{abi::ring, abi::simple, 4, 684 << 10}));
  EXPECT_EQ(chunk(NcclCollective::allgather, 64 * mib), mib) << "each class has its own";
  EXPECT_EQ(chunk(NcclCollective::allgather, 32 * mib), 0u) << "NCCL's own";
  EXPECT_EQ(chunk(NcclCollective::reducescatter, 16 * mib), usual_chunk) << "NCCL lowers it";
  EXPECT_EQ(ranks.call(NcclCollective::allreduce, 16 * mib),
            (NcclDecision{abi::tree, abi::simple, 0, 1 << 16}));
  EXPECT_EQ(ask(NcclCollective::allgather, 16 * mib), (NcclDecision{abi::ring, abi::simple, 4}))
      << "version 5 sets none";
}

TEST_F(NcclTuner, TellsChunksOfAGroupApartByCollective) {
  write({{entry(NcclCollective::allgather, 16 * mib, {.chunk_bytes = 1 << 18}),
          entry(NcclCollective::allgather, 64 * mib, {.chunk_bytes = 1 << 20}),
          entry(NcclCollective::reducescatter, 16 * mib, {.chunk_bytes = 1 << 19})}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  const Pair ranks(plugin, next_id++);
  using enum NcclCollective;
  const auto chunks = [&](const std::vector<NcclCommunicator::Part>& group) {
    std::vector<std::size_t> all;
    for (const NcclDecision& decision : ranks.call_group(group)) all.push_back(decision.chunk_bytes);
    return all;
  };
  EXPECT_THAT(chunks({{allgather, 16 * mib}, {reducescatter, 16 * mib}, {allgather, 17 * mib}}),
              ElementsAre(1 << 18, 1 << 19, 1 << 18));
  EXPECT_THAT(chunks({{allgather, 16 * mib}, {reducescatter, 16 * mib}, {allgather, 64 * mib}}),
              ElementsAre(0, 1 << 19, 0))
      << "gathers with different chunks";
  EXPECT_THAT(chunks({{allgather, 64 * mib}, {allgather, mib}}), ElementsAre(0, 0)) << "one has no choice";
  EXPECT_THAT(chunks({{allgather, 64 * mib}}), ElementsAre(1 << 20)) << "groups do not mix";
}

TEST_F(NcclTuner, AnswersStrangeQuestionsOfChunksWithNcclsOwn) {
  write({{entry(NcclCollective::allgather, mib, {.chunk_bytes = 4096})}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  const Pair ranks(plugin, next_id++);
  EXPECT_EQ(ranks.call(NcclCollective::allgather, mib).chunk_bytes, 4096u);
  const auto& tuner = plugin.symbol<abi::TunerV6>("ncclTunerPlugin_v6");
  const auto gather = static_cast<int>(NcclCollective::allgather);
  for (const auto& [function, algorithm] :
       {std::pair{-1, abi::ring}, {5, abi::ring}, {1 << 30, abi::ring}, {gather, abi::nvls}, {gather, -1}}) {
    std::size_t chunk = 77;
    EXPECT_EQ(tuner.get_chunk_size(ranks.first->context(), function, mib, algorithm, 2, 1, &chunk), 0);
    EXPECT_EQ(chunk, 77u) << function << " " << algorithm;
  }
  std::size_t chunk = 77;
  EXPECT_EQ(tuner.get_chunk_size(nullptr, gather, mib, abi::ring, 2, 1, &chunk), abi::success);
  EXPECT_EQ(tuner.get_chunk_size(ranks.first->context(), gather, mib, abi::ring, 2, 1, nullptr),
            abi::success);
  EXPECT_EQ(chunk, 77u);
}

TEST_F(NcclTuner, FallsBackWhereTheTableIsMissing) {
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  EXPECT_EQ(ask(NcclCollective::allgather, mib), ring_simple);
  EXPECT_EQ(ask(NcclCollective::allgather, mib), ring_simple);
  EXPECT_THAT(NcclLog::take(), ElementsAre(HasSubstr("table.json: No such file"))) << "once";
}

TEST_F(NcclTuner, FallsBackWhereTheTableIsCorrupt) {
  const std::string good = to_json({{entry(NcclCollective::allgather, mib, ring_ll128)}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  const auto answer_with = [&](const std::string& text) {
    write_file_atomically(path.string(), text);
    return ask(NcclCollective::allgather, mib);
  };
  const NcclDecision tuned{abi::ring, abi::ll128, 4};
  ASSERT_EQ(answer_with(good), tuned);
  for (std::size_t length = 0; length + 2 < good.size(); length += 7)
    EXPECT_EQ(answer_with(good.substr(0, length)), ring_simple) << length;
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {  // any answer that NCCL can give will do
    std::string text = good;
    for (int edits = 0; edits < 3; ++edits) text[random() % text.size()] = static_cast<char>(random());
    const NcclDecision answer = answer_with(text);
    EXPECT_EQ(answer.algorithm, abi::ring);
    EXPECT_LE(answer.channels, abi::most_channels);
  }
  NcclLog::take();
  EXPECT_EQ(answer_with(R"({"format": "shingle-nccl-tuning", "version": 99, "entries": []})"), ring_simple);
  EXPECT_THAT(NcclLog::take(), ElementsAre(HasSubstr("version 99 is not supported; expected 1")));
}

TEST_F(NcclTuner, ServesManyCommunicatorsAtOnce) {
  TunedTable table;
  for (const int ranks : {2, 3, 4})
    for (int k = 15; k < 25; ++k)
      table.entries.push_back(
          entry(NcclCollective::allreduce, std::size_t{1} << k, {.channels = ranks * 10 + k % 8}, ranks));
  write(table);
  const Variable variable("SHINGLE_TUNER_TABLE", path.string());
  std::vector<std::thread> threads;
  for (const int ranks : {2, 3, 4, 2, 3, 4}) {
    const std::uint64_t id = next_id++;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([this, id, ranks] {
        NcclCommunicator communicator(plugin, id, static_cast<std::size_t>(ranks));
        for (int i = 0; i < 2000; ++i) {
          const int k = 10 + i % 20;
          const int channels = k < 15 || k >= 25 ? 0 : ranks * 10 + k % 8;
          ASSERT_EQ(communicator.call(NcclCollective::allreduce, std::size_t{1} << k),
                    (NcclDecision{abi::ring, abi::simple, channels}));
        }
      });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(NcclLog::take(), IsEmpty());
}

TEST_F(NcclTuner, TellsCommunicatorsApartWhereAllRanksDo) {
  auto own = entry(NcclCollective::allreduce, mib, two_channels);
  own.key.communicator = 1;
  write({{own, entry(NcclCollective::allreduce, mib, {.channels = 7})}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  EXPECT_EQ(ask(NcclCollective::allreduce, mib).channels, 7);
  EXPECT_EQ(ask(NcclCollective::allreduce, mib).channels, 2) << "the second of the process";
  EXPECT_EQ(ask(NcclCollective::allreduce, mib).channels, 7);
}

// ---- Ranks in processes of their own.

class NcclTunerProcesses : public NcclTuner {
 protected:
  /// Channels that a rank is told for an all-gather of 1 MiB.
  int channels(std::uint64_t id, std::size_t ranks) const {
    NcclCommunicator communicator(plugin, id, ranks);
    return communicator.call(NcclCollective::allgather, mib).channels;
  }
};

TEST_F(NcclTunerProcesses, AgreeOnOneTable) {
  write({{entry(NcclCollective::allgather, mib, {.channels = 5}, 4)}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  EXPECT_THAT(in_processes(4, [&](int) { return channels(next_id, 4); }), ElementsAre(5, 5, 5, 5));
}

TEST_F(NcclTunerProcesses, TakeNcclsChoiceWhereTheirTablesDiffer) {
  write({{entry(NcclCollective::allgather, mib, {.channels = 5}, 3)}});
  const auto run = [&](int rank) {
    const Variable table("SHINGLE_TUNER_TABLE", rank == 2 ? "/nowhere" : path.string());
    return channels(next_id, 3);
  };
  EXPECT_THAT(in_processes(3, run), ElementsAre(0, 0, 0));
}

TEST_F(NcclTunerProcesses, TakeNcclsChoiceWhereOneDoesNotCome) {
  write({{entry(NcclCollective::allgather, mib, {.channels = 5}, 3)}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string()), deadline("SHINGLE_TUNER_DEADLINE", "300ms");
  const auto run = [&](int) {
    const int told = channels(next_id, 3);
    for (const std::string& line : NcclLog::take())
      if (line.find("not all 3 ranks of a communicator loaded") != std::string::npos) return told;
    return 100;
  };
  EXPECT_THAT(in_processes(2, run), ElementsAre(0, 0));
}

TEST_F(NcclTunerProcesses, DoNotTakeUpWhatADeadJobLeft) {
  write({{entry(NcclCollective::allgather, mib, {.channels = 5}, 2)}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  const std::uint64_t id = next_id;  // NCCL_COMM_ID gives a communicator the same number in each job
  EXPECT_THAT(in_processes(1,
                           [&](int) {
                             ::alarm(1);  // killed while it waits for its peer
                             return channels(id, 2);
                           }),
              ElementsAre(-1));
  EXPECT_THAT(in_processes(2, [&](int) { return channels(id, 2); }), ElementsAre(5, 5));
  EXPECT_THAT(in_processes(2, [&](int) { return channels(id, 2); }), ElementsAre(5, 5)) << "and once more";
}

TEST_F(NcclTunerProcesses, DoNotTellCommunicatorsApartWhereTheirOrdersDiffer) {
  auto own = entry(NcclCollective::allgather, mib, two_channels);
  own.key.communicator = 1;
  write({{own, entry(NcclCollective::allgather, mib, {.channels = 7})}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  // Rank 0 has been in a communicator before, which rank 1 has not.
  const auto run = [&](int rank) {
    if (rank == 0) {
      std::thread peer([&] { channels(next_id + 1, 2); });
      channels(next_id + 1, 2);
      peer.join();
    }
    return channels(next_id, 2);
  };
  EXPECT_THAT(in_processes(2, run), ElementsAre(7, 7));
}

/// Ranks that think themselves on two hosts, with a place to meet.
class NcclTunerHosts : public NcclTunerProcesses {
 protected:
  int channels_of_hosts(std::uint64_t id, std::size_t ranks) const {
    NcclCommunicator communicator(plugin, id, ranks, 2);
    return communicator.call(NcclCollective::allgather, mib).channels;
  }
  void write_for_hosts(int ranks) const {
    auto all = entry(NcclCollective::allgather, mib, {.channels = 5}, ranks);
    all.key.nodes = 2;
    write({{all}});
  }
  const Variable rendezvous{"SHINGLE_TUNER_RENDEZVOUS", "127.0.0.1:" + std::to_string(free_port())};
};

TEST_F(NcclTunerHosts, MeetThere) {
  write_for_hosts(4);
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  EXPECT_THAT(in_processes(4, [&](int) { return channels_of_hosts(next_id, 4); }), ElementsAre(5, 5, 5, 5));
}

TEST_F(NcclTunerHosts, MeetForSeveralCommunicatorsAtOnce) {
  write_for_hosts(2);
  const Variable table("SHINGLE_TUNER_TABLE", path.string());
  const auto run = [&](int rank) { return channels_of_hosts(next_id + static_cast<unsigned>(rank) / 2, 2); };
  EXPECT_THAT(in_processes(6, run), ElementsAre(5, 5, 5, 5, 5, 5));
}

TEST_F(NcclTunerHosts, TakeNcclsChoiceWhereTheirTablesDiffer) {
  write_for_hosts(3);
  const auto run = [&](int rank) {
    const Variable table("SHINGLE_TUNER_TABLE", rank == 1 ? "/nowhere" : path.string());
    return channels_of_hosts(next_id, 3);
  };
  EXPECT_THAT(in_processes(3, run), ElementsAre(0, 0, 0));
}

TEST_F(NcclTunerHosts, TakeNcclsChoiceWhereOneDoesNotCome) {
  write_for_hosts(3);
  const Variable table("SHINGLE_TUNER_TABLE", path.string()), deadline("SHINGLE_TUNER_DEADLINE", "300ms");
  EXPECT_THAT(in_processes(2, [&](int) { return channels_of_hosts(next_id, 3); }), ElementsAre(0, 0));
}

TEST_F(NcclTunerHosts, TakeNcclsChoiceWhereTheAddressIsWrong) {
  write_for_hosts(2);
  const Variable table("SHINGLE_TUNER_TABLE", path.string()), wrong("SHINGLE_TUNER_RENDEZVOUS", "nonsense");
  EXPECT_THAT(in_processes(2, [&](int) { return channels_of_hosts(next_id, 2); }), ElementsAre(0, 0));
}

TEST_F(NcclTunerProcesses, LeaveNothingBehind) {
  write({{entry(NcclCollective::allgather, mib, {.channels = 5}, 2)}});
  const Variable table("SHINGLE_TUNER_TABLE", path.string()), deadline("SHINGLE_TUNER_DEADLINE", "100ms");
  in_processes(2, [&](int) { return channels(next_id, 2); });
  in_processes(1, [&](int) { return channels(next_id + 1, 2); });
  char suffix[32];
  for (const std::uint64_t id : {next_id, next_id + 1}) {
    std::snprintf(suffix, sizeof suffix, "-%016lx", static_cast<unsigned long>(id));
    for (const auto& file : std::filesystem::directory_iterator("/dev/shm"))
      EXPECT_THAT(file.path().string(), testing::Not(testing::EndsWith(suffix)));
  }
}

}  // namespace
}  // namespace shingle::test::nccl_tuner_test
