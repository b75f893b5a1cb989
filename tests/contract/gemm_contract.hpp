// The contract of Gemm: every placement, transpose, type and epilogue; gates and notifications.
#pragma once

#include <numeric>

#include "contract_support.hpp"

namespace shingle::contract {

inline double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    default:
      return x;
  }
}

/// A Gemm of every rank whose output is what `out` makes of it, checked element by element through
/// for_each_piece.
struct GemmCase {
  std::int64_t m = 37, n = 22, k = 19;
  DType type = DType::f32;
  bool transpose_a = false, transpose_b = false;
  Epilogue epilogue;
  TileGrid grid;  ///< over the virtual rows
  RowMap a_rows;
  Placement out;  ///< its slice is set here: all of a buffer of out_rows × out_cols
  std::int64_t out_rows = 0, out_cols = 0;
  std::shared_ptr<const Routing> routing;

  double product(int rank, std::int64_t row, std::int64_t col) const {
    double sum = epilogue.bias ? element(rank, Role::bias, 0, col) : 0;
    for (std::int64_t i = 0; i < k; ++i)
      sum +=
          static_cast<double>(transpose_a ? element(rank, Role::a, i, row) : element(rank, Role::a, row, i)) *
          (transpose_b ? element(rank, Role::b, col, i) : element(rank, Role::b, i, col));
    return sum;
  }
  double result(int rank, std::int64_t row, std::int64_t col) const {
    if (epilogue.activation != Activation::swiglu)
      return activated(epilogue.activation, product(rank, row, col));
    return activated(Activation::silu, product(rank, row, col)) * product(rank, row, n / 2 + col);
  }

  void check(World& world) const {
    Maker make(world.size());
    make.plan.problem.routing = routing;
    const std::int32_t a = transpose_a ? make.buffer(Role::a, k, m, type) : make.buffer(Role::a, m, k, type);
    const std::int32_t b = transpose_b ? make.buffer(Role::b, n, k, type) : make.buffer(Role::b, k, n, type);
    const std::int32_t bias = make.buffer(Role::bias, 1, n, type);
    const std::int32_t target = make.buffer(Role::out, out_rows, out_cols, type);
    for (int rank = 0; rank < world.size(); ++rank) {
      Gemm gemm;
      gemm.grid = grid;
      gemm.a = make.all(a, rank);
      gemm.b = make.all(b, rank);
      gemm.a_rows = a_rows;
      gemm.transpose_a = transpose_a;
      gemm.transpose_b = transpose_b;
      gemm.epilogue = epilogue;
      if (epilogue.bias) gemm.bias = make.all(bias, rank);
      gemm.out = out;
      gemm.out.slice = make.all(target, rank);
      make.step(rank, 0, gemm);
    }
    Bench bench(world, make.plan);
    bench.run();
    const auto expected = stored();
    const bool exact = epilogue.activation == Activation::none || epilogue.activation == Activation::relu;
    bench.expect(
        Role::out,
        [&](int rank, std::int64_t row, std::int64_t col) {
          const auto& [from_row, from_col] = expected[static_cast<std::size_t>(row * out_cols + col)];
          return from_row < 0 ? std::nan("") : result(rank, from_row, from_col);
        },
        exact ? 0 : 2 * epsilon(type) + 1e-5);
  }

  /// For every element of the output buffer the row of op(A) and the column that belong there, or -1.
  std::vector<std::pair<std::int64_t, std::int64_t>> stored() const {
    std::vector<std::pair<std::int64_t, std::int64_t>> at(static_cast<std::size_t>(out_rows * out_cols),
                                                          {-1, -1});
    Placement whole = out;
    whole.slice = {0, 0, 0, out_rows, 0, out_cols};
    for (std::int64_t position = 0; position < grid.positions(); ++position) {
      const TileRect tile = grid.rect(grid.tile(position));
      if (tile.rows == 0 || tile.cols == 0) continue;
      for_each_piece(whole, grid, routing.get(), position, [&](const Piece& piece) {
        for (std::int64_t i = 0; i < piece.rows; ++i) {
          const std::int64_t row = a_rows.run_at(tile.row + piece.tile_row + i, 1).matrix_row;
          for (std::int64_t j = 0; j < tile.cols && row >= 0; ++j)
            at[static_cast<std::size_t>((piece.row + i) * out_cols + piece.col + j)] = {row, tile.col + j};
        }
      });
    }
    return at;
  }

