// The tuner plugin of NCCL while it tunes: it finds what makes a program's iterations shorter, keeps it, and
// never tells two ranks different things, whatever becomes of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "support/free_port.hpp"
#include "support/in_processes.hpp"
#include "support/nccl_harness.hpp"

namespace shingle::test::nccl_tuner_online_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using std::chrono::duration;
using std::chrono::microseconds;

constexpr std::size_t mib = 1 << 20;

/// How long a program takes whose computation of 3 ms runs beside a collective: the paper's trade, as the
/// collective takes from the computation what it has of the device. NCCL's choice is 16 channels, and about
/// the worst.
double beside_us(double communication_us, int channels) {
  const int occupied = channels == 0 ? 16 : channels;
  return std::max(3000 * (1 + 0.1 * occupied), communication_us / occupied);
}

/// What the ranks of a program share. Zeros at first; threads or processes may have it.
struct Program {
  static constexpr std::size_t most_calls = 1 << 16;
  static constexpr int most_ranks = 8;

  int ranks = 0;
  std::array<std::atomic<int>, most_ranks> arrived{};  // at the barrier, how often
  std::array<std::atomic<bool>, most_ranks> dead{};
  std::atomic<std::uint32_t> disagreements{0};
  std::array<std::atomic<std::uint32_t>, most_calls> told{};  // of each call, plus 1
  std::atomic<bool> led{false};                               // the leader has come

  static std::shared_ptr<Program> make() {
    void* memory =
        ::mmap(nullptr, sizeof(Program), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
    return {new (memory) Program, [](Program* program) { ::munmap(program, sizeof(Program)); }};
  }
  void wait_for_all(int rank) {
    const int mine = ++arrived[static_cast<std::size_t>(rank)];
    for (int other = 0; other < ranks; ++other) {
      const auto i = static_cast<std::size_t>(other);
      while (arrived[i] < mine && !dead[i]) std::this_thread::sleep_for(microseconds(20));
    }
  }
};

/// One rank of it.
class Rank {
 public:
  Rank(Program& program, const NcclPlugin& plugin, std::uint64_t id, int rank, std::size_t ranks,
       std::size_t nodes = 1, int interface = 5)
      : program_(program), communicator_(plugin, id, ranks, nodes, interface), rank_(rank) {}

  /// FSDP-like: gathers, scatters, and a small sum of which tuning has nothing to gain. Ranks make their
  /// calls when they like, but none runs away, as collectives hold them together.
  void iterate() {
    const int gather = call(NcclCollective::allgather, 16 * mib);
    call(NcclCollective::allgather, 16 * mib);
    call(NcclCollective::allreduce, 1024);
    const int scatter = call(NcclCollective::reducescatter, 64 * mib);
    if (rank_ % 2 == 1) std::this_thread::sleep_for(microseconds(50));
    const double us = beside_us(6000, gather) + beside_us(12000, scatter);
    std::this_thread::sleep_for(duration<double, std::micro>(us / 2));  // half as long, for the test's sake
    program_.wait_for_all(rank_);
  }
  int call(NcclCollective collective, std::size_t bytes) {
    const NcclDecision decision = communicator_.call(collective, bytes);
    const auto told =
        static_cast<std::uint32_t>(1 + decision.channels + 100 * decision.algorithm +
                                   1000 * decision.protocol + 10000 * (decision.chunk_bytes >> 10));
    std::uint32_t other = 0;
    if (!program_.told[made_++].compare_exchange_strong(other, told) && other != told)
      ++program_.disagreements;
    return decision.channels;
  }
  /// The same kinds of calls in no order that repeats; that of all ranks is the same.
  void wander(int calls) {
    std::mt19937 random(5);
    for (int i = 0; i < calls; ++i) {
      const bool gather = random() % 2 == 0;
      call(gather ? NcclCollective::allgather : NcclCollective::reducescatter, (gather ? 16 : 64) * mib);
      program_.wait_for_all(rank_);
    }
  }
  /// One that the others do not make.
  void call_alone() { communicator_.call(NcclCollective::broadcast, mib); }

