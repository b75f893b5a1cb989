// Sizes and row orders of problems beside lists of rows; wrong problems are named.
#include "shingle/plan/problem.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "shingle/base/error.hpp"
#include "shingle/plan/shapes.hpp"
#include "support/random_problem.hpp"

namespace shingle::problem_test {
namespace {

using ::testing::HasSubstr;

/// Global row of every local row; runs are in order of the local row and hold at least one.
std::vector<std::int64_t> listed(const std::vector<GlobalRun>& runs) {
  std::vector<std::int64_t> rows;
  for (const GlobalRun& run : runs) {
    EXPECT_EQ(run.local_row, static_cast<std::int64_t>(rows.size()));
    for (std::int64_t i = 0; i < run.rows; ++i) rows.push_back(run.global_row + i);
  }
  return rows;
}

/// Whose row a row of a sharded matrix is, by the words of the header.
int owner(const Problem& p, std::int64_t row) {
  if (p.row_order == RowOrder::contiguous) return static_cast<int>(row / p.shard_rows());
  // Blocks of world · row_block rows, whose parts are dealt in turn; the last block of each rank may be
  // short.
  for (std::int64_t local = 0;; local += p.row_block) {
    const std::int64_t size = std::min(p.row_block, p.shard_rows() - local);
    if (row < (local + size) * p.world) return static_cast<int>((row - local * p.world) / size);
  }
}

TEST(Problem, ZigzagGivesChunksFromBothEnds) {
  Problem p{.op = Op::allgather_attention, .world = 3, .m = 12, .n = 4, .k = 4};
  p.attention = {.heads = 1, .kv_heads = 1, .head_dim = 4};
  p.row_order = RowOrder::zigzag;
  const auto expect = [&](std::vector<std::vector<std::int64_t>> rows) {
    p.validate();
    for (int rank = 0; rank < p.world; ++rank) {
      const auto& own = rows[static_cast<std::size_t>(rank)];
      EXPECT_EQ(listed(p.a_runs(rank)), own) << describe(p) << ", rank " << rank;
      EXPECT_EQ(listed(p.out_runs(rank)), own);
      EXPECT_EQ(p.a_rows(rank), static_cast<std::int64_t>(own.size()));
      EXPECT_EQ(p.kv_rows(rank), p.a_rows(rank));
      EXPECT_LE(p.a_rows(rank), p.shard_rows());
    }
  };
  expect({{0, 1, 10, 11}, {2, 3, 8, 9}, {4, 5, 6, 7}});
  EXPECT_EQ(p.a_runs(2).size(), 1u);  // its chunks are neighbours
  p.m = 9;                            // the last chunks are short, or empty
  expect({{0, 1}, {2, 3, 8}, {4, 5, 6, 7}});
  p.m = 2;
  expect({{0}, {1}, {}});
}

TEST(Problem, ShardsAreAllRowsOnce) {
  test::Dice dice(1);
  for (int i = 0; i < 500; ++i) {
    Problem p;
    p.op = dice.size(0, 1) ? Op::gemm_reducescatter : Op::allgather_gemm;
    p.world = static_cast<int>(dice.size(1, 16));
    p.m = dice.size(1, 60);
    p.n = p.k = 1;
    if (dice.size(0, 1)) p.row_order = RowOrder::block_cyclic, p.row_block = dice.size(1, 9);
    p.validate();
    const bool scatter = p.op == Op::gemm_reducescatter;
    std::vector<std::vector<std::int64_t>> expected(static_cast<std::size_t>(p.world));
    for (std::int64_t row = 0; row < p.m; ++row)
      expected[static_cast<std::size_t>(owner(p, row))].push_back(row);
    for (int rank = 0; rank < p.world; ++rank) {
      const auto& own = expected[static_cast<std::size_t>(rank)];
      EXPECT_EQ(listed(scatter ? p.out_runs(rank) : p.a_runs(rank)), own) << describe(p) << ", rank " << rank;
      EXPECT_EQ(scatter ? p.out_rows(rank) : p.a_rows(rank), static_cast<std::int64_t>(own.size()));
      EXPECT_LE(static_cast<std::int64_t>(own.size()), p.shard_rows());
      EXPECT_EQ(scatter ? p.a_rows(rank) : p.out_rows(rank), p.m);
    }
  }
}

TEST(Problem, AnMlpHoldsAndKeepsItsShardOfTheRows) {
  Problem p{.op = Op::mlp, .world = 4, .m = 10, .n = 6, .k = 5, .inner = 7};
  p.epilogue = {true, Activation::swiglu};
  p.validate();
  EXPECT_EQ(p.b_cols(), 14);
  EXPECT_EQ(p.out_cols(), 6);
  EXPECT_FALSE(p.result_epilogue().any());
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(listed(p.a_runs(rank)), listed(p.out_runs(rank)));
    EXPECT_EQ(p.a_rows(rank), rank == 3 ? 1 : 3);
  }
  EXPECT_EQ(shape_of(p, Role::a, 3), (Shape{1, 5}));
  EXPECT_EQ(shape_of(p, Role::b, 0), (Shape{5, 14}));
  EXPECT_EQ(shape_of(p, Role::down, 0), (Shape{7, 6}));
  EXPECT_EQ(shape_of(p, Role::bias, 0), (Shape{1, 14}));
  p.transpose_b = true;
  EXPECT_EQ(shape_of(p, Role::b, 0), (Shape{14, 5}));
  EXPECT_EQ(shape_of(p, Role::down, 0), (Shape{6, 7}));
  EXPECT_EQ(describe(p), "mlp 10x6x5 f32, 7 inner, B transposed, bias, swiglu, 4 ranks");
}

TEST(Problem, AllToAllReceivesBySourceThenRow) {
  test::Dice dice(2);
  for (int i = 0; i < 200; ++i) {
    Problem p;
    p.op = Op::gemm_alltoall;
    p.world = static_cast<int>(dice.size(1, 6));
    p.routing = test::random_routing(dice, p.world, 20);
    std::int64_t all = 0;
    for (int rank = 0; rank < p.world; ++rank)
      all += p.routing->rows(rank), p.m = larger(p.m, p.routing->rows(rank));
    p.n = p.k = 1;
    p.validate();
    EXPECT_EQ(p.global_rows(), all);
    for (int rank = 0; rank < p.world; ++rank) {
      std::vector<std::int64_t> expected;
      for (int source = 0; source < p.world; ++source)
        for (std::int64_t row = 0; row < p.routing->rows(source); ++row)
          if (p.routing->dest(source, row) == rank) expected.push_back(p.routing->global_base(source) + row);
      EXPECT_EQ(listed(p.out_runs(rank)), expected);
      EXPECT_EQ(p.out_rows(rank), static_cast<std::int64_t>(expected.size()));
      EXPECT_EQ(p.a_rows(rank), p.routing->rows(rank));
      EXPECT_EQ(static_cast<std::int64_t>(listed(p.a_runs(rank)).size()), p.routing->rows(rank));
    }
  }
}

TEST(Problem, RunsOfOneOutputRowSourceNeverSpanRanks) {
  // A run is of one source rank, although the global rows of two ranks may follow each other.
  Problem p;
  p.op = Op::gemm_alltoall;
  p.world = 2;
  p.m = 2, p.n = p.k = 1;
  p.routing = std::make_shared<const Routing>(std::vector<std::vector<std::int32_t>>{{0, 0}, {0, 0}});
  EXPECT_EQ(p.out_runs(0).size(), 2u);
}

TEST(Problem, SwigluHalvesTheColumns) {
  Problem p;
  p.m = p.k = 1, p.n = 6;
  EXPECT_EQ(p.out_cols(), 6);
  p.epilogue.activation = Activation::swiglu;
  EXPECT_EQ(p.out_cols(), 3);
  EXPECT_TRUE(p.epilogue.any());
}

TEST(Problem, NamesReadBack) {
  for (const Op op :
       {Op::gemm, Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm, Op::gemm_alltoall})
    EXPECT_EQ(parse_op(name(op)), op);
  for (const Activation a :
       {Activation::none, Activation::relu, Activation::gelu, Activation::silu, Activation::swiglu})
    EXPECT_EQ(parse_activation(name(a)), a);
  EXPECT_THROW(parse_op("gemm+"), InvalidArgument);
  EXPECT_THROW(parse_op("overlap"), InvalidArgument) << "a workload, not an operator";
  EXPECT_THROW(parse_activation("tanh"), InvalidArgument);
}

TEST(Problem, EqualityLooksIntoTheRouting) {
  Problem p, q;
  p.op = q.op = Op::gemm_alltoall;
  p.routing = std::make_shared<const Routing>(std::vector<std::vector<std::int32_t>>{{0}});
  EXPECT_FALSE(p == q);
  q.routing = std::make_shared<const Routing>(p.routing->table());
  EXPECT_TRUE(p == q);
  q.routing = std::make_shared<const Routing>(std::vector<std::vector<std::int32_t>>{{0, 0}});
  EXPECT_FALSE(p == q);
}

TEST(Problem, DescribesItself) {
  Problem p;
  p.op = Op::gemm_reducescatter;
  p.world = 4, p.m = 8, p.n = 6, p.k = 2;
  p.dtype = DType::bf16;
  p.transpose_a = true;
  p.epilogue = {true, Activation::gelu};
  p.norm = {true, true};
  p.row_order = RowOrder::block_cyclic;
  p.row_block = 3;
  EXPECT_EQ(describe(p),
            "gemm+reducescatter 8x6x2 bf16, A transposed, bias, gelu, residual + rmsnorm, rows dealt in "
            "blocks of 3, 4 ranks");
}

struct Wrong {
  const char* name;
  std::function<void(Problem&)> spoil;
  const char* says;
};

class WrongProblem : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongProblem, IsNamed) {
  Problem p;
  p.op = Op::gemm_reducescatter;
  p.world = 2, p.m = p.n = p.k = 4;
  ASSERT_NO_THROW(p.validate());
  GetParam().spoil(p);
  try {
    p.validate();
    FAIL() << "taken for right";
  } catch (const InvalidArgument& e) {
    EXPECT_THAT(e.what(), HasSubstr(GetParam().says));
  }
}

