// The rows that calls of allgather+gemm leave in the staging memory of a context.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "api/workspace.hpp"
#include "shingle/api/context.hpp"
#include "shingle/base/error.hpp"
#include "shingle/host/host.hpp"

namespace shingle::gathered_rows_test {
namespace {

Problem gather(int world, std::int64_t m, Op op = Op::allgather_gemm) {
  return {.op = op, .world = world, .m = m, .n = 40, .k = 24, .transpose_b = true};
}

/// True if a rank's gathered rows are the rows of all ranks' A, bit by bit.
bool are_all_of(const Context& context, int rank, const Problem& problem, const Workspace& memory) {
  const std::int64_t row_bytes = problem.k * static_cast<std::int64_t>(size_bytes(problem.dtype));
  const auto* const gathered = static_cast<const std::byte*>(context.gathered(rank));
  for (int source = 0; source < problem.world; ++source)
    for (const GlobalRun& run : problem.a_runs(source)) {
      const auto* const own = static_cast<const std::byte*>(memory.data(source, Role::a));
      if (std::memcmp(gathered + run.global_row * row_bytes, own + run.local_row * row_bytes,
                      static_cast<std::size_t>(run.rows * row_bytes)) != 0)
        return false;
    }
  return true;
}

TEST(GatheredRows, AreThereAfterACall) {
  std::map<Mechanism, int> in_order;
  for (const PlannerEntry& entry : planners())
    for (const int ranks : {1, 2, 3})
      for (const bool blocks : {false, true}) {
        const auto world = make_thread_world(ranks);
        Context context(*world, {.choose = [&](const Problem&) { return default_params(entry.mechanism); }});
        Problem largest = gather(ranks, 64);
        if (blocks) largest.row_order = RowOrder::block_cyclic, largest.row_block = 4;
        const int op = context.declare(largest);
        EXPECT_EQ(context.gathered(0), nullptr) << "before the first call";
        for (const std::int64_t m : {64, 36, 1}) {
          if (blocks && m % (4 * ranks) != 0) continue;
          const Problem problem = context.problem(op, m);
          const auto inputs = random_inputs(problem, 7);
          Workspace memory(*world, *inputs);
          context.call(op, m, memory.arguments(problem));
          context.synchronize();
          ASSERT_TRUE(check(*inputs, memory.outputs()).passed);
          if (!context.gathers_in_order(op, m)) {
            EXPECT_EQ(context.gathered(0), nullptr);
            continue;
          }
          in_order[context.plan(op, m).mechanism] += 1;
          for (int rank = 0; rank < ranks; ++rank)
            EXPECT_TRUE(are_all_of(context, rank, problem, memory))
                << name(entry.mechanism) << ", " << ranks << " ranks, m = " << m;
        }
      }
  for (const Mechanism mechanism : {Mechanism::sequential, Mechanism::fused, Mechanism::copy_engine})
    EXPECT_GT(in_order[mechanism], 0) << name(mechanism);
}

TEST(GatheredRows, AreThoseOfTheLastCall) {
  const auto world = make_thread_world(2);
  Context context(*world);
  const int first = context.declare(gather(2, 64)),
            other = context.declare(gather(2, 64, Op::gemm_allreduce));
  const auto call = [&](int op) {
    const Problem problem = context.problem(op, 64);
    const auto inputs = random_inputs(problem, 7);
    Workspace memory(*world, *inputs);
    context.call(op, 64, memory.arguments(problem));
    context.synchronize();
    context.extend({});
  };
  call(first);
  EXPECT_NE(context.gathered(0), nullptr);
  EXPECT_NE(context.gathered(0), context.gathered(1));
  EXPECT_THROW(context.gathered(2), InvalidArgument);
  call(other);
  EXPECT_EQ(context.gathered(0), nullptr);
  EXPECT_FALSE(context.gathers_in_order(other, 64));
  EXPECT_THROW(context.gathers_in_order(first, 65), InvalidArgument);
}

}  // namespace
}  // namespace shingle::gathered_rows_test
