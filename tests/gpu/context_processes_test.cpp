// Contexts of several processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>

#include "backend/processes.hpp"
#include "context_calls.hpp"
#include "cuda/nccl/api.hpp"
#include "cuda/runtime/world.hpp"
#include "processes.hpp"
#include "shingle/base/error.hpp"
#include "shingle/cuda/cuda.hpp"
#include "support/stop_process.hpp"

namespace shingle::test {
namespace {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

/// Calls of contexts with a fault of the matrices: see context_calls.hpp.
void contexts_are_exact() {
  const auto world = make_cuda_world(0, {.timeout_us = 2 * deadline_us, .first_epoch = 0u - 40});
  int calls = random_calls(*world, {.seed = 1, .operators = 6, .calls = 150});
  calls += random_calls(*world, {.seed = 2, .operators = 6, .calls = 150, .registered = true});
  std::printf("[rank %d: %d calls are exact]\n", world->local_ranks()[0], calls);
}

/// SHINGLE_SOAK_CALLS changes the number.
void contexts_last(bool few_rows) {
  const char* const set = std::getenv("SHINGLE_SOAK_CALLS");
  const int calls = set != nullptr ? std::atoi(set) : 1000;
  const auto world = make_cuda_world(0, {.timeout_us = 2 * deadline_us, .on_step = delay_some});
  const int made = soak(
      *world, {.seed = 5, .calls = calls, .check_every = std::max(50, calls / 4000), .few_rows = few_rows});
  std::printf("[rank %d: %s calls were made]\n", world->local_ranks()[0], made >= calls ? "all" : "few");
}

/// A world of some ranks of a job, on this process's device. `rank` is that of the job.
std::unique_ptr<World> world_of(Processes& everyone, int rank, const std::vector<int>& members) {
  const int own = static_cast<int>(std::ranges::find(members, rank) - members.begin());
  return make_cuda_world(Bootstrap{own, static_cast<int>(members.size()), device_of(rank),
                                   [&everyone, members](std::string_view mine) {
                                     const auto all = everyone.all_gather(mine, deadline_us);
                                     std::string some;
                                     for (const int member : members)
                                       some += all[static_cast<std::size_t>(member)];
                                     return some;
                                   }},
                         {.timeout_us = 2 * deadline_us});
}

/// Calls of a context that overlaps with others. SHINGLE_SOAK_CALLS changes the number.
Soak overlapping_soak(int seed) {
  const char* const set = std::getenv("SHINGLE_SOAK_CALLS");
  return {.seed = static_cast<std::uint64_t>(seed),
          .calls = set != nullptr ? std::atoi(set) : 500,
          .workers = 48,
          .graphs = false};
}

/// Four processes, each in two groups of two: ranks of a row, and ranks of a column. Contexts of both groups
/// make calls at the same time.
void groups_are_exact() {
  const auto everyone = connect(find_launcher(), 2 * deadline_us);
  const int rank = find_launcher().rank, row = rank / 2, column = rank % 2;
  const auto tensor = world_of(*everyone, rank, {2 * row, 2 * row + 1});
  const auto data = world_of(*everyone, rank, {column, column + 2});
  // All memory is allocated before the calls: freeing some would wait for the device, on which a kernel of
  // the other group may be waiting.
  const Soak soak = overlapping_soak(7 + row);
  Soaking of_tensor(*tensor, soak), of_data(*data, overlapping_soak(9 + column));
  everyone->barrier(2 * deadline_us);
  auto other = std::async(std::launch::async, [&] { return of_tensor.run(); });
  const int calls = std::min(of_data.run(), other.get());
  std::printf("[rank %d: %s calls of two groups were made]\n", rank, calls >= soak.calls ? "all" : "few");
}

/// All-reduces of a communicator of its own, as of a framework's data parallelism, in bursts.
void reduce_many(World& world, int calls) {
  constexpr std::size_t count = 1 << 20;
  constexpr int burst = 8;
  auto& gpus = dynamic_cast<cuda::CudaWorld&>(world);
  const int rank = world.local_ranks()[0];
  const DeviceBuffer buffer = world.allocate(rank, count * sizeof(float));
  cuda::CommKey key;
  for (int r = 0; r < world.size(); ++r) key.ranks.push_back(r);
  const ncclComm_t comm = gpus.communicator(key).of(rank);
  const cuda::DeviceGuard guard(device_of_memory(buffer.data()));
  const cuda::Stream stream;
  for (int i = 0; i < calls; ++i) {
    cuda::check(cuda::nccl().ncclAllReduce(buffer.data(), buffer.data(), count, ncclFloat, ncclMax, comm,
                                           stream.get()),
                "ncclAllReduce");
    if (i % burst == 0) stream.synchronize();
  }
  stream.synchronize();
}

/// Two contexts of the same ranks make calls at the same time, beside a third communicator.
void contexts_overlap() {
  const auto everyone = connect(find_launcher(), 2 * deadline_us);
  const int rank = find_launcher().rank;
  const auto one = world_of(*everyone, rank, {0, 1}), two = world_of(*everyone, rank, {0, 1}),
             three = world_of(*everyone, rank, {0, 1});
  const Soak soak = overlapping_soak(21);
  Soaking first(*one, soak), second(*two, overlapping_soak(22));
  reduce_many(*three, 1);  // connects
  everyone->barrier(2 * deadline_us);
  auto of_second = std::async(std::launch::async, [&] { return second.run(); });
  auto traffic = std::async(std::launch::async, [&] { reduce_many(*three, soak.calls); });
  const int calls = std::min(first.run(), of_second.get());
  traffic.get();
  std::printf("[rank %d: %s calls of two contexts were made]\n", rank, calls >= soak.calls ? "all" : "few");
}

constexpr double fault_deadline_us = 5e6;

double now_s() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// Draws as SHINGLE_MOMENT says.
Dice dice_of_moment() {
  const char* const moment = std::getenv("SHINGLE_MOMENT");
  return Dice(moment != nullptr ? static_cast<std::uint64_t>(std::atoi(moment)) : 0);
}

void announce_fault() {
  std::printf("[fault at %.2f s]\n", now_s());
  std::fflush(stdout);
}

/// Calls of a context until rank 1 has a fault before the step that SHINGLE_MOMENT draws. Prints when that
/// was, and when rank 0 has an error.
void calls_with_a_fault(const std::function<void()>& fault) {
  Dice dice = dice_of_moment();
  std::int64_t left = dice.size(0, 1000);
  CudaOptions options{.timeout_us = deadline_us};
  options.on_step = [&](const CudaStepEvent& at) {
    if (at.rank != 1 || left-- != 0) return;
    announce_fault();
    fault();
  };
  const auto world = make_cuda_world(0, options);
  const int rank = world->local_ranks()[0];
  Soaking soaking(*world, {.seed = 11, .calls = 100000, .timeout_us = fault_deadline_us});
  try {
    soaking.run();
    FAIL() << "all calls were made";
  } catch (const Error& error) {
    std::printf("[rank %d error at %.2f s: %s]\n", rank, now_s(), error.what());
  }
}

/// Replays a graph of calls until rank 1 has a fault before the replay that SHINGLE_MOMENT draws. No function
/// of the world runs meanwhile: ranks wait by cudaStreamSynchronize(), in which the kernels of NCCL wait for
/// rank 1 without a deadline. Prints as calls_with_a_fault(). `by_memory`: of the graph's two calls, the
/// first uses peer memory, so that its kernels wait for rank 1 under the deadline.
void replays_with_a_fault(const std::function<void()>& fault, bool by_memory) {
  Dice dice = dice_of_moment();
  std::int64_t left = dice.size(1, 300);
  const auto world = make_cuda_world(0, {.timeout_us = deadline_us});
  const int rank = world->local_ranks()[0];
  if (by_memory && !world->capabilities().remote_memory)
    return void(std::printf("[rank %d error at 0 s: no peer memory]\n", rank));
  const Problem problem = problem_of(Op::gemm_allreduce, world->size());
  Context context(*world, {.timeout_us = fault_deadline_us});
  const int last = context.declare(problem, {SequentialParams{}});
  const int first = by_memory ? context.declare(problem, {FusedParams{.mover = Mover::store}}) : last;
  const CallMatrices matrices(*world, random_inputs(problem, 1, Values::integers), dice);
  const cuda::DeviceGuard guard(device_of(rank));
  const cuda::Stream stream;
  const auto call = [&](int op, cudaStream_t on) {
    void* const handles[] = {on};
    context.call(op, problem.m, matrices.arguments(), handles);
  };
  const cuda::Graph graph =
      cuda::Graph::capture(stream.get(), [&](cudaStream_t on) { call(first, on), call(last, on); });
  const cuda::Health& health = dynamic_cast<cuda::CudaWorld&>(*world).health();
  while (!health.stopped()) {
    if (rank == 1 && left-- == 0) {
      announce_fault();
      fault();
    }
    graph.launch(stream.get());
    stream.synchronize();
  }
  try {
    call(last, stream.get());
    FAIL() << "a call in a broken world";
  } catch (const Timeout& error) {
    std::printf("[rank %d error at %.2f s: %s]\n", rank, now_s(), error.what());
  }
}

/// Rank 1 calls with another m than rank 0.
void calls_differ() {
  const auto world = make_cuda_world(0, {.timeout_us = 2 * deadline_us});
  const int rank = world->local_ranks()[0];
  try {
    call_with(*world, 64 + 32 * rank);
    FAIL() << "different calls were made";
  } catch (const Timeout& error) {
    std::printf("[rank %d: %s]\n", rank, error.what());
  }
}

/// Calls with registered matrices: of ordinary memory, then at another offset on rank 1.
void registered_matrices_are_compared() {
  const auto world = make_cuda_world(0, {.timeout_us = 2 * deadline_us});
  const int rank = world->local_ranks()[0];
  if (!world->capabilities().remote_memory) return void(std::printf("[rank %d: no peer memory]\n", rank));
  const Problem problem = problem_of(Op::gemm_allreduce, world->size());
  Context context(*world, {.choose = [](const Problem&) { return RingParams{.engines = 1}; },
                           .registered_bytes = 64 << 20,
                           .timeout_us = deadline_us});
  context.declare(problem);
  ASSERT_EQ(context.plan(0, problem.m).mechanism, Mechanism::ring);
  Dice dice(3);
  const auto call_with_matrices_of = [&](Context* registered) {
    const CallMatrices matrices(*world, random_inputs(problem, 1, Values::integers), dice, registered);
    context.call(0, problem.m, matrices.arguments());
    context.synchronize();
  };
  EXPECT_THAT([&] { call_with_matrices_of(nullptr); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("must lie in registered memory")));
  call_with_matrices_of(&context);
  const DeviceBuffer other = rank == 1 ? context.allocate(rank, 4096) : DeviceBuffer();
  try {
    call_with_matrices_of(&context);
    FAIL() << "the offsets differ";
  } catch (const Timeout& error) {
    std::printf("[rank %d: %s]\n", rank, error.what());
  }
}

/// Stores serve single calls of an attention, and those in a graph.
void captured_attention_is_right(World& world, Op op, bool registered) {
  const cuda::Stream stream;
  Problem problem{
      .op = op, .world = world.size(), .m = 1000, .n = 8 * 128, .k = 8 * 128, .dtype = DType::bf16};
  problem.attention = {8, 4, 128, true, {}};
  Context context(world,
                  {.choose = [](const Problem&) { return RingParams{.mover = Mover::store, .slices = 2}; },
                   .registered_bytes = registered ? 64 << 20 : 0,
                   .verify = true});
  context.declare(problem);
  Dice dice(5);
  CallMatrices call(world, random_inputs(problem, 3), dice, registered ? &context : nullptr);
  const auto enqueue = [&](cudaStream_t on) {
    void* const handles[] = {on};
    context.call(0, problem.m, call.arguments(), handles);
  };
  const auto is_right = [&](const char* how, auto&& run) {
    call.poison();
    run();
    stream.synchronize();
    const Check result = call.check();
    EXPECT_TRUE(result.passed) << name(op) << " " << how << ": error " << result.max_error << " above "
                               << result.tolerance << " at " << result.worst;
  };
  is_right("by a call", [&] { enqueue(stream.get()); });
  const cuda::Graph graph = cuda::Graph::capture(stream.get(), enqueue);
  for (int replay = 0; replay < 5; ++replay) is_right("in a graph", [&] { graph.launch(stream.get()); });
}

void captured_attentions_are_right() {
  const auto world = make_cuda_world(0, {.timeout_us = 2 * deadline_us});
  const int rank = world->local_ranks()[0];
  if (!world->capabilities().remote_memory) return void(std::printf("[rank %d: no peer memory]\n", rank));
  const cuda::DeviceGuard guard(device_of(rank));
  for (const Op op : {Op::ulysses_attention, Op::allgather_attention, Op::attention_backward}) {
    try {
      for (const bool registered : {false, true}) captured_attention_is_right(*world, op, registered);
    } catch (const Unsupported& reason) {
      if (op != Op::attention_backward) throw;
      std::printf("[rank %d: %s]\n", rank, reason.what());  // cuDNN is too old
    }
  }
  std::printf("[rank %d: captured attention is right]\n", rank);
}

std::vector<Part> parts() {
  if (!find_launcher().several()) return {};
  return {{"Contexts", contexts_are_exact},
          {"CallsDiffer", calls_differ},
          {"Registered", registered_matrices_are_compared},
          {"CapturedAttention", captured_attentions_are_right},
          {"CallsKilled", [] { calls_with_a_fault([] { raise(SIGKILL); }); }},
          {"CallsStopped", [] { calls_with_a_fault([] { stop_this_process(20); }); }},
          {"CallsThrow", [] { calls_with_a_fault([] { throw Error("rank 1 fell over"); }); }},
          {"ReplaysKilled", [] { replays_with_a_fault([] { raise(SIGKILL); }, false); }},
          {"ReplaysKilledByMemory", [] { replays_with_a_fault([] { raise(SIGKILL); }, true); }},
          {"ReplaysStopped", [] { replays_with_a_fault([] { stop_this_process(20); }, true); }},
          {"ReplaysThrow", [] { replays_with_a_fault([] { throw Error("rank 1 fell over"); }, false); }},
          {"ReplaysExit", [] { replays_with_a_fault([] { std::exit(3); }, false); }},
          {"Groups", groups_are_exact},
          {"ContextsOverlap", contexts_overlap},
          {"ContextsLast", [] { contexts_last(false); }},
          {"DecodingLasts", [] { contexts_last(true); }}};
}

TEST_P(GpuRank, Does) {
  GetParam().act();
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuRank);
INSTANTIATE_TEST_SUITE_P(GpuRank, GpuRank, testing::ValuesIn(parts()),
                         [](const auto& test) { return test.param.name; });

TEST_F(GpuProcesses, CallsOfContextsAreExact) {
  for (const Outcome& outcome : launch(2, {0, 1}, "Contexts", on_one_host)) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(": 300 calls are exact]"));
  }
}

