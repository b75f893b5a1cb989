// Ranks that use each other's memory, with one of them late in every epoch by the time of many: nobody
// overwrites what it still reads, nor reads what it has yet to write.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "contract/contract_support.hpp"
#include "shingle/host/host.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/verify/verify.hpp"
#include "support/random_problem.hpp"

namespace shingle::late_peer_test {
namespace {

using namespace std::chrono_literals;

constexpr int world = 3, epochs = 6, late_rank = 1;

struct Case {
  Op op;
  Params params;
};

Problem problem(Op op) {
  Problem p{.op = op, .world = world, .m = 70, .n = 40, .k = 20};
  if (p.traits().is_collective()) p.k = p.n;
  if (p.traits().chains()) p.inner = 30;
  if (!p.traits().routes()) return p;
  test::Dice dice(3);
  p.routing = test::random_routing(dice, world, 70);
  if (p.traits().is_collective()) {  // as many rows each way, so that they can be exchanged in place
    std::vector<std::vector<std::int32_t>> dest(world);
    for (auto& rows : dest)
      for (int i = 0; i < 60; ++i) rows.push_back(i % world);
    p.routing = std::make_shared<const Routing>(std::move(dest));
  }
  p.m = 0;
  for (int r = 0; r < world; ++r) p.m = larger(p.m, p.routing->rows(r));
  return p;
}

/// Plays the user between epochs, in the hook before a rank's first step: looks at the last outputs, poisons
/// them, and gives A times the epoch's number. Other lanes of the rank wait until it is done.
class User {
 public:
  void begin(contract::Bench& bench, const Plan& plan, int rank, int epoch) {
    const Buffer& a = plan.buffers[static_cast<std::size_t>(find_buffer(plan, Role::a))];
    const auto a_count = static_cast<std::size_t>(a.rows[static_cast<std::size_t>(rank)] * a.cols);
    auto* values = static_cast<float*>(bench.data(rank, Role::a));
    auto& base = base_[static_cast<std::size_t>(rank)];
    if (base.empty()) base.assign(values, values + a_count);
    if (epoch > 0) check(bench, plan, rank, epoch - 1);
    for (std::size_t i = 0; i < a_count; ++i) values[i] = base[i] * static_cast<float>(epoch + 1);
    begun_[static_cast<std::size_t>(rank)] = epoch + 1;
  }
  void wait(int rank, int epoch) const {
    while (begun_[static_cast<std::size_t>(rank)] <= epoch) std::this_thread::sleep_for(100us);
  }
  void check(contract::Bench& bench, const Plan& plan, int rank, int epoch) {
    const Buffer& out = plan.buffers[static_cast<std::size_t>(find_buffer(plan, Role::out))];
    const auto count = static_cast<std::size_t>(out.rows[static_cast<std::size_t>(rank)] * out.cols);
    auto* values = static_cast<float*>(bench.data(rank, Role::out));
    for (std::size_t i = 0; i < count; ++i) {
      const float wanted = expected_[static_cast<std::size_t>(rank)][i] * static_cast<float>(epoch + 1);
      if (values[i] != wanted) ++wrong;
      values[i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  /// The output for A as it is.
  void expect(contract::Bench& bench, const Plan& plan) {
    const Buffer& out = plan.buffers[static_cast<std::size_t>(find_buffer(plan, Role::out))];
    for (int r = 0; r < world; ++r) {
      const auto* values = static_cast<const float*>(bench.data(r, Role::out));
      expected_[static_cast<std::size_t>(r)].assign(
          values, values + out.rows[static_cast<std::size_t>(r)] * out.cols);
    }
  }
  std::atomic<int> wrong{0};

 private:
  std::vector<float> base_[world], expected_[world];
  std::atomic<int> begun_[world] = {};
};

class LatePeer : public testing::TestWithParam<Case> {};

TEST_P(LatePeer, IsNeitherOverwrittenNorReadTooSoon) {
  User user;
  contract::Bench* running = nullptr;
  const Plan* executed = nullptr;
  const auto hook = [&](const StepEvent& at) {
    if (running == nullptr) return;
    if (at.step == 0 && at.lane == 0) user.begin(*running, *executed, at.rank, at.epoch - 1);
    if (at.step == 0 && at.lane != 0) user.wait(at.rank, at.epoch - 1);
    if (at.rank == late_rank && at.step % 3 == 0) std::this_thread::sleep_for(3ms);
  };
  const auto threads = make_thread_world(world, {.workers_per_rank = 3, .on_step = hook});
  const Problem p = problem(GetParam().op);
  const Plan plan = plan_with(p, threads->machine(), GetParam().params).value();
  ASSERT_TRUE(verify(plan));
  contract::Bench bench(*threads, plan);
  bench.run();  // epoch 0, which the hooks leave alone
  user.expect(bench, plan);
  running = &bench, executed = &plan;
  bench.run(epochs);
  for (int r = 0; r < world; ++r) user.check(bench, plan, r, epochs - 1);
  EXPECT_EQ(user.wrong, 0);
}

constexpr TileParams tile{16, 16}, tile_along_m{16, 16, {.raster = Raster::along_m}};
const Case fused[] = {
    {Op::gemm_reducescatter, FusedParams{.tile = tile}},
    {Op::gemm_reducescatter, FusedParams{.tile = tile, .helpers = 1}},
    {Op::gemm_reducescatter, FusedParams{.tile = tile_along_m, .helpers = 1}},
    {Op::gemm_allreduce, FusedParams{.tile = tile, .helpers = 2}},
    {Op::gemm_allreduce, FusedParams{.tile = tile_along_m, .helpers = 1}},
    {Op::gemm_allreduce, FusedParams{.tile = tile, .one_shot = true}},
    {Op::allgather_gemm, FusedParams{.tile = tile}},
    {Op::allgather_gemm, FusedParams{.tile = tile, .pull = true}},
    {Op::allgather_gemm, FusedParams{.tile = tile, .helpers = 1, .mover = Mover::store}},
    {Op::allgather_gemm, FusedParams{.tile = tile, .pull = true, .mover = Mover::store}},
    {Op::allgather_gemm, FusedParams{.tile = tile, .comm_order = CommOrder::reverse}},
    {Op::allgather_gemm, FusedParams{.tile = tile, .comm_rows = 8, .comm_order = CommOrder::interleaved}},
    {Op::mlp, FusedParams{.tile = tile}},
    {Op::mlp, FusedParams{.tile = tile, .helpers = 1, .pull = true}},
    {Op::mlp, FusedParams{.tile = tile, .helpers = 1, .mover = Mover::store}},
    {Op::mlp, FusedParams{.tile = tile, .comm_rows = 8, .comm_order = CommOrder::interleaved}},
    {Op::gemm_alltoall, FusedParams{.tile = tile}},
    {Op::alltoall_gemm, FusedParams{.tile = tile}},
    {Op::alltoall_gemm, FusedParams{.tile = tile, .helpers = 1}},
};
Case engines(Op op, CopyVariant variant, EngineTrigger trigger, bool prelaunch) {
  return {op, CopyEngineParams{.variant = variant, .prelaunch = prelaunch, .trigger = trigger}};
}
const Case copy_engines[] = {
    engines(Op::allgather, CopyVariant::bcst, EngineTrigger::host, true),
    engines(Op::allgather, CopyVariant::ring, EngineTrigger::direct, false),
    engines(Op::allgather_gemm, CopyVariant::pcpy, EngineTrigger::direct, true),
    engines(Op::gemm_allgather_gemm, CopyVariant::bcst, EngineTrigger::direct, true),
    engines(Op::gemm_allgather_gemm, CopyVariant::pcpy, EngineTrigger::host, true),
    engines(Op::alltoall, CopyVariant::swap, EngineTrigger::host, false),
    engines(Op::alltoall, CopyVariant::swap, EngineTrigger::direct, true),
    engines(Op::gemm_alltoall, CopyVariant::b2b, EngineTrigger::direct, true),
    engines(Op::alltoall_gemm, CopyVariant::pcpy, EngineTrigger::host, true),
    engines(Op::reducescatter, CopyVariant::b2b, EngineTrigger::host, true),
    engines(Op::gemm_reducescatter, CopyVariant::swap, EngineTrigger::direct, true),
    engines(Op::gemm_reducescatter, CopyVariant::pcpy, EngineTrigger::direct, false),
    engines(Op::allreduce, CopyVariant::bcst, EngineTrigger::host, true),
    engines(Op::gemm_allreduce, CopyVariant::b2b, EngineTrigger::direct, true),
};

Case ring(Op op, std::int32_t slices, std::int32_t engines) {
  return {op, RingParams{.engines = engines, .slices = slices}};
}
const Case rings[] = {
    ring(Op::gemm_reducescatter, 1, 1), ring(Op::gemm_reducescatter, 3, 2),
    ring(Op::gemm_allreduce, 1, 1),     ring(Op::gemm_allreduce, 3, 1),
    ring(Op::gemm_allreduce, 4, 2),     ring(Op::allgather_gemm, 2, 1),
    ring(Op::allgather_gemm, 3, 2),     ring(Op::mlp, 2, 1),
};

std::string case_name(const testing::TestParamInfo<Case>& param) {
  std::string text = std::string(name(param.param.op)) + std::to_string(param.index);
  std::ranges::replace(text, '+', '_');
  return text;
}
INSTANTIATE_TEST_SUITE_P(Fused, LatePeer, testing::ValuesIn(fused), case_name);
INSTANTIATE_TEST_SUITE_P(Ring, LatePeer, testing::ValuesIn(rings), case_name);
INSTANTIATE_TEST_SUITE_P(CopyEngine, LatePeer, testing::ValuesIn(copy_engines), case_name);

}  // namespace
}  // namespace shingle::late_peer_test
