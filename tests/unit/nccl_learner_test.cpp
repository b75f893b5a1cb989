// The learner of the NCCL tuner on a program in virtual time, whose ranks are one.
#include "nccl_tuner/learner.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <random>

#include "nccl_tuner/proposals.hpp"
#include "support/nccl_harness.hpp"

namespace shingle::nccl_tuner::nccl_learner_test {
namespace {

using std::chrono::duration;
using test::usual_costs;

constexpr Limits no_bound{.loss = 1};

/// An FSDP-like program: gathers and a scatter run beside computation, and take from it what they occupy.
class Program {
 public:
  explicit Program(unsigned seed, double noise = 0, double hiccups = 0, const Limits& limits = no_bound)
      : random_(seed), noise_(noise), hiccups_(hiccups), limits_(limits) {}

  void iterate() {
    const Choice gather = call(NcclCollective::allgather, 16 << 20);
    call(NcclCollective::allgather, 16 << 20);
    call(NcclCollective::allreduce, 1024);
    const Choice scatter = call(NcclCollective::reducescatter, 64 << 20);
    const double us = iteration_us(gather, scatter);
    pass(us * std::max(0.5, 1 + noise_ * std::normal_distribution<>()(random_)));
    if (std::uniform_real_distribution<>()(random_) < hiccups_)
      pass(3 * us);  // a garbage collection, a checkpoint
  }
  /// Iterations until something is found, at most so many.
  int run(int most) {
    int i = 0;
    while (i < most && !ended_) {
      iterate();
      ++i;
    }
    return i;
  }
  Choice call(NcclCollective collective, std::size_t bytes) {
    const Call at{.collective = static_cast<std::uint8_t>(collective), .bytes = bytes};
    auto costs = usual_costs(collective);
    calls_.push(at.signature());
    for (const Change& change : proposals_.poll(calls_)) choices_.at(change.kind) = change.choice;
    learner_.on_call(at, {costs.front().data(), abi::algorithms, abi::protocols});
    return choices_.at(at.kind());
  }
  /// Computation of 6 ms beside communication. NCCL's choice is 16 channels; LL128 is a little worse than
  /// that.
  static double beside_us(double communication_us, const Choice& choice) {
    const double occupied = choice.channels == 0 ? 16 : choice.channels;
    return std::max(6000 * (1 + 0.03 * occupied), communication_us / occupied) *
           (choice.protocol == abi::ll128 ? 1.1 : 1);
  }
  static double iteration_us(const Choice& gather, const Choice& scatter) {
    return beside_us(12000, gather) + beside_us(24000, scatter);
  }
  /// Of the choices that hold now.
  double iteration_us() const {
    return iteration_us(choices_.at(CallKind{2, 24}), choices_.at(CallKind{3, 26}));
  }
  double us() const { return duration<double, std::micro>(now_.time_since_epoch()).count(); }
  void finish() { learner_.finish(); }
  void pass(double us) {
    now_ += std::chrono::duration_cast<Sampler::Clock::duration>(duration<double, std::micro>(us));
  }

  std::vector<Learnt> found;
  std::string summary;

 private:
  /// Of this process alone.
  struct OwnTurn {
    std::string name = "test" + std::to_string(::getpid());
    ~OwnTurn() { ::shm_unlink(("/shingle-tuner-" + std::to_string(::getuid()) + "-turn" + name).c_str()); }
  };