std::shared_ptr<const Routing> rows_of(std::vector<std::vector<std::int32_t>> dest) {
  return std::make_shared<const Routing>(std::move(dest));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, WrongProblem,
    ::testing::Values(
        Wrong{"World", [](Problem& p) { p.world = 0; }, "world = 0"},
        Wrong{"WorldTooLarge", [](Problem& p) { p.world = max_planned_world + 1; }, "world = 16385"},
        Wrong{"M", [](Problem& p) { p.m = 0; }, "m = 0"}, Wrong{"N", [](Problem& p) { p.n = -1; }, "n = -1"},
        Wrong{"K", [](Problem& p) { p.k = max_extent + 1; }, "k = 2147483648"},
        Wrong{"OddSwiglu", [](Problem& p) { p.n = 5, p.epilogue.activation = Activation::swiglu; },
              "n = 5 must be even"},
        Wrong{"ResidualAlone", [](Problem& p) { p.norm.residual = true; }, "a residual needs norm"},
        Wrong{"Epsilon", [](Problem& p) { p.norm = {true, false, -1.0f}; }, "norm epsilon = -1"},
        Wrong{"Nan", [](Problem& p) { p.norm = {true, false, std::numeric_limits<float>::quiet_NaN()}; },
              "norm epsilon = nan"},
        Wrong{"NoRouting", [](Problem& p) { p.op = Op::gemm_alltoall; }, "needs a routing"},
        Wrong{"NeedlessRouting", [](Problem& p) { p.routing = rows_of({{}, {}}); },
              "only all-to-alls and experts take a routing"},
        Wrong{"RoutingWorld", [](Problem& p) { p.op = Op::gemm_alltoall, p.routing = rows_of({{0}}); },
              "1 ranks, the world 2"},
        Wrong{"RoutingRows", [](Problem& p) { p.op = Op::gemm_alltoall, p.routing = rows_of({{0}, {1, 1}}); },
              "has 2 rows"},
        Wrong{"NoInner", [](Problem& p) { p.op = Op::mlp; }, "inner = 0"},
        Wrong{"InnerAlone", [](Problem& p) { p.inner = 3; }, "at most one GEMM"},
        Wrong{"InnerTwice",
              [](Problem& p) {
                p.op = Op::mlp, p.inner = max_extent, p.epilogue.activation = Activation::swiglu;
              },
              "columns of the first product"},
        Wrong{"MlpTransposed", [](Problem& p) { p.op = Op::mlp, p.inner = 3, p.transpose_a = true; },
              "transpose_a must be off"},
        Wrong{"MlpDealt",
              [](Problem& p) {
                p.op = Op::mlp, p.inner = 3, p.row_order = RowOrder::block_cyclic, p.row_block = 1;
              },
              "block-cyclic rows are for"},
        Wrong{"RowBlock", [](Problem& p) { p.row_order = RowOrder::block_cyclic; }, "row_block = 0"},
        Wrong{"RowBlockAlone", [](Problem& p) { p.row_block = 4; },
              "row_block = 4 needs row order block-cyclic"},
        Wrong{"RowOrder",
              [](Problem& p) { p.op = Op::gemm, p.row_order = RowOrder::block_cyclic, p.row_block = 1; },
              "block-cyclic rows are for"}),
    [](const auto& wrong) { return wrong.param.name; });

}  // namespace
}  // namespace shingle::problem_test
