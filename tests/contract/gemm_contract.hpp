// The contract of Gemm: every placement, transpose, type and epilogue; gates and notifications.
#pragma once

#include <algorithm>

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

  /// op(A)·B of a rank, and the bias: sums of small integers, exact also in fp32.
  std::vector<float> product(int rank) const {
    std::vector<float> b, sums;
    for (std::int64_t i = 0; i < k; ++i)
      for (std::int64_t col = 0; col < n; ++col)
        b.push_back(transpose_b ? element(rank, Role::b, col, i) : element(rank, Role::b, i, col));
    for (std::int64_t row = 0; row < m; ++row) {
      const auto first = static_cast<std::ptrdiff_t>(sums.size());
      for (std::int64_t col = 0; col < n; ++col)
        sums.push_back(epilogue.bias ? element(rank, Role::bias, 0, col) : 0);
      const auto sum = sums.begin() + first;
      for (std::int64_t i = 0; i < k; ++i) {
        const float x = transpose_a ? element(rank, Role::a, i, row) : element(rank, Role::a, row, i);
        for (std::int64_t col = 0; col < n; ++col) sum[col] += x * b[static_cast<std::size_t>(i * n + col)];
      }
    }
    return sums;
  }
  double result(const std::vector<float>& product, std::int64_t row, std::int64_t col) const {
    const double x = product[static_cast<std::size_t>(row * n + col)];
    if (epilogue.activation != Activation::swiglu) return activated(epilogue.activation, x);
    return activated(Activation::silu, x) * product[static_cast<std::size_t>(row * n + n / 2 + col)];
  }

  Plan plan(const World& world) const {
    Maker make(world.size());
    make.plan.workers = world.machine().workers;
    make.plan.problem().routing = routing;
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
    return make.plan;
  }

  void check(World& world, const Served& served) const {
    Bench bench(world, plan(world));
    bench.run();
    const auto expected = stored();
    std::map<int, std::vector<float>> products;
    for (const int rank : world.local_ranks()) products[rank] = product(rank);
    const bool exact = epilogue.activation == Activation::none || epilogue.activation == Activation::relu;
    bench.expect(
        Role::out,
        [&](int rank, std::int64_t row, std::int64_t col) {
          const auto& [from_row, from_col] = expected[static_cast<std::size_t>(row * out_cols + col)];
          if (from_row < 0) return from_col < 0 || served.spares_phantom_rows ? std::nan("") : HUGE_VAL;
          return result(products.at(rank), from_row, from_col);
        },
        exact ? 0 : 2 * epsilon(type) + 1e-5);
  }
  /// In tiles or with an activation: what needs hooks.
  void check_hooked(World& world, const Served& served) const {
    if (std::ranges::find(served.tiled_types, type) == served.tiled_types.end())
      expect_refused(world, plan(world));
    else
      check(world, served);
  }

  /// For every element of the output buffer the row of op(A) and the column that belong there; no row where
  /// the row is phantom, and no column either where nothing belongs.
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
          for (std::int64_t j = 0; j < tile.cols; ++j)
            at[static_cast<std::size_t>((piece.row + i) * out_cols + piece.col + j)] = {row, tile.col + j};
        }
      });
    }
    return at;
  }

  /// In place, whole, in one tile: the output is the matrix.
  static GemmCase whole() {
    GemmCase it;
    it.span(64, 64);
    return it;
  }
  /// In place, in tiles, of which the last of each row and column are ragged: five by four.
  static GemmCase tiled(const Served& served) {
    GemmCase it;
    it.m = served.tile_rows * 9 / 2 + 1;
    it.n = served.tile_cols * 11 / 3 / served.multiple * served.multiple;
    it.k = 19 * served.multiple;
    it.span(served.tile_rows, served.tile_cols);
    return it;
  }
  /// Sets what follows from the sizes.
  void span(std::int32_t tile_rows, std::int32_t tile_cols) {
    const bool gated = epilogue.activation == Activation::swiglu;
    out_rows = m;
    out_cols = gated ? n / 2 : n;
    grid = make_grid(m, out_cols, tile_rows, gated ? tile_cols / 2 : tile_cols);
    a_rows = RowMap::identity(m);
    out.form = placement::Matrix{a_rows};
  }
};

