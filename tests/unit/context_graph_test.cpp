// Captured calls of contexts: plans that a CUDA graph cannot hold give way to `sequential`.
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
  CapturingWorld() : threads_(make_world(2, {.backend = "host", .workers_per_rank = 2})) {}

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

Params served(const Problem& problem, const Params& params, bool captured) {
  CapturingWorld world;
  Context context(world, {.choose = [&](const Problem&) { return params; }, .verify = true});
  context.declare(problem);
  world.captures = captured;
  call(context, world, problem);
  return world.served;
}

TEST(ContextGraphs, SequentialServesCapturedCallsOfEngines) {
  for (const Op op : {Op::ulysses_attention, Op::allgather_attention, Op::attention_backward}) {
    const RingParams engines{.engines = 1, .slices = 4, .unregistered = true};
    EXPECT_EQ(std::get<RingParams>(served(attention(op), engines, false)).engines, 1) << name(op);
    EXPECT_EQ(mechanism_of(served(attention(op), engines, true)), Mechanism::sequential) << name(op);
  }
}

TEST(ContextGraphs, StoresServeCapturedCalls) {
  for (const Op op : {Op::ulysses_attention, Op::allgather_attention, Op::attention_backward}) {
    const Params captured = served(attention(op), RingParams{.mover = Mover::store, .slices = 4}, true);
    EXPECT_EQ(std::get<RingParams>(captured).mover, Mover::store) << name(op);
    EXPECT_EQ(std::get<RingParams>(captured).slices, 4) << name(op);
  }
}

}  // namespace
}  // namespace shingle::context_graph_test