 private:
  Program& program_;
  NcclCommunicator communicator_;
  const int rank_;
  std::size_t made_ = 0;
};

/// Of ring, simple, NCCL's own channels: what Rank::call() records.
constexpr std::uint32_t nccls_choice = 1 + 100 * abi::ring + 1000 * abi::simple;

/// Runs of a program are not steady where other programs take its cores.
constexpr char never_begun[] = "in no run a search began: the machine is loaded";

class NcclTunerOnline : public testing::Test {
 protected:
  NcclTunerOnline() {
    std::string name = testing::TempDir() + "nccl_online.XXXXXX";
    folder = ::mkdtemp(name.data());
    path = folder / "learnt.json";
    NcclLog::take();
  }
  ~NcclTunerOnline() override {
    std::filesystem::remove_all(folder);
    ::shm_unlink(
        ("/shingle-tuner-" + std::to_string(::getuid()) + "-turn" + std::to_string(::getpid())).c_str());
  }

  /// Ranks as threads, until something was learnt, or a plugin has warned; at most so many iterations.
  void run_threads(int ranks, int iterations, const std::function<void(Rank&, int rank)>& before = {}) {
    program->ranks = ranks;
    std::atomic<int> end = iterations;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        Rank self(*program, plugin, id, rank, static_cast<std::size_t>(ranks), nodes, interface);
        if (before) before(self, rank);
        for (int i = 0; i < end; ++i) {
          if (rank == 0 && (std::filesystem::exists(path) || !NcclLog::empty()))
            end = std::min(end.load(), i + 2);
          self.iterate();
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(program->disagreements, 0u);
  }
  void expect_learnt() const {
    ASSERT_TRUE(std::filesystem::exists(path));
    const TunedTable table = read_tuned_table(path.string());
    ASSERT_EQ(table.entries.size(), 2u);
    for (const TunedEntry& entry : table.entries) {
      EXPECT_EQ(entry.key.nodes, static_cast<int>(nodes));
      EXPECT_LT(entry.iteration_us, 0.9 * entry.default_us);
      // unit.Learner* knows the time, and which channels are best; here other programs may run beside this
      // one.
      EXPECT_EQ(entry.key.size_class,
                size_class(entry.key.collective == NcclCollective::allgather ? 16 * mib : 64 * mib));
      EXPECT_GE(entry.config.channels, 1) << describe(entry.key);
      EXPECT_LE(entry.config.channels, 12) << describe(entry.key);
    }
  }
  /// Of all calls so far, how many were not answered with NCCL's choice.
  std::int64_t changed() const {
    return std::ranges::count_if(program->told,
                                 [](const auto& told) { return told != 0 && told != nccls_choice; });
  }

  std::size_t nodes = 1;
  int interface = 5;                                                      // of NCCL
  const Variable turn{"SHINGLE_TUNER_TURN", std::to_string(::getpid())};  // no other test is waited for
  const Variable loss{"SHINGLE_TUNER_LOSS", "1"};                         // for the test's sake
  std::filesystem::path folder, path;
  NcclPlugin plugin{SHINGLE_TEST_NCCL_TUNER};
  std::uint64_t id = std::uint64_t(::getpid()) << 20;
  std::shared_ptr<Program> program = Program::make();
};

TEST_F(NcclTunerOnline, FindsTheLeastResourcesThatHideCommunication) {
  {
    const Variable learn("SHINGLE_TUNER_LEARN", path.string());
    run_threads(3, 6000);
  }
  EXPECT_THAT(NcclLog::take(), IsEmpty());
  expect_learnt();
  // The next program takes what this one learnt.
  const Variable tuned("SHINGLE_TUNER_TABLE", path.string());
  ++id;
  program = Program::make();
  run_threads(3, 1);
  EXPECT_EQ(changed(), 3) << "two gathers and a scatter";
}

/// A search that is cut short leaves the program with what was confirmed, never with a trial.
TEST_F(NcclTunerOnline, FallsBackToWhatWasConfirmedWhenTheSearchIsCutShort) {
  const Variable learn("SHINGLE_TUNER_LEARN", path.string());
  for (const char* most : {"0.3s", "0.8s"}) {
    const Variable time("SHINGLE_TUNER_TIME", most);
    std::filesystem::remove(path);
    constexpr int all = 1000;
    bool begun = false;  // on a loaded machine a search may not have
    for (int run = 0; run < 5 && !begun; ++run) {
      program = Program::make();
      ++id;
      program->ranks = 2;
      std::vector<std::thread> threads;
      for (const int rank : {0, 1})
        threads.emplace_back([&, rank] {
          Rank self(*program, plugin, id, rank, 2);
          for (int i = 0; i < all; ++i) self.iterate();
        });
      for (std::thread& thread : threads) thread.join();
      EXPECT_EQ(program->disagreements, 0u);
      begun = changed() > 0;
    }
    if (!begun) GTEST_SKIP() << never_begun;
    ASSERT_TRUE(std::filesystem::exists(path)) << most;
    const TunedTable table = read_tuned_table(path.string());
    EXPECT_EQ(table.entries.empty(), !table.why.empty());
    const auto told = [&](std::size_t call) { return program->told[4 * (all - 1) + call].load(); };
    const auto us = [&](int gather, int scatter) {
      return beside_us(6000, gather) + beside_us(12000, scatter);
    };
    const auto channels = [&](std::size_t call) { return static_cast<int>((told(call) - 1) % 100); };
    if (table.entries.empty()) {
      EXPECT_EQ(told(0), nccls_choice);
      EXPECT_EQ(told(3), nccls_choice);
    } else {
      EXPECT_LT(us(channels(0), channels(3)), us(0, 0));
    }
  }
  EXPECT_THAT(NcclLog::take(), IsEmpty());
}

TEST_F(NcclTunerOnline, SearchesChunksWithVersion6) {
  interface = 6;
  const Variable learn("SHINGLE_TUNER_LEARN", path.string());
  run_threads(2, 6000);
  EXPECT_THAT(NcclLog::take(), IsEmpty());
  expect_learnt();
  for (const TunedEntry& entry : read_tuned_table(path.string()).entries)
    EXPECT_GE(entry.config.chunk_bytes, 128 << 10);
}

TEST_F(NcclTunerOnline, GoesOnWithoutCupti) {
  const Variable learn("SHINGLE_TUNER_LEARN", path.string()), cupti("SHINGLE_TUNER_CUPTI", "/nowhere.so");
  run_threads(2, 100);
  EXPECT_THAT(NcclLog::take(), ElementsAre(HasSubstr("not timed apart")));
}

TEST_F(NcclTunerOnline, SaysWhichVariableIsWrong) {
  const Variable learn("SHINGLE_TUNER_LEARN", path.string());
  for (const auto& [name, value] :
       {std::pair{"SHINGLE_TUNER_LOSS", "2"}, {"SHINGLE_TUNER_TIME", "x"}, {"SHINGLE_TUNER_TIME", "0s"}}) {
    const Variable wrong(name, value);
    ++id;
    program = Program::make();
    run_threads(2, 1);
    EXPECT_THAT(NcclLog::take(), ElementsAre(HasSubstr(std::string(name) + ": '" + value + "'")));
  }
}

TEST_F(NcclTunerOnline, DoesSoWithRanksOfSeveralHosts) {
  nodes = 2;
  const Variable learn("SHINGLE_TUNER_LEARN", path.string()),
      rendezvous("SHINGLE_TUNER_RENDEZVOUS", "127.0.0.1:" + std::to_string(free_port()));
  run_threads(4, 6000);
  EXPECT_THAT(NcclLog::take(), IsEmpty());
  expect_learnt();
}

TEST_F(NcclTunerOnline, TunesNotWhereHostsHaveNowhereToMeet) {
  nodes = 2;
  const Variable learn("SHINGLE_TUNER_LEARN", path.string());
  run_threads(2, 100);  // one, as the warning ends it
  EXPECT_THAT(NcclLog::take(), ElementsAre(HasSubstr("without SHINGLE_TUNER_RENDEZVOUS"))) << "once";
  EXPECT_EQ(changed(), 0);
}

TEST_F(NcclTunerOnline, ReturnsToNcclsChoiceWhereTheProgramIsNoLongerSteady) {
  const Variable learn("SHINGLE_TUNER_LEARN", path.string());
  constexpr int steady = 560, wandered = 500;
  bool begun = false;  // on a loaded machine a search may not have
  for (int run = 0; run < 5 && !begun; ++run) {
    program = Program::make();
    program->ranks = 2;
    ++id;
    std::vector<std::thread> threads;
    for (const int rank : {0, 1})
      threads.emplace_back([&, rank] {
        Rank self(*program, plugin, id, rank, 2);
        for (int i = 0; i < steady; ++i) self.iterate();
        self.wander(wandered);
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(program->disagreements, 0u);
    for (std::size_t i = 4 * steady + wandered / 2; i < 4 * steady + wandered; ++i)
      ASSERT_EQ(program->told[i], nccls_choice) << i;
    begun = changed() > 0;
  }
  if (!begun) GTEST_SKIP() << never_begun;
}

TEST_F(NcclTunerOnline, ChangesNothingWhereARankMakesOtherCalls) {
  const Variable learn("SHINGLE_TUNER_LEARN", path.string());
  run_threads(2, 150, [](Rank& self, int rank) {
    if (rank == 1) self.call_alone();
  });
  EXPECT_EQ(changed(), 0);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(NcclTunerOnline, SaysSoWhereItCannotKeepWhatItLearnt) {
  const Variable learn("SHINGLE_TUNER_LEARN", (folder / "not" / "there.json").string());
  run_threads(2, 6000);
  EXPECT_THAT(NcclLog::take(), ElementsAre(HasSubstr("the learnt table is not written")));
}

/// Ranks as processes. Rank 0, which comes first and leads, may be killed in an iteration.
class NcclTunerOnlineProcesses : public NcclTunerOnline {
 protected:
  int run_rank(int rank, int ranks, int iterations, int killed_in = -1) {
    while (rank > 0 && !program->led) std::this_thread::sleep_for(microseconds(100));
    std::thread herald([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // by then it waits for the others
      program->led = true;
    });
    Rank self(*program, plugin, id, rank, static_cast<std::size_t>(ranks), nodes);
    herald.join();
    for (int i = 0; i < iterations; ++i) {
      if (rank == 0 && i == killed_in) {
        program->dead[0] = true;
        ::raise(SIGKILL);
      }
      self.iterate();
    }
    return 0;
  }
  /// Returns true if the search had begun: on a loaded machine it may not have.
  bool expect_together(int killed_in) {
    constexpr int ranks = 3, iterations = 660;
    program = Program::make();
    program->ranks = ranks;
    ++id;
    EXPECT_THAT(in_processes(ranks, [&](int rank) { return run_rank(rank, ranks, iterations, killed_in); }),
                ElementsAre(-1, 0, 0));
    EXPECT_EQ(program->disagreements, 0u);
    const auto last = static_cast<std::size_t>(4 * iterations - 1);
    EXPECT_EQ(program->told[last], program->told[last - 4]) << "what held last holds on";
    return changed() > 0;
  }
};

TEST_F(NcclTunerOnlineProcesses, StayTogetherWhenTheLeaderDies) {
  const Variable learn("SHINGLE_TUNER_LEARN", path.string());
  int begun = 0;
  for (const int killed_in : {520, 571, 590}) begun += expect_together(killed_in);
  for (int run = 0; run < 4 && begun == 0; ++run) begun += expect_together(590);
  if (begun == 0) GTEST_SKIP() << never_begun;
}

TEST_F(NcclTunerOnlineProcesses, StayTogetherWhenTheLeaderOfSeveralHostsDies) {
  nodes = 2;
  const Variable learn("SHINGLE_TUNER_LEARN", path.string()),
      rendezvous("SHINGLE_TUNER_RENDEZVOUS", "127.0.0.1:" + std::to_string(free_port()));
  int begun = 0;
  for (const int killed_in : {550, 590}) begun += expect_together(killed_in);
  for (int run = 0; run < 4 && begun == 0; ++run) begun += expect_together(590);
  if (begun == 0) GTEST_SKIP() << never_begun;
}

TEST_F(NcclTunerOnlineProcesses, ChangeNothingWhereOnlySomeAreToTune) {
  program->ranks = 2;
  const auto run = [&](int rank) {
    if (rank == 1) ::setenv("SHINGLE_TUNER_LEARN", path.c_str(), 1);
    return run_rank(rank, 2, 150);
  };
  EXPECT_THAT(in_processes(2, run), ElementsAre(0, 0));
  EXPECT_EQ(changed(), 0);
}

}  // namespace
}  // namespace shingle::test::nccl_tuner_online_test