  /// In place: the output is the matrix.
  static GemmCase plain() {
    GemmCase it;
    it.grid = make_grid(it.m, it.n, 8, 6);
    it.a_rows = it.out.rows = RowMap::identity(it.m);
    it.out_rows = it.m;
    it.out_cols = it.n;
    return it;
  }
};

TEST_P(BackendContract, GemmInEveryTypeAndTranspose) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true}) {
        SCOPED_TRACE(std::string(name(type)) + (transpose_a ? " ta" : "") + (transpose_b ? " tb" : ""));
        GemmCase it = GemmCase::plain();
        it.type = type;
        it.transpose_a = transpose_a;
        it.transpose_b = transpose_b;
        it.check(*world);
      }
}

TEST_P(BackendContract, GemmWithEveryEpilogue) {
  for (const Activation activation :
       {Activation::none, Activation::relu, Activation::gelu, Activation::silu, Activation::swiglu})
    for (const DType type : {DType::f32, DType::bf16, DType::f16})
      for (const bool bias : {false, true}) {
        SCOPED_TRACE(std::string(name(activation)) + " " + std::string(name(type)) + (bias ? " bias" : ""));
        GemmCase it = GemmCase::plain();
        it.type = type;
        it.epilogue = {bias, activation};
        if (activation == Activation::swiglu) {
          it.out_cols = it.n / 2;
          it.grid = make_grid(it.m, it.out_cols, 8, 4);
        }
        it.check(*world);
      }
}

TEST_P(BackendContract, GemmInEveryOrder) {
  for (const Raster raster : {Raster::along_n, Raster::along_m}) {
    GemmCase it = GemmCase::plain();
    it.grid = make_grid(it.m, it.n, 8, 6, {raster, 3, 2, 1, 1});  // phantom tiles too
    it.check(*world);
  }
}

TEST_P(BackendContract, GemmToSlots) {
  GemmCase it = GemmCase::plain();
  it.out.kind = PlacementKind::slots;
  it.out_rows = it.grid.rows_before(it.grid.positions());
  it.out_cols = it.grid.tile_cols;
  it.check(*world);
}

/// Rows picked from three shards of 13, of which the last is short: phantom rows are neither computed nor
/// stored.
TEST_P(BackendContract, GemmToSubtilesOfPickedRows) {
  for (const DType type : {DType::f32, DType::bf16}) {
    GemmCase it = GemmCase::plain();
    it.type = type;
    it.a_rows = {3, 4, 13, 13, 0, it.m};
    it.grid = make_grid(it.a_rows.rows(), it.n, 12, 6);
    it.out.kind = PlacementKind::subtiles;
    it.out.parts = 3;
    it.out.ends = {5, it.grid.positions()};
    it.out_rows = it.grid.rows_before(it.grid.positions());
    it.out_cols = it.grid.tile_cols;
    it.check(*world);
  }
}

TEST_P(BackendContract, GemmOfOneRowAndOneTile) {
  GemmCase it = GemmCase::plain();
  it.m = 1;
  it.a_rows = it.out.rows = RowMap::identity(1);
  it.grid = make_grid(1, it.n, 64, 64);
  it.out_rows = 1;
  it.check(*world);
}

/// Long runs of rows go to oneDNN as they are; the tile is larger than the blocks that pass through scratch.
TEST_P(BackendContract, GemmOfOneLargeTile) {
  for (const Epilogue epilogue : {Epilogue{}, Epilogue{true, Activation::relu}}) {
    GemmCase it = GemmCase::plain();
    it.m = 1100;
    it.n = 700;
    it.k = 5;
    it.epilogue = epilogue;
    it.a_rows = {2, 600, 600, 550, 0, it.m};
    it.a_rows.len = 550;
    it.grid = make_grid(1100, it.n, 1100, 700);
    it.out.rows = RowMap::identity(1100);
    it.out_rows = 1100;
    it.out_cols = it.n;
    it.check(*world);
  }
}

