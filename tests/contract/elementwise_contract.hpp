// The contract of Elementwise: reorder, sum, epilogue, norm, residual, parts of a step.
#pragma once

#include "gemm_contract.hpp"

namespace shingle::contract {

TEST_P(BackendContract, PassReordersSlots) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const TileGrid grid = make_grid(13, 10, 4, 3, {Raster::along_m, 2, 1, 1, 1});
    Maker make(ranks);
    const std::int32_t a = make.buffer(Role::a, grid.rows_before(grid.positions()), 3, type),
                       out = make.buffer(Role::out, 13, 10, type);
    for (int rank = 0; rank < ranks; ++rank) {
      make.step(rank, 0,
                Maker::pass(grid, Maker::slots(make.all(a, rank)), Maker::in_place(make.all(out, rank))));
    }
    Bench bench(*world, make.plan);
    bench.run();
    bench.expect(Role::out, [&](int rank, std::int64_t row, std::int64_t col) {
      const Tile tile{row / 4, col / 3};
      return element(rank, Role::a, grid.rows_before(grid.linear(tile)) + row % 4, col % 3);
    });
  }
}

/// Two sources with phantom rows, alike or of different types; a part of the positions only.
TEST_P(BackendContract, PassSumsScalesAndActivates) {
  struct Types {
    DType first, second, out;
    float scale = 1;
  };
  for (const Types& types :
       {Types{DType::f32, DType::bf16, DType::f32}, Types{DType::f32, DType::f32, DType::f32},
        Types{DType::f32, DType::f32, DType::bf16}, Types{DType::f16, DType::f16, DType::f16},
        Types{DType::bf16, DType::bf16, DType::f32, 0.5f}, Types{DType::bf16, DType::bf16, DType::bf16, -2}})
    for (const Activation activation :
         {Activation::none, Activation::relu, Activation::gelu, Activation::silu}) {
      SCOPED_TRACE(std::string(name(types.first)) + " and " + std::string(name(types.second)) + " to " +
                   std::string(name(types.out)) + ", " + std::string(name(activation)));
      Maker make(ranks);
      const std::int32_t a = make.buffer(Role::a, 12, 10, types.first),
                         b = make.buffer(Role::b, 9, 10, types.second);
      const std::int32_t bias = make.buffer(Role::bias, 1, 10, types.out),
                         out = make.buffer(Role::out, 9, 10, types.out);
      for (int rank = 0; rank < ranks; ++rank) {
        Elementwise pass;
        pass.grid = make_grid(9, 10, 3, 4);
        pass.first = 3;
        pass.count = 6;
        pass.from = {Maker::in_place(make.rows(a, rank, 3, 9)), Maker::in_place(make.all(b, rank))};
        pass.to = Maker::in_place(make.all(out, rank));
        std::get<placement::Matrix>(pass.to.form).rows.limit = 8;  // the last row is phantom
        pass.epilogue = {true, activation, types.scale};
        pass.bias = make.all(bias, rank);
        make.step(rank, 0, pass);
      }
      if (types.first != types.second && !served().mixed_sources) {
        expect_refused(*world, make.plan);
        continue;
      }
      Bench bench(*world, make.plan);
      bench.run();
      bench.expect(
          Role::out,
          [&](int rank, std::int64_t row, std::int64_t col) {
            if (row < 3 || row == 8) return std::nan("");
            const double sum =
                static_cast<double>(element(rank, Role::a, row + 3, col)) + element(rank, Role::b, row, col);
            return activated(activation, types.scale * sum + element(rank, Role::bias, 0, col));
          },
          types.out == DType::f32 ? 1e-6 : epsilon(types.out));
    }
}