TEST_P(BackendContract, GemmInEveryTypeAndTranspose) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true}) {
        SCOPED_TRACE(std::string(name(type)) + (transpose_a ? " ta" : "") + (transpose_b ? " tb" : ""));
        GemmCase it = GemmCase::tiled(served());
        it.type = type;
        it.transpose_a = transpose_a;
        it.transpose_b = transpose_b;
        if (transpose_a) it.m -= it.m % served().multiple;
        it.span(served().tile_rows, served().tile_cols);
        it.check_hooked(*world, served());
      }
}

TEST_P(BackendContract, GemmWithEveryEpilogue) {
  for (const Activation activation :
       {Activation::none, Activation::relu, Activation::gelu, Activation::silu, Activation::swiglu})
    for (const DType type : {DType::f32, DType::bf16, DType::f16})
      for (const bool bias : {false, true}) {
        SCOPED_TRACE(std::string(name(activation)) + " " + std::string(name(type)) + (bias ? " bias" : ""));
        GemmCase it = GemmCase::tiled(served());
        it.type = type;
        it.epilogue = {bias, activation};
        it.span(served().tile_rows, served().tile_cols);
        it.check_hooked(*world, served());
      }
}

TEST_P(BackendContract, GemmInEveryOrder) {
  for (const DType type : served().tiled_types)
    for (const Raster raster : {Raster::along_n, Raster::along_m}) {
      GemmCase it = GemmCase::tiled(served());
      it.type = type;
      it.grid = make_grid(it.m, it.n, served().tile_rows, served().tile_cols,
                          {raster, 3, 2, 1, 1});  // phantom tiles too
      it.check(*world, served());
    }
}

TEST_P(BackendContract, GemmToSlots) {
  for (const DType type : served().tiled_types) {
    GemmCase it = GemmCase::tiled(served());
    it.type = type;
    it.out.form = placement::Slots{};
    it.out_rows = it.grid.rows_before(it.grid.positions());
    it.out_cols = it.grid.tile_cols;
    it.check(*world, served());
  }
}

/// Rows picked from shards, of which the last is short: phantom rows are neither computed nor stored.
TEST_P(BackendContract, GemmToSubtilesOfPickedRows) {
  for (const DType type : served().tiled_types)
    for (const std::int32_t shards : {2, 3, 4}) {
      if (served().tile_rows % shards != 0) continue;
      SCOPED_TRACE(std::string(name(type)) + " " + std::to_string(shards) + " shards");
      GemmCase it = GemmCase::tiled(served());
      it.type = type;
      const std::int64_t rows = ceil_div(it.m, shards);
      it.a_rows = {shards, served().tile_rows / shards, rows, rows, 0, it.m};
      it.grid = make_grid(it.a_rows.rows(), it.n, served().tile_rows, served().tile_cols);
      it.out.form = placement::Subtiles{{5, it.grid.positions()}, shards};
      it.out_rows = it.grid.rows_before(it.grid.positions());
      it.out_cols = it.grid.tile_cols;
      it.check(*world, served());
    }
}

TEST_P(BackendContract, GemmOfOneRowAndOneTile) {
  GemmCase it = GemmCase::whole();
  it.m = 1;
  it.span(64, 64);
  it.check(*world, served());
}

/// One less than a whole number of a matrix engine's tiles: a library that miscounts them crashes here.
TEST_P(BackendContract, GemmOfOddDepth) {
  for (const std::int64_t k : {31, 63, 127}) {
    GemmCase it = GemmCase::whole();
    it.type = DType::bf16;
    it.m = 66;
    it.n = 24;
    it.k = k * served().multiple;
    it.span(128, 64);
    it.check_hooked(*world, served());
  }
}

/// Long runs of rows go to oneDNN as they are; the tile is larger than the blocks that pass through scratch.
TEST_P(BackendContract, GemmOfOneLargeTile) {
  for (const Epilogue epilogue : {Epilogue{}, Epilogue{true, Activation::relu}}) {
    GemmCase it = GemmCase::whole();
    it.m = 1100;
    it.n = 700;
    it.k = 5;
    it.epilogue = epilogue;
    it.span(1100, 700);
    it.a_rows = {2, 600, 550, 550, 0, it.m};
    it.check(*world, served());
  }
}