TEST_P(BackendContract, GemmToPoolsAndRoutedRows) {
  std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(ranks));
  for (int row = 0; row < 37; ++row) dest[0].push_back(row * 7 % 3 % ranks);
  GemmCase it = GemmCase::plain();
  it.routing = std::make_shared<Routing>(dest);
  it.out.kind = PlacementKind::pools;
  it.out.source = 0;
  it.out.ends = {4, it.grid.positions()};
  std::int64_t base = 0;
  for (int group = 0; group < 2; ++group)
    for (int to = 0; to < ranks; ++to) {
      it.out.bases.push_back(base);
      const auto rows_to = [&](std::int64_t lo, std::int64_t hi) {
        return it.routing->count_before(0, to, smaller(hi * 8, 37)) -
               it.routing->count_before(0, to, smaller(lo * 8, 37));
      };
      const std::int64_t until = it.grid.sum_before(it.out.ends[0], rows_to, TileGrid::Count{});
      base +=
          group == 0 ? until : it.grid.sum_before(it.grid.positions(), rows_to, TileGrid::Count{}) - until;
    }
  it.out_rows = base;
  it.out_cols = it.grid.tile_cols;
  it.check(*world);

  GemmCase routed = GemmCase::plain();
  routed.routing = it.routing;
  routed.out.kind = PlacementKind::routed;
  routed.out.source = 0;
  routed.out.dest = 0;
  routed.out.bases = {1};
  routed.out_rows = 38;
  routed.check(*world);
}

/// A pass on one lane feeds a gated GEMM on another, whose tiles a third lane awaits before it copies them
/// out: five epochs.
TEST_P(BackendContract, GatesAndNotificationsOverEpochs) {
  Maker make(ranks);
  const std::int32_t a = make.buffer(Role::a, 24, 9), b = make.buffer(Role::b, 9, 10),
                     out = make.buffer(Role::out, 24, 10);
  const std::int32_t staged = make.buffer(Role::internal, 24, 9, DType::f32, 2),
                     product = make.buffer(Role::internal, 24, 10);
  const TileGrid grid = make_grid(24, 10, 6, 5);
  const std::vector<std::int64_t> halves{4, 8};
  const std::int32_t fed = make.counter({2, 2}), done = make.counter({4, 4});
  for (int rank = 0; rank < ranks; ++rank) {
    Elementwise feed = Maker::pass(make.all(a, rank), make.all(staged, rank), 6, 9);
    feed.notify = {{fed, {rank}, {2, 4}}};
    make.step(rank, 0, feed);
    Gemm gemm;
    gemm.grid = grid;
    gemm.a = make.all(staged, rank);
    gemm.b = make.all(b, rank);
    gemm.a_rows = RowMap::identity(24);
    gemm.out = Maker::in_place(make.all(product, rank));
    gemm.gates = {{fed, halves, {2, 2}}};
    gemm.notify = {{done, {rank}, halves}};
    make.step(rank, 1, gemm);
    for (int half = 0; half < 2; ++half) {
      make.step(rank, 2, Await{{done, rank, half}, 4});
      make.step(rank, 2, Copy{make.rows(product, rank, half * 12, 12), make.rows(out, rank, half * 12, 12)});
    }
  }
  Bench bench(*world, make.plan);
  for (const int epochs : {5, 1, 2}) {
    bench.poison();
    bench.run(epochs);
    bench.expect(Role::out, [](int rank, std::int64_t row, std::int64_t col) {
      double sum = 0;
      for (int i = 0; i < 9; ++i)
        sum += static_cast<double>(element(rank, Role::a, row, i)) * element(rank, Role::b, i, col);
      return sum;
    });
  }
}

}  // namespace shingle::contract
