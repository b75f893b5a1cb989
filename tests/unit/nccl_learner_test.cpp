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

/// An FSDP-like program: gathers and a scatter run beside computation, and take from it what they occupy.
class Program {
 public:
  explicit Program(unsigned seed, double noise = 0, double hiccups = 0)
      : random_(seed), noise_(noise), hiccups_(hiccups) {}

  void iterate() {
    const Choice gather = call(NcclCollective::allgather, 16 << 20);
    call(NcclCollective::allgather, 16 << 20);
    call(NcclCollective::allreduce, 1024);
    const Choice scatter = call(NcclCollective::reducescatter, 64 << 20);
    const double us = beside_us(12000, gather) + beside_us(24000, scatter);
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
  void pass(double us) {
    now_ += std::chrono::duration_cast<Sampler::Clock::duration>(duration<double, std::micro>(us));
  }

  std::vector<Learnt> found;

 private:
  /// Of this process alone.
  struct OwnTurn {
    std::string name = "test" + std::to_string(::getpid());
    ~OwnTurn() { ::shm_unlink(("/shingle-tuner-" + std::to_string(::getuid()) + "-turn" + name).c_str()); }
  };

  std::mt19937 random_;
  double noise_, hiccups_;
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
                   turn_.name,
                   Log(nullptr),
                   [this](const std::vector<Learnt>& learnt) {
                     found = learnt;
                     ended_ = true;
                   },
                   [this] { return now_; }};
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
  EXPECT_LE(iterations, 600);
  ASSERT_EQ(program.found.size(), 2u);
  EXPECT_EQ(channels(program), std::pair(2, 4));
  const double best = Program::beside_us(12000, {-1, -1, 2}) + Program::beside_us(24000, {-1, -1, 4});
  const double library = Program::beside_us(12000, {}) + Program::beside_us(24000, {});
  EXPECT_NEAR(program.found[0].iteration_us, best, 1);
  EXPECT_NEAR(program.found[0].default_us, library, 1);
}

TEST(Learner, BearsNoiseAndHiccups) {
  int good = 0;
  constexpr int programs = 20;
  for (unsigned seed = 0; seed < programs; ++seed) {
    Program program(seed, 0.02, 0.02);
    program.run(5000);
    const auto [gather, scatter] = channels(program);
    if (gather < 0) continue;
    const auto us = [](int a, int b) {
      return Program::beside_us(12000, {-1, -1, static_cast<std::uint8_t>(a)}) +
             Program::beside_us(24000, {-1, -1, static_cast<std::uint8_t>(b)});
    };
    EXPECT_LT(us(gather, scatter), us(16, 16)) << "never worse than NCCL's choice: seed " << seed;
    good += us(gather, scatter) < 1.05 * us(2, 4);
  }
  EXPECT_GE(good, programs * 3 / 4);
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

}  // namespace
}  // namespace shingle::nccl_tuner::nccl_learner_test