TEST_F(GpuProcesses, CapturedAttentionIsRight) {
  for (const Outcome& outcome : launch(2, {0, 1}, "CapturedAttention", on_one_host)) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text,
                testing::AnyOf(HasSubstr(": captured attention is right]"), HasSubstr(": no peer memory]")));
  }
}

void expect_all_calls(const std::string& part) {
  for (const Outcome& outcome : launch(2, {0, 1}, part, on_one_host)) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(": all calls were made]"));
  }
}

TEST_F(GpuProcesses, ContextsLastForManyCalls) {
  expect_all_calls("ContextsLast");
}

TEST_F(GpuProcesses, DecodingLastsForManyCalls) {
  expect_all_calls("DecodingLasts");
}

TEST_F(GpuProcesses, GroupsMayOverlap) {
  if (gpus > 1 && gpus < 4)
    GTEST_SKIP() << "4 GPUs are needed, or one that all share: " << gpus << " are here";
  for (const Outcome& outcome : launch(4, {0, 1, 2, 3}, "Groups", on_one_host)) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(": all calls of two groups were made]"));
  }
}

TEST_F(GpuProcesses, ContextsAndACommunicatorOverlap) {
  for (const Outcome& outcome : launch(2, {0, 1}, "ContextsOverlap", on_one_host)) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(": all calls of two contexts were made]"));
  }
}

