// Captured calls of contexts: plans that a CUDA graph cannot hold give way to plans that it can.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/workspace.hpp"
#include "lower/graph_fitness.hpp"
#include "shingle/api/context.hpp"
#include "shingle/api/registry.hpp"
#include "shingle/base/error.hpp"

namespace shingle::context_graph_test {
namespace {

/// Threads whose calls are captured if the test says so: then they refuse what a graph cannot hold.
class CapturingWorld final : public World {
 public:
  explicit CapturingWorld(Machine machine)
      : threads_(make_world(2, {.backend = "host", .workers_per_rank = 2})), machine_(std::move(machine)) {}

  std::string backend() const override { return threads_->backend(); }
  int size() const override { return threads_->size(); }
  std::vector<int> local_ranks() const override { return threads_->local_ranks(); }
  const Machine& machine() const override { return machine_; }
  Capabilities capabilities() const override { return threads_->capabilities(); }
  DeviceBuffer allocate(int rank, std::size_t bytes) override { return threads_->allocate(rank, bytes); }
  void barrier() override { threads_->barrier(); }
  std::vector<double> all_max(std::vector<double> values) override { return threads_->all_max(values); }
  std::shared_ptr<Arena> make_arena(std::int64_t bytes, std::shared_ptr<Heap> heap) override {
    return threads_->make_arena(bytes, std::move(heap));
  }
  std::unique_ptr<Executable> compile(const Plan& plan) override { return threads_->compile(plan); }
  std::unique_ptr<Executable> compile(const Plan& plan, const std::shared_ptr<Arena>& arena,
                                      double timeout_us) override {
    return std::make_unique<Captured>(*this, plan, threads_->compile(plan, arena, timeout_us));
  }

  bool captures = false;
  Params served;  ///< of the last call

 private:
  class Captured final : public Executable {
   public:
    Captured(CapturingWorld& world, const Plan& plan, std::unique_ptr<Executable> made)
        : world_(world), params_(params_of(plan)), unfit_(unfit_for_graph(plan)), made_(std::move(made)) {}
    void bind(int rank, Role role, const MatrixMemory& memory) override { made_->bind(rank, role, memory); }
    RunReport run(const RunOptions& options) override { return made_->run(options); }
    void enqueue(std::span<void* const> streams) override { made_->enqueue(streams); }
    void enqueue(const CallTag& tag, std::span<const CallMatrix> matrices,
                 std::span<void* const> streams) override {
      if (world_.captures && !unfit_.empty()) throw Unsupported(unfit_);
      world_.served = params_;
      made_->enqueue(tag, matrices, streams);
    }
    void synchronize() override { made_->synchronize(); }
    std::int64_t internal_bytes(int rank) const override { return made_->internal_bytes(rank); }
    void poison() override { made_->poison(); }

   private:
    CapturingWorld& world_;
    Params params_;
    std::string unfit_;
    std::unique_ptr<Executable> made_;
  };

  std::unique_ptr<World> threads_;
  Machine machine_;
};

Problem attention(Op op) {
  Problem p{.op = op, .world = 2, .m = 48, .n = 32, .k = 32};
  p.attention = {8, 4, 4, true, {}};
  return p;
}

/// Makes a call and checks its result.
void call(Context& context, CapturingWorld& world, const Problem& problem) {
  const auto inputs = random_inputs(problem, 5);
  Workspace memory(world, *inputs);
  memory.poison_outputs();
  context.call(0, problem.m, memory.arguments(problem));
  context.synchronize();
  const Check result = check(*inputs, memory.outputs());
  EXPECT_TRUE(result.passed) << result.max_error << " above " << result.tolerance << " at " << result.worst;
}

Params served(const Machine& machine, const Problem& problem, const Params& params, bool captured) {
  CapturingWorld world(machine);
  Context context(world, {.choose = [&](const Problem&) { return params; }, .verify = true});
  context.declare(problem);
  world.captures = captured;
  call(context, world, problem);
  return world.served;
}

TEST(ContextGraphs, StoresServeCapturedAttentionInsteadOfEngines) {
  for (const Op op : {Op::ulysses_attention, Op::allgather_attention, Op::attention_backward}) {
    const RingParams engines{.engines = 1, .slices = 4, .unregistered = true};
    const Params alone = served({}, attention(op), engines, false),
                 captured = served({}, attention(op), engines, true);
    EXPECT_EQ(std::get<RingParams>(alone).engines, 1) << name(op);
    EXPECT_EQ(std::get<RingParams>(captured).engines, 0) << name(op);
    EXPECT_EQ(std::get<RingParams>(captured).mover, Mover::store) << name(op);
    EXPECT_EQ(std::get<RingParams>(captured).slices, 4) << name(op);
  }
}

TEST(ContextGraphs, MessagesServeWhereNothingIsStored) {
  const Problem problem{.op = Op::gemm_reducescatter, .world = 2, .m = 48, .n = 32, .k = 32};
  const Params captured = served({}, problem, RingParams{.engines = 1, .slices = 2}, true);
  EXPECT_EQ(std::get<RingParams>(captured).engines, 0);
  EXPECT_EQ(std::get<RingParams>(captured).mover, Mover::automatic);
}

/// Where workers store at a crawl, and messages are as slow, the captured call is sequential.
TEST(ContextGraphs, TheyServeOnlyIfPredictedToBeFaster) {
  Machine machine;
  machine.workers = 4;
  machine.tiles = {{64, 64, 0, 1e-3}};
  machine.memory_gbps = 1e3;
  machine.link = {1e-3, 0};
  machine.launch_us = 1e3;  // slices cost launches
  const RingParams engines{.engines = 1, .slices = 4};
  EXPECT_EQ(mechanism_of(served(machine, attention(Op::ulysses_attention), engines, true)),
            Mechanism::sequential);
  machine.launch_us = 0;
  machine.link = {0.1, 0};
  machine.attention = {{{24, 48, 1, 4, true}, 1e-4}};  // attention takes long, and hides much
  EXPECT_EQ(mechanism_of(served(machine, attention(Op::ulysses_attention), engines, true)), Mechanism::ring);
}

TEST(ContextGraphs, OtherParamsStayAsTheyAre) {
  for (const Params& params : {Params{SequentialParams{}}, Params{RingParams{.slices = 3}},
                               Params{FusedParams{}}, Params{RingParams{.mover = Mover::store}}})
    EXPECT_EQ(for_graphs(params), std::vector<Params>{params});
  EXPECT_EQ(for_graphs(RingParams{.mover = Mover::copy_engine, .slices = 3}).front(),
            Params(RingParams{.mover = Mover::store, .slices = 3}));
}

}  // namespace
}  // namespace shingle::context_graph_test
