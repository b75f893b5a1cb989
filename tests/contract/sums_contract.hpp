// The contract of a Gemm whose own tiles are sums: the product in fp32, then other ranks' parts in their
// order, then the epilogue, rounded once.
#pragma once

#include "gemm_contract.hpp"

namespace shingle::contract {

/// Every rank owns a shard of rows, two tiles high and ragged, and multiplies its own last. All other tiles
/// go to their owner, in the problem's type.
struct SumsCase {
  DType type = DType::bf16;
  int ranks = 2;
  std::int64_t shard = 0, m = 0, n = 0, k = 0;
  std::int32_t tile_rows = 0, tile_cols = 0;
  Epilogue epilogue;
  /// Who has a sum: its owner; every rank; or every rank by way of memory that peers can reach.
  enum class For : std::uint8_t { owner, all, all_by_copies };
  For whom = For::owner;

  SumsCase(const Served& served, DType of, int world) : type(of), ranks(world) {
    tile_rows = served.tile_rows, tile_cols = served.tile_cols;
    shard = tile_rows * 3 / 2;
    m = ranks * shard - 1;
    n = tile_cols * 11 / 3 / served.multiple * served.multiple;
    k = 19 * served.multiple;
  }

  std::int64_t rows_of(int rank) const { return smaller(shard, m - rank * shard); }

  /// Of A: integers of six bits, so that products have more bits than a part keeps. Those of rank 1 are huge,
  /// and rank 2 takes its product away again: what a sum loses in between depends on the order.
  float a(int rank, std::int64_t row, std::int64_t col) const {
    const int of = rank == 2 ? 1 : rank;
    const float value = element(of, Role::a, row, col) + 25 * element(of, Role::residual, col, row);
    const bool half = type == DType::f16;
    return value * (half ? 0x1p-11f : 1.0f) *
           (of != 1 ? 1.0f
            : half  ? 0x1p14f
                    : 0x1p18f) *
           (rank == 2 ? -1.0f : 1.0f);
  }
  float b(int rank, std::int64_t row, std::int64_t col) const {
    return element(rank == 2 ? 1 : rank, Role::b, row, col);
  }
  /// A rank's product, exact in fp32.
  std::vector<float> product(int rank) const {
    std::vector<float> factors, sums(static_cast<std::size_t>(m * n));
    for (std::int64_t i = 0; i < k; ++i)
      for (std::int64_t col = 0; col < n; ++col) factors.push_back(b(rank, i, col));
    for (std::int64_t row = 0; row < m; ++row)
      for (std::int64_t i = 0; i < k; ++i) {
        const float x = a(rank, row, i);
        for (std::int64_t col = 0; col < n; ++col)
          sums[static_cast<std::size_t>(row * n + col)] += x * factors[static_cast<std::size_t>(i * n + col)];
      }
    return sums;
  }
  bool for_all() const { return whom != For::owner; }
  float rounded(float x) const {
    float bits = 0;
    store_element(type, &bits, 0, x);
    return load_element(type, &bits, 0);
  }
  float result(const std::vector<std::vector<float>>& products, std::int64_t row, std::int64_t col) const {
    const int owner = static_cast<int>(row / shard);
    const auto of = [&](int rank) {
      return products[static_cast<std::size_t>(rank)][static_cast<std::size_t>(row * n + col)];
    };
    float x = of(owner);
    for (int rank = 0; rank < ranks; ++rank)
      if (rank != owner) x += rounded(of(rank));
    if (epilogue.bias) x += element(owner, Role::bias, 0, col);
    return rounded(epilogue.activation == Activation::relu ? std::max(x, 0.0f) : x);
  }