/// Which rank each of `rows` rows of rank 0 goes to.
inline std::shared_ptr<const Routing> some_routing(int ranks, std::int64_t rows) {
  std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(ranks));
  for (std::int64_t row = 0; row < rows; ++row)
    dest[0].push_back(static_cast<std::int32_t>(row * 7 % 3 % ranks));
  return std::make_shared<Routing>(dest);
}

TEST_P(BackendContract, GemmToPools) {
  for (const DType type : served().tiled_types) {
    GemmCase it = GemmCase::tiled(served());
    it.type = type;
    it.routing = some_routing(ranks, it.m);
    placement::Pools pools{{4, it.grid.positions()}, 0};
    std::int64_t base = 0;
    for (int group = 0; group < 2; ++group)
      for (int to = 0; to < ranks; ++to) {
        pools.bases.push_back(base);
        const auto rows_before = [&](std::int64_t position) {
          return routed_rows_before(*it.routing, it.grid, 0, to, position);
        };
        const std::int64_t until = rows_before(pools.ends[0]);
        base += group == 0 ? until : rows_before(pools.ends[1]) - until;
      }
    it.out.form = std::move(pools);
    it.out_rows = base;
    it.out_cols = it.grid.tile_cols;
    it.check(*world, served());
  }
}

TEST_P(BackendContract, GemmToRoutedRows) {
  for (const DType type : served().tiled_types) {
    GemmCase it = GemmCase::tiled(served());
    it.type = type;
    it.routing = some_routing(ranks, it.m);
    it.out.form = placement::Routed{0, 0, {1}};
    it.out_rows = it.m + 1;
    it.check(*world, served());
  }
}

/// A pass on one lane feeds a gated GEMM on another, whose tiles a third lane awaits before it copies them
/// out: five epochs.
TEST_P(BackendContract, GatesAndNotificationsOverEpochs) {
  const DType type = served().tiled_types.back();
  const std::int32_t tile_rows = served().tile_rows, tile_cols = served().tile_cols;
  const std::int64_t m = 4 * tile_rows, n = 2 * tile_cols, k = 9 * served().multiple;
  Maker make(ranks);
  make.plan.workers = world->machine().workers;
  const std::int32_t a = make.buffer(Role::a, m, k, type), b = make.buffer(Role::b, k, n, type),
                     out = make.buffer(Role::out, m, n, type);
  const std::int32_t staged = make.buffer(Role::internal, m, k, type, 2),
                     product = make.buffer(Role::internal, m, n, type);
  const TileGrid grid = make_grid(m, n, tile_rows, tile_cols);
  const std::vector<std::int64_t> halves{4, 8};
  const std::int32_t fed = make.counter({2, 2}), done = make.counter({4, 4});
  for (int rank = 0; rank < ranks; ++rank) {
    Elementwise feed =
        Maker::pass(make.all(a, rank), make.all(staged, rank), tile_rows, static_cast<std::int32_t>(k));
    feed.notify = {{fed, {rank}, {2, 4}}};
    make.step(rank, 0, feed);
    Gemm gemm;
    gemm.grid = grid;
    gemm.a = make.all(staged, rank);
    gemm.b = make.all(b, rank);
    gemm.a_rows = RowMap::identity(m);
    gemm.out = Maker::in_place(make.all(product, rank));
    gemm.gates = {{fed, halves, {2, 2}}};
    gemm.notify = {{done, {rank}, halves}};
    make.step(rank, 1, gemm);
    for (int half = 0; half < 2; ++half) {
      make.step(rank, 2, Await{{done, rank, half}, 4});
      make.step(
          rank, 2,
          Copy{make.rows(product, rank, half * m / 2, m / 2), make.rows(out, rank, half * m / 2, m / 2)});
    }
  }
  Bench bench(*world, make.plan);
  for (const int epochs : {5, 1, 2}) {
    bench.poison();
    bench.run(epochs);
    bench.expect(Role::out, [k](int rank, std::int64_t row, std::int64_t col) {
      double sum = 0;
      for (std::int64_t i = 0; i < k; ++i)
        sum += static_cast<double>(element(rank, Role::a, row, i)) * element(rank, Role::b, i, col);
      return sum;
    });
  }
}

}  // namespace shingle::contract
