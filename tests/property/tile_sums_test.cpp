// Owners that add parts in the epilogue of their own tiles, for random problems: plans are proven, results
// are right, and their bits are those of the fp32 product and the parts, added in order and rounded once.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>

#include "api/workspace.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/mutation.hpp"
#include "support/proven.hpp"
#include "support/random_problem.hpp"

namespace shingle::tile_sums_test {
namespace {

using namespace test;

bool sums(const At&, const Gemm& gemm) {
  return !gemm.sums.from.empty();
}

Problem draw_problem(Dice& dice, int world) {
  Problem p;
  do {
    p = chance(dice, 25)
            ? random_attention(dice, world, 90)
            : random_problem(dice, {.world = world, .m = 120, .n = 60, .k = 24, .experts = false});
  } while (!p.traits().reduces() || !p.traits().multiplies() || p.traits().backward || p.world < 2 ||
           p.row_order != RowOrder::contiguous);
  if (p.norm.enabled) p.n += 32;  // the mean square of a few elements can be as small as one likes
  return p;
}

/// A plan with sums, or nothing if a row of tiles has the rows of all ranks.
std::optional<Plan> draw_plan(Dice& dice, const Problem& p) {
  Machine machine = random_machine(dice);
  machine.workers += 3;
  auto params = std::get<FusedParams>(random_params(dice, p, Mechanism::fused));
  if (chance(dice, 10)) params.comm_order = p.traits().shards_a() ? CommOrder::ring : CommOrder::same;
  if (p.op == Op::gemm_allreduce && chance(dice, 80)) params.unregistered = true;
  params.sums = SumsIn::epilogue;
  params.stage_fp32 = params.one_shot = false;
  const auto plan = plan_fused(p, machine, params);
  if (plan) return *plan;
  EXPECT_NE(plan.reason().find("use sums = pass"), std::string::npos) << describe(p) << ": " << plan.reason();
  return std::nullopt;
}

class HostRun {
 public:
  HostRun(const Problem& problem, const Plan& plan)
      : world_(world_of(problem.world)),
        inputs_(random_inputs(problem, 5, Values::normal)),
        memory_(world_, *inputs_),
        executable_(world_.compile(plan)) {
    for (int rank = 0; rank < problem.world; ++rank)
      for (const Buffer& buffer : plan.buffers)
        if (buffer.role != Role::internal)
          executable_->bind(rank, buffer.role, const_cast<void*>(memory_.data(rank, buffer.role)));
    memory_.poison_outputs();
    executable_->poison();
    executable_->run({.epochs = 2, .timeout_us = 20e6});
  }

  Check check() { return shingle::check(*inputs_, memory_.outputs()); }
  bool same_bits(const HostRun& other, const Plan& plan) const {
    for (const Buffer& buffer : plan.buffers)
      for (int rank = 0; rank < plan.world() && is_output(buffer.role); ++rank)
        if (std::memcmp(memory_.data(rank, buffer.role), other.memory_.data(rank, buffer.role),
                        static_cast<std::size_t>(buffer.bytes(rank))) != 0)
          return false;
    return true;
  }

 private:
  static World& world_of(int ranks) {
    static std::map<int, std::unique_ptr<World>> worlds;
    auto& world = worlds[ranks];
    if (!world) world = make_world(ranks, {.backend = "host", .workers_per_rank = 2});
    return *world;
  }

  World& world_;
  std::unique_ptr<Inputs> inputs_;
  Workspace memory_;
  std::unique_ptr<Executable> executable_;
};

/// The same sums in two steps: own tiles add zeros and are kept in fp32, and a pass adds the parts. It is not
/// proven, as zeros are no part.
Plan in_two_steps(Plan plan) {
  const auto kept = static_cast<std::int32_t>(plan.buffers.size()), zeros = kept + 1;
  std::vector<std::int64_t> rows(plan.ranks.size());
  std::int64_t cols = 1;
  for_each_step(Plan(plan), [&](const At& at, const Step& step) {
    const auto* gemm = std::get_if<Gemm>(&step);
    if (gemm == nullptr || !sums(at, *gemm)) return;
    rows[static_cast<std::size_t>(at.rank)] = gemm->sums.to.front().slice.rows;
    cols = gemm->sums.to.front().slice.cols;
  });
  for (const char* name : {"kept", "zeros"})
    plan.buffers.push_back({name, Role::internal, DType::f32, rows, cols});
  for_each_step(Plan(plan), [&](const At& at, const Step& step) {
    if (const auto* g = std::get_if<Gemm>(&step); g == nullptr || !sums(at, *g)) return;
    Gemm& gemm = std::get<Gemm>(step_of(plan, at));
    Elementwise pass;
    pass.grid = gemm.grid;
    pass.epilogue = std::exchange(gemm.epilogue, {});
    pass.bias = std::exchange(gemm.bias, {});
    pass.from = gemm.sums.from;
    std::vector<Placement> places = std::exchange(gemm.sums.to, {});
    Placement own{whole(plan, kept, at.rank), gemm.sums.from.front().form};
    pass.from.insert(pass.from.begin(), own);
    gemm.sums.to = {own};
    gemm.sums.from = {{whole(plan, zeros, at.rank), own.form}};
    // The pass notifies of sums, and the GEMM of parts.
    const TileGate parts = gemm.gates.back();
    while (gemm.notify.size() > 1) {
      pass.notify.push_back(gemm.notify.back());
      gemm.notify.pop_back();
    }
    At next{at.rank, at.lane, at.step};
    insert_step(plan, next, Fill{whole(plan, zeros, at.rank)});
    ++next.step;
    for (std::size_t group = 0; group < parts.ends.size(); ++group) {
      if (parts.targets[group] == 0) continue;
      pass.first = group == 0 ? 0 : parts.ends[group - 1];
      pass.count = parts.ends[group] - pass.first;
      for (const Placement& to : places) {  // the last one is stored before the sums are notified of
        Elementwise one = pass;
        one.to = to;
        if (&to != &places.back()) one.notify.clear();
        ++next.step;
        insert_step(plan, next, one);
      }
    }
  });
  return plan;
}

TEST(TileSums, AreProvenAndRightToTheBit) {
  int planned = 0, at_several_places = 0;
  for (int seed = 0; planned < 120 && seed < 1000; ++seed) {
    Dice dice(static_cast<std::uint64_t>(seed));
    const Problem p = draw_problem(dice, static_cast<int>(dice.size(2, 5)));
    const auto plan = draw_plan(dice, p);
    if (!plan) continue;
    ++planned;
    for_each_step(Plan(*plan), [&](const At& at, const Step& step) {
      const auto* gemm = std::get_if<Gemm>(&step);
      at_several_places += at.rank == 0 && gemm != nullptr && gemm->sums.to.size() > 1 ? 1 : 0;
    });
    ASSERT_NO_FATAL_FAILURE(test::expect_proven(*plan));
    HostRun run(p, *plan);
    const Check result = run.check();
    ASSERT_TRUE(result.passed) << describe(p) << ": " << result.max_error << " above " << result.tolerance
                               << " at " << result.worst << "\n"
                               << to_text(*plan);
    const Plan reference = in_two_steps(*plan);
    ASSERT_EQ(malformed(reference), std::nullopt);
    ASSERT_TRUE(run.same_bits(HostRun(p, reference), *plan)) << describe(p) << "\n" << to_text(*plan);
  }
  EXPECT_EQ(planned, 120) << "too few problems have such a plan";
  EXPECT_GE(at_several_places, 5) << "too few all-reduces of matrices that peers cannot reach";
}

}  // namespace
}  // namespace shingle::tile_sums_test