/// The time that stands behind `what` in a text, in seconds.
double seconds_after(const std::string& text, const std::string& what) {
  const std::size_t at = text.find(what);
  double seconds = 0;
  if (at != std::string::npos) std::sscanf(text.c_str() + at + what.size(), "%lf", &seconds);
  return seconds;
}

/// Rank 1 has a fault in calls, at a moment of its own in each try; rank 0 must name it in time.
/// SHINGLE_FAULTS changes the number of moments, SHINGLE_FAULTS_AT_ONCE that of tries that run together.
void faults_are_named(const std::string& part, const std::string& named, double most_s) {
  const auto number_of = [](const char* variable, int without) {
    const char* const set = std::getenv(variable);
    return set != nullptr ? std::atoi(set) : without;
  };
  const int moments = number_of("SHINGLE_FAULTS", 2), at_once = number_of("SHINGLE_FAULTS_AT_ONCE", 2);
  double slowest_s = 0;
  for (int first = 0; first < moments && !testing::Test::HasFailure(); first += at_once) {
    std::vector<std::future<std::vector<Outcome>>> tries;
    for (int moment = first; moment < std::min(first + at_once, moments); ++moment)
      tries.push_back(std::async(std::launch::async, [&part, moment] {
        return launch(2, {0, 1}, part, [moment](int rank) {
          return fmt::format("{} SHINGLE_MOMENT={}", on_one_host(rank), moment);
        });
      }));
    for (auto& one : tries) {
      const std::vector<Outcome> outcomes = one.get();
      EXPECT_EQ(outcomes[0].code, 0) << outcomes[0].text;
      EXPECT_THAT(outcomes[0].text, testing::ContainsRegex("\\[rank 0 error at .* s: .*" + named));
      const double seconds =
          seconds_after(outcomes[0].text, "rank 0 error at ") - seconds_after(outcomes[1].text, "[fault at ");
      EXPECT_LT(seconds, most_s) << outcomes[0].text << outcomes[1].text;
      slowest_s = std::max(slowest_s, seconds);
    }
  }
  std::printf("%s: %d moments, named within %.1f s\n", part.c_str(), moments, slowest_s);
}