  Plan plan(const World& world) const {
    Maker make(ranks);
    make.plan.workers = world.machine().workers;
    std::vector<std::int64_t> rows;
    for (int rank = 0; rank < ranks; ++rank) rows.push_back(for_all() ? m : rows_of(rank));
    const std::int32_t a = make.buffer(Role::a, m, k, type), b = make.buffer(Role::b, k, n, type),
                       bias = make.buffer(Role::bias, 1, n, type),
                       out = make.buffer(Role::out, rows, n, type),
                       staging = make.buffer(Role::internal, ranks * shard, n, type),
                       received = make.buffer(Role::internal, m, n, type);
    const std::int64_t pitch = 2 * tile_rows;
    TileGrid grid = make_grid(ranks * pitch, n, tile_rows, tile_cols);
    const auto across = static_cast<std::int32_t>(grid.tiles_n());
    const auto tiles = static_cast<std::uint32_t>(2 * across), others = static_cast<std::uint32_t>(ranks - 1);
    const std::int32_t stored = make.counter({others * tiles}),
                       summed =
                           make.counter(std::vector<std::uint32_t>(static_cast<std::size_t>(ranks), tiles));
    const RowMap map{ranks, shard, shard, shard, 0, m, pitch};
    std::vector<std::int32_t> everyone;
    for (int rank = 0; rank < ranks; ++rank) everyone.push_back(rank);
    for (int rank = 0; rank < ranks; ++rank) {
      Gemm gemm;
      gemm.grid = grid;
      gemm.grid.loop_count = 0;
      for (const Loop& loop : {Loop{Axis::m, ranks, (rank + 1) % ranks}, {Axis::m, 2}, {Axis::n, across}})
        gemm.grid.loops[gemm.grid.loop_count++] = loop;
      gemm.a = make.all(a, rank);
      gemm.b = make.all(b, rank);
      gemm.a_rows = map;
      gemm.epilogue = epilogue;
      if (epilogue.bias) gemm.bias = make.all(bias, rank);
      gemm.out = {make.rows(staging, rank, rank * shard, shard), placement::Owners{map}};
      RowMap own = map;  // virtual rows → rows of the own shard
      own.stride = 0, own.limit = rows_of(rank);
      for (int from = 0; from < ranks; ++from)
        if (from != rank)
          gemm.sums.from.push_back(
              {make.rows(staging, rank, from * shard, rows_of(rank)), placement::Matrix{own}});
      const std::int64_t first_row = for_all() ? rank * shard : 0;
      gemm.sums.to = {{make.rows(out, rank, first_row, rows_of(rank)),
                       placement::Matrix{own, whom == For::all ? everyone : std::vector<std::int32_t>{}}}};
      if (whom == For::all_by_copies) {
        std::vector<std::int32_t> peers = everyone;
        std::erase(peers, rank);
        gemm.sums.to.push_back(
            {make.rows(received, rank, first_row, rows_of(rank)), placement::Matrix{own, peers}});
      }
      TileGate parts{stored, {}, {}, {}, true};
      TileNotify store{stored, {}, {}}, sum{summed, everyone, {}};
      for (int place = 1; place <= ranks; ++place) {
        const std::int32_t owner = (rank + place) % ranks;
        const bool mine = owner == rank;
        parts.ends.push_back(place * tiles);
        parts.targets.push_back(mine ? others * tiles : 0);
        parts.entries.push_back(0);
        store.owners.push_back(owner);
        store.entries.push_back(mine ? -1 : 0);
        sum.entries.push_back(mine ? rank : -1);
      }
      store.ends = sum.ends = parts.ends;
      gemm.gates = {parts};
      gemm.notify = {store, sum};
      make.step(rank, 0, gemm);
      for (int from = 0; from < ranks; ++from) make.step(rank, 0, Await{{summed, rank, from}, tiles});
      if (whom != For::all_by_copies) continue;
      RowMap rest = map;  // rows of the other ranks
      rest.world = ranks - 1, rest.without = rank;
      Elementwise copy;
      copy.grid = make_grid(rest.rows(), n, tile_rows, tile_cols);
      copy.from = {{make.all(received, rank), placement::Matrix{rest}}};
      copy.to = {make.all(out, rank), placement::Matrix{rest}};
      make.step(rank, 0, copy);
    }
    return make.plan;
  }

  void check(World& world) const {
    Bench bench(world, plan(world));
    for (const int rank : world.local_ranks()) {
      bench.set(rank, Role::a, [&](std::int64_t row, std::int64_t col) { return a(rank, row, col); });
      bench.set(rank, Role::b, [&](std::int64_t row, std::int64_t col) { return b(rank, row, col); });
    }
    bench.run();
    std::vector<std::vector<float>> products;
    for (int rank = 0; rank < ranks; ++rank) products.push_back(product(rank));
    bench.expect(Role::out, [&](int rank, std::int64_t row, std::int64_t col) {
      return result(products, row + (for_all() ? 0 : rank * shard), col);
    });
  }
};

TEST_P(BackendContract, GemmAddsPartsOfOtherRanksToItsOwnTiles) {
  if (ranks == 1 || !remote()) GTEST_SKIP() << "no parts of other ranks";
  for (const DType type : served().tiled_types)
    for (const auto& [whom, text] : {std::pair{SumsCase::For::owner, " for the owner"},
                                     {SumsCase::For::all, " for all"},
                                     {SumsCase::For::all_by_copies, " for all by copies"}})
      for (const Epilogue epilogue : {Epilogue{}, Epilogue{true, Activation::relu}}) {
        SCOPED_TRACE(std::string(name(type)) + text + (epilogue.bias ? " bias" : ""));
        SumsCase it(served(), type, ranks);
        it.whom = whom;
        it.epilogue = epilogue;
        it.check(*world);
      }
}

}  // namespace shingle::contract