  std::mt19937 random_;
  double noise_, hiccups_;
  Limits limits_;
  Proposal shared_;
  Proposals proposals_{shared_, 1};
  CallHistory calls_;
  Choices choices_;
  Sampler::Clock::time_point now_{};
  bool ended_ = false;
  OwnTurn turn_;
  Learner learner_{proposals_,
                   calls_,
                   choices_,
                   Log(nullptr),
                   [this](const std::vector<Learnt>& learnt, const std::string& text) {
                     found = learnt;
                     summary = text;
                     ended_ = true;
                   },
                   {.turn = turn_.name, .limits = limits_, .now = [this] { return now_; }}};
};

/// Of the gathers, then of the scatters.
std::pair<int, int> channels(const Program& program) {
  std::pair<int, int> found{-1, -1};
  for (const Learnt& learnt : program.found)
    (learnt.kind.collective == static_cast<std::uint8_t>(NcclCollective::allgather) ? found.first
                                                                                    : found.second) =
        learnt.config.channels;
  return found;
}

TEST(Learner, FindsTheLeastThatHidesCommunication) {
  Program program(1);
  const int iterations = program.run(5000);
  EXPECT_LE(iterations, 1000);
  ASSERT_EQ(program.found.size(), 2u);
  EXPECT_EQ(channels(program), std::pair(2, 4));
  const double best = Program::iteration_us({-1, -1, 2}, {-1, -1, 4});
  const double library = Program::iteration_us({}, {});
  EXPECT_NEAR(program.found[0].iteration_us, best, 1);
  EXPECT_NEAR(program.found[0].default_us, library, 1);
}

TEST(Learner, BearsNoiseAndHiccups) {
  int good = 0;
  constexpr int programs = 100;
  for (unsigned seed = 0; seed < programs; ++seed) {
    Program program(seed, 0.02, 0.02);
    program.run(5000);
    const auto [gather, scatter] = channels(program);
    if (gather < 0) continue;
    const auto us = [](int a, int b) {
      return Program::iteration_us({-1, -1, static_cast<std::uint8_t>(a)},
                                   {-1, -1, static_cast<std::uint8_t>(b)});
    };
    EXPECT_LT(us(gather, scatter), us(16, 16)) << "never worse than NCCL's choice: seed " << seed;
    good += us(gather, scatter) < 1.05 * us(2, 4);
  }
  EXPECT_GE(good, programs * 3 / 5);
}

/// Sums of equal size in 16 layers, which the host enqueues in a burst.
TEST(Learner, TimesWholeIterationsOfEqualCalls) {
  constexpr int layers = 16;
  constexpr double burst_us = 40.0 * layers;
  Program program(1);
  for (int i = 0; i < 3000 && program.found.empty(); ++i) {
    Choice choice;
    for (int layer = 0; layer < layers; ++layer) {
      choice = program.call(NcclCollective::allreduce, 64 << 20);
      program.pass(burst_us / layers);
    }
    program.pass(Program::beside_us(24000, choice));
  }
  ASSERT_EQ(program.found.size(), 1u);
  EXPECT_EQ(program.found[0].config.channels, 4);
  EXPECT_NEAR(program.found[0].default_us, burst_us + Program::beside_us(24000, {}), 1);
  EXPECT_NEAR(program.found[0].iteration_us, burst_us + Program::beside_us(24000, {-1, -1, 4}), 1);
}

/// Evaluations of a model between its iterations end no experiment.
TEST(Learner, GoesOnAfterInterruptions) {
  Program program(1, 0, 0, {.loss = 0.01});
  int interruptions = 0;
  for (int i = 1; i < 20000 && program.found.empty(); ++i) {
    Choice choice;
    for (int layer = 0; layer < 64; ++layer) {
      choice = program.call(NcclCollective::allreduce, 64 << 20);
      program.pass(10);
    }
    program.pass(Program::beside_us(24000, choice));
    if (i % 500 != 0) continue;
    ++interruptions;
    for (int batch = 0; batch < 5; ++batch) {
      program.call(NcclCollective::allgather, 8 << 20);
      program.pass(3000);
    }
  }
  EXPECT_GT(interruptions, 1);
  ASSERT_EQ(program.found.size(), 1u);
  EXPECT_EQ(program.found[0].config.channels, 4);
}

TEST(Learner, FindsNothingWhereNothingIsToBeGained) {
  Program program(1);
  for (int i = 0; i < 2000; ++i) {
    program.call(NcclCollective::allreduce, 1024);  // all latency: such sizes are not tuned
    program.pass(6000);
  }
  EXPECT_TRUE(program.found.empty());
  EXPECT_TRUE(program.call(NcclCollective::allreduce, 1024).empty());
}

TEST(Learner, CostsTheProgramNoMoreThanItsShare) {
  Program program(1, 0, 0, {.loss = 0.01});
  const double library = Program::iteration_us({}, {});
  int i = 0;
  double least = 1;
  for (; i < 20000 && program.found.empty(); ++i) {
    program.iterate();
    least = std::min(least, (i + 1) * library / program.us());
  }
  EXPECT_GE(least, 0.99);
  EXPECT_LT(i, 12000);
  EXPECT_EQ(channels(program), std::pair(2, 4));
}

/// Whatever a search that is cut short has tried: what it leaves was confirmed to be faster.
TEST(Learner, LeavesWhatWasConfirmedWhenInterrupted) {
  const double library = Program::iteration_us({}, {});
  int some = 0;
  for (int iterations = 10; iterations < 500; iterations += 7) {
    Program program(1);
    for (int i = 0; i < iterations; ++i) program.iterate();
    program.finish();
    if (program.found.empty()) continue;
    ++some;
    const auto [gather, scatter] = channels(program);
    EXPECT_LT(Program::iteration_us({-1, -1, static_cast<std::uint8_t>(gather)},
                                    {-1, -1, static_cast<std::uint8_t>(scatter)}),
              0.99 * library)
        << iterations;
  }
  EXPECT_GT(some, 0);
  EXPECT_LT(some, 70) << "a result needs to be confirmed";
}

TEST(Learner, SettlesForWhatWasConfirmedAfterItsTime) {
  const double library = Program::iteration_us({}, {});
  int gained = 0;
  for (const int iterations : {5, 20, 40, 60, 80, 120, 200, 300}) {
    Program program(1, 0.01, 0, {.loss = 1, .time_us = iterations * library});
    const int last = program.run(iterations + 400);
    EXPECT_LT(last, iterations + 330) << "it ends soon";
    for (int i = 0; i < 20; ++i) {
      program.iterate();
      EXPECT_LE(program.iteration_us(), library) << iterations;
    }
    EXPECT_EQ(program.found.empty(), program.iteration_us() == library);
    EXPECT_TRUE(!program.found.empty() || program.summary.find("not all") != std::string::npos);
    gained += program.iteration_us() < 0.95 * library;
  }
  EXPECT_GE(gained, 4);
}

const CallKind gather{static_cast<std::uint8_t>(NcclCollective::allgather), 24};

/// An experiment on a program of one gather, whose changes take effect at once.
struct Alone {
  explicit Alone(const ExperimentOptions& options)
      : experiment({gather}, {Call{gather.collective, 16 << 20}.signature()}, options) {
    auto costs = usual_costs(NcclCollective::allgather);
    experiment.see({gather.collective, 16 << 20}, {costs.front().data(), abi::algorithms, abi::protocols});
  }
  template <class Time>
  void iterate(Time time) {
    const double us = time(experiment.wanted().front());
    total_us += us;
    ++iterations;
    experiment.pass(us, true);
    experiment.tell(us);
  }