/// RMSNorm of rows that lie in slots, with residual and second output; and swiglu of complete rows before it.
TEST_P(BackendContract, PassNormalizesCompleteRows) {
  for (const bool gated : {false, true})
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      const std::int64_t cols = gated ? 22 : 11;
      const TileGrid grid = make_grid(10, cols, 4, 3, {Raster::along_m, 1, 1, 1, 0});
      Maker make(ranks);
      const std::int32_t a = make.buffer(Role::a, grid.rows_before(grid.positions()), 3, type);
      const std::int32_t residual = make.buffer(Role::residual, 10, 11, type),
                         weight = make.buffer(Role::norm_weight, 1, 11, type);
      const std::int32_t out = make.buffer(Role::out, 10, 11, type),
                         sum = make.buffer(Role::sum, 10, 11, type);
      for (int rank = 0; rank < ranks; ++rank) {
        Elementwise pass =
            Maker::pass(grid, Maker::slots(make.all(a, rank)), Maker::in_place(make.all(out, rank)));
        pass.norm = {true, true, 0.25f};
        if (gated) pass.epilogue.activation = Activation::swiglu;
        pass.norm_weight = make.all(weight, rank);
        pass.residual = Maker::in_place(make.all(residual, rank));
        pass.sum = Maker::in_place(make.all(sum, rank));
        make.step(rank, 0, pass);
      }
      Bench bench(*world, make.plan);
      bench.run();
      const auto source = [&](int rank, std::int64_t row, std::int64_t col) {
        return static_cast<double>(
            element(rank, Role::a, grid.rows_before(grid.linear({row / 4, col / 3})) + row % 4, col % 3));
      };
      const auto x = [&](int rank, std::int64_t row, std::int64_t col) {
        const double value =
            gated ? activated(Activation::silu, source(rank, row, col)) * source(rank, row, 11 + col)
                  : source(rank, row, col);
        return value + element(rank, Role::residual, row, col);
      };
      bench.expect(Role::sum, x, 2 * epsilon(type));
      bench.expect(
          Role::out,
          [&](int rank, std::int64_t row, std::int64_t col) {
            double squares = 0;
            for (std::int64_t i = 0; i < 11; ++i) squares += x(rank, row, i) * x(rank, row, i);
            return x(rank, row, col) / std::sqrt(squares / 11 + 0.25) *
                   element(rank, Role::norm_weight, 0, col);
          },
          2 * epsilon(type) + 1e-6);
    }
}

/// What one rank sends in routed order arrives as the rows that go to each destination, compacted.
TEST_P(BackendContract, PassPicksRoutedRows) {
  std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(ranks));
  for (int row = 0; row < 21; ++row) dest[0].push_back(row * 5 % 7 % ranks);
  Maker make(ranks);
  const auto routing = std::make_shared<Routing>(dest);
  make.plan.problem().routing = routing;
  const int to = ranks - 1;
  const std::int64_t count = routing->count(0, to);
  const std::int32_t a = make.buffer(Role::a, 21, 6), out = make.buffer(Role::out, count, 6);
  for (int rank = 0; rank < ranks; ++rank) {
    Elementwise pass = Maker::pass(make.all(a, rank), {a, rank, 0, 21, 0, 6}, 4, 4);
    pass.to = {make.all(out, rank), placement::Routed{0, to, {0}}};
    make.step(rank, 0, pass);
  }
  Bench bench(*world, make.plan);
  bench.run();
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < 21; ++row)
    if (dest[0][static_cast<std::size_t>(row)] == to) rows.push_back(row);
  bench.expect(Role::out, [&](int rank, std::int64_t row, std::int64_t col) {
    return element(rank, Role::a, rows[static_cast<std::size_t>(row)], col);
  });
}

/// Stores into another rank's memory, who awaits them.
TEST_P(BackendContract, PassPushesToAnotherRank) {
  if (!remote()) GTEST_SKIP() << "no remote memory";
  Maker make(ranks);
  const std::int32_t a = make.buffer(Role::a, 10, 6), out = make.buffer(Role::out, 10, 6),
                     mail = make.buffer(Role::internal, 10, 6, DType::f32, 2);
  const std::int32_t arrived = make.counter({8}), free = make.counter({1});
  for (int rank = 0; rank < ranks; ++rank) {
    const int next = (rank + 1) % ranks;
    Elementwise push = Maker::pass(make.all(a, rank), make.all(mail, next));
    push.notify = {{arrived, {next}, {push.grid.positions()}}};
    make.step(rank, 0, Await{{free, rank, 0}, 1});
    make.step(rank, 0, push);
    make.step(rank, 1, Notify{{free, (rank + ranks - 1) % ranks, 0}, 1});
    make.step(rank, 1, Await{{arrived, rank, 0}, 8});
    make.step(rank, 1, Maker::pass(make.all(mail, rank), make.all(out, rank)));
  }
  Bench bench(*world, make.plan);
  bench.run(5);
  bench.expect(Role::out, [&](int rank, std::int64_t row, std::int64_t col) {
    return element((rank + ranks - 1) % ranks, Role::a, row, col);
  });
}

}  // namespace shingle::contract