/// The longest time in which a fault may be named: the deadline and 2 s. On a shared GPU, NCCL runs by
/// sockets and takes ten more to leave those of a process that is stopped or gone.
double longest_s(int gpus) {
  return 1e-6 * fault_deadline_us + (gpus > 1 ? 2 : 15);
}

TEST_F(GpuProcesses, KilledOneIsNamedInCalls) {
  faults_are_named("CallsKilled", "rank 1 is gone", longest_s(gpus));
}
TEST_F(GpuProcesses, StoppedOneIsNamedInCalls) {
  faults_are_named("CallsStopped", "rank 1 is stopped", longest_s(gpus));
}
TEST_F(GpuProcesses, ThrowingOneIsNamedInCalls) {
  faults_are_named("CallsThrow", "rank 1 (has failed: )?.*fell over", longest_s(gpus));
}

TEST_F(GpuProcesses, KilledOneEndsReplays) {
  faults_are_named("ReplaysKilled", "rank 1 is gone", longest_s(gpus));
  faults_are_named("ReplaysKilledByMemory", "(rank 1 is gone|no peer memory)", longest_s(gpus));
}
TEST_F(GpuProcesses, StoppedOneEndsReplays) {
  faults_are_named("ReplaysStopped", "(rank 1 is stopped|no peer memory)", longest_s(gpus));
}
TEST_F(GpuProcesses, OneThatLeavesOnAnErrorEndsReplays) {
  faults_are_named("ReplaysThrow", "rank 1 left the world on an exception", longest_s(gpus));
  faults_are_named("ReplaysExit", "rank 1 has exited with status 3", longest_s(gpus));
}

TEST_F(GpuProcesses, CallsThatDifferAreNamed) {
  const std::vector<Outcome> outcomes = launch(2, {0, 1}, "CallsDiffer", on_one_host);
  std::string all;
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    all += outcome.text;
  }
  // Whichever rank begins the call last finds the difference, and tells the other. Deliveries know m alone.
  EXPECT_THAT(all, testing::ContainsRegex("rank 0 calls (operator 0 )?with m = 64, where rank 1 calls "
                                          "(operator 0 )?with m = 96|"
                                          "rank 1 calls (operator 0 )?with m = 96, where rank 0 calls "
                                          "(operator 0 )?with m = 64"));
}

TEST_F(GpuProcesses, RegisteredMatricesAreCompared) {
  std::string all;
  for (const Outcome& outcome : launch(2, {0, 1}, "Registered", on_one_host)) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    all += outcome.text;
  }
  EXPECT_THAT(all, testing::ContainsRegex("registered matrices at other offsets than rank|no peer memory"));
}

}  // namespace
}  // namespace shingle::test

#else
TEST(GpuProcesses, NeedCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