  Experiment experiment;
  double total_us = 0;
  int iterations = 0;
};

TEST(NcclExperiment, AbandonsATrialThatIsMuchSlower) {
  constexpr double library_us = 20000;
  Alone alone({.limits = {.loss = 0.01}});
  int slow = 0;
  for (int i = 0; i < 20000; ++i) {
    alone.iterate([&](const CollectiveConfig& config) {
      const bool own = config == CollectiveConfig{};
      slow += !own;
      return own ? library_us : 10 * library_us;
    });
    ASSERT_GE(alone.iterations * library_us / alone.total_us, 0.99) << i;
  }
  EXPECT_GT(slow, 4) << "it tries";
  EXPECT_TRUE(alone.experiment.learnt().empty());
}

/// Experiments of two communicators take turns: one goes on while the other rests.
TEST(NcclExperiment, LetsOthersTryWhileItRests) {
  bool free = false;
  int asked = 0;
  Alone alone({.limits = {.loss = 0.01}, .take_turn = [&] {
                 ++asked;
                 return free;
               }});
  int tried = 0;
  const auto iterate = [&](int iterations) {
    for (int i = 0; i < iterations; ++i)
      alone.iterate([&](const CollectiveConfig& config) {
        tried += config != CollectiveConfig{};
        return config.channels == 0 ? 20000.0 : 19000.0;
      });
  };
  iterate(5000);
  EXPECT_TRUE(alone.experiment.rests());
  EXPECT_GT(asked, 0);
  EXPECT_EQ(tried, 0) << "another tries";
  free = true;
  iterate(100);
  EXPECT_GT(tried, 0);
  EXPECT_FALSE(alone.experiment.rests());
}

TEST(NcclExperiment, DoesNotTakeADriftForALoss) {
  Alone alone({.limits = {.loss = 0.01}});
  int tried = 0;
  for (int i = 0; i < 20000 && !alone.experiment.over(); ++i)
    alone.iterate([&](const CollectiveConfig& config) {
      tried += config != CollectiveConfig{};
      return 20000 * (1 + std::min(i, 2000) * 1e-4) * (config.channels == 4 ? 0.8 : 1);  // slower by a fifth
    });
  EXPECT_TRUE(alone.experiment.over());
  ASSERT_EQ(alone.experiment.learnt().size(), 1u);
  EXPECT_EQ(alone.experiment.learnt().front().config.channels, 4);
}

TEST(NcclExperiment, SearchesChunksWhereNcclAsksForThem) {
  Alone alone({.limits = no_bound, .chunks = true});
  while (!alone.experiment.over() && alone.iterations < 5000)
    alone.iterate([](const CollectiveConfig& config) {
      const double chunk = config == CollectiveConfig{} ? 2 << 20 : static_cast<double>(config.chunk_bytes);
      const double channels = config.channels == 0 ? 16 : config.channels;
      return std::max(10000 * (1 + 0.01 * channels + 0.2 * chunk / (2 << 20)), 40000 / channels);
    });
  ASSERT_EQ(alone.experiment.learnt().size(), 1u);
  EXPECT_EQ(alone.experiment.learnt().front().config.channels, 4);
  EXPECT_EQ(alone.experiment.learnt().front().config.chunk_bytes, 128 << 10);
}

/// Kernels of the last iterations: a gather beside a product that waits for the end of the one before.
struct Kernels final : KernelRecorder {
  void start() override { running = true; }
  void stop() override { running = false; }
  std::vector<Kernel> take() override {
    std::vector<Kernel> all;
    const double us = std::max(compute_us, gather_us);
    for (int i = 0; i < 8; ++i) {
      all.push_back({static_cast<std::int8_t>(gather.collective), 7, i * us, i * us + gather_us});
      all.push_back({Kernel::computation, 1, i * us, i * us + compute_us});
    }
    return all;
  }
  double compute_us = 0, gather_us = 0;
  bool running = false;
};

TEST(NcclExperiment, TimesComputationAndCommunicationApart) {
  Kernels kernels;
  Alone alone({.limits = no_bound, .recorder = &kernels});
  for (int i = 0; i < 2000 && !alone.experiment.over(); ++i)
    alone.iterate([&](const CollectiveConfig& config) {
      const double channels = config.channels == 0 ? 16 : config.channels;
      kernels.compute_us = 10000 * (1 + 0.01 * channels);
      kernels.gather_us = 40000 / channels;
      return std::max(kernels.compute_us, kernels.gather_us);
    });
  ASSERT_EQ(alone.experiment.learnt().size(), 1u);
  EXPECT_EQ(alone.experiment.learnt().front().config.channels, 4);
  const cotune::Measurement& best = alone.experiment.best_measured();
  EXPECT_NEAR(best.compute_us, 10400, 1) << "hidden";
  ASSERT_EQ(best.communication_us.size(), 1u);
  EXPECT_NEAR(best.communication_us.front(), 10000, 1);
  EXPECT_FALSE(alone.experiment.records()) << "comparisons and results go untimed";
}

}  // namespace
}  // namespace shingle::nccl_tuner::nccl_learner_test
