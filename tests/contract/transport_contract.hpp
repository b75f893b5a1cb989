// The contract of everything that moves between ranks: collectives, exchanges, copies and counters.
#pragma once

#include <algorithm>

#include "contract_support.hpp"

namespace shingle::contract {

/// Sums over ranks of small integers: exact.
inline double sum_over(const std::vector<std::int32_t>& ranks, std::int64_t row, std::int64_t col) {
  double sum = 0;
  for (const int rank : ranks) sum += element(rank, Role::a, row, col);
  return sum;
}

TEST_P(BackendContract, CollectivesInEveryType) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t part : {std::int64_t{3}, std::int64_t{0}, std::int64_t{70}}) {
      SCOPED_TRACE(std::string(name(type)) + " " + std::to_string(part) + " rows");
      Maker make(ranks);
      const std::int32_t a = make.buffer(Role::a, part * ranks, 5, type);
      const std::int32_t gathered = make.buffer(Role::out, 4 * part * ranks + part, 5, type);
      const auto& all = make.plan.communicators[0].ranks;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto to = [&](std::int64_t row, std::int64_t rows) {
          return make.rows(gathered, rank, row, rows);
        };
        const std::int64_t n = part * ranks;
        const std::vector<std::int64_t> even(static_cast<std::size_t>(ranks), part);
        make.step(rank, 0, Maker::collective(CollectiveKind::allreduce, make.all(a, rank), to(0, n)));
        make.step(rank, 0,
                  Maker::collective(CollectiveKind::allgather, make.rows(a, rank, 0, part), to(n, n)));
        Collective turn = Maker::collective(CollectiveKind::alltoall, make.all(a, rank), to(2 * n, n));
        turn.send_rows = turn.recv_rows = even;
        make.step(rank, 0, turn);
        make.step(rank, 0,
                  Maker::collective(CollectiveKind::reducescatter, make.all(a, rank), to(3 * n, part)));
        make.step(rank, 0, Copy{make.all(a, rank), to(3 * n + part, n)});
        make.step(rank, 0,
                  Maker::collective(CollectiveKind::allreduce, to(3 * n + part, n), to(3 * n + part, n)));
      }
      Bench bench(*world, make.plan);
      bench.run(3);
      bench.expect(Role::out, [&](int rank, std::int64_t row, std::int64_t col) {
        const std::int64_t n = part * ranks;
        if (row < n) return sum_over(all, row, col);
        if (row < 2 * n)
          return static_cast<double>(
              element(static_cast<int>((row - n) / part), Role::a, (row - n) % part, col));
        if (row < 3 * n)
          return static_cast<double>(element(static_cast<int>((row - 2 * n) / part), Role::a,
                                             rank * part + (row - 2 * n) % part, col));
        if (row < 3 * n + part) return sum_over(all, rank * part + row - 3 * n, col);
        return sum_over(all, row - 3 * n - part, col);
      });
    }
}

/// Rank r sends r + d rows to rank d, but nothing to rank 0: also empty slices and a rank that receives
/// nothing.
TEST_P(BackendContract, AllToAllWithUnevenRows) {
  const auto rows_of = [](int from, int to) { return to == 0 ? std::int64_t{0} : std::int64_t{from + to}; };
  Maker make(ranks);
  std::vector<std::int64_t> sent, received;
  for (int rank = 0; rank < ranks; ++rank) {
    sent.push_back(0);
    received.push_back(0);
    for (int peer = 0; peer < ranks; ++peer)
      sent.back() += rows_of(rank, peer), received.back() += rows_of(peer, rank);
  }
  const std::int32_t a = make.buffer(Role::a, sent, 4, DType::bf16),
                     out = make.buffer(Role::out, received, 4, DType::bf16);
  for (int rank = 0; rank < ranks; ++rank) {
    Collective step = Maker::collective(CollectiveKind::alltoall, make.all(a, rank), make.all(out, rank));
    for (int peer = 0; peer < ranks; ++peer) {
      step.send_rows.push_back(rows_of(rank, peer));
      step.recv_rows.push_back(rows_of(peer, rank));
    }
    make.step(rank, 0, step);
  }
  Bench bench(*world, make.plan);
  bench.run(2);
  bench.expect(Role::out, [&](int rank, std::int64_t row, std::int64_t col) {
    int from = 0;
    for (; row >= rows_of(from, rank); ++from) row -= rows_of(from, rank);
    std::int64_t first = 0;
    for (int to = 0; to < rank; ++to) first += rows_of(from, to);
    return element(from, Role::a, first + row, col);
  });
}

/// Collectives of two communicators on two lanes: all ranks, and the even ones.
TEST_P(BackendContract, CommunicatorsOfSomeRanks) {
  Maker make(ranks);
  std::vector<std::int32_t> even;
  for (int rank = 0; rank < ranks; rank += 2) even.push_back(rank);
  make.plan.communicators.push_back({"even", even});
  const std::int32_t a = make.buffer(Role::a, 6, 3), out = make.buffer(Role::out, 6, 3),
                     sum = make.buffer(Role::sum, 6, 3);
  for (int rank = 0; rank < ranks; ++rank)
    for (int i = 0; i < 3; ++i) {
      make.step(rank, 0,
                Maker::collective(CollectiveKind::allreduce, make.rows(a, rank, 2 * i, 2),
                                  make.rows(out, rank, 2 * i, 2)));
      if (rank % 2 == 0)
        make.step(rank, 1,
                  Maker::collective(CollectiveKind::allreduce, make.rows(a, rank, 2 * i, 2),
                                    make.rows(sum, rank, 2 * i, 2), 1));
    }
  Bench bench(*world, make.plan);
  bench.run(4);
  bench.expect(Role::out, [&](int, std::int64_t row, std::int64_t col) {
    return sum_over(make.plan.communicators[0].ranks, row, col);
  });
  bench.expect(Role::sum, [&](int rank, std::int64_t row, std::int64_t col) {
    return rank % 2 == 0 ? sum_over(even, row, col) : std::nan("");
  });
}

/// A, a row for each rank, summed over the ranks: all of it to `out`, each rank's row to `sum`.
inline Plan reductions(int ranks, std::int64_t cols, DType type) {
  Maker make(ranks);
  const std::int32_t a = make.buffer(Role::a, ranks, cols, type),
                     out = make.buffer(Role::out, ranks, cols, type),
                     sum = make.buffer(Role::sum, 1, cols, type);
  for (int rank = 0; rank < ranks; ++rank) {
    make.step(rank, 0, Maker::collective(CollectiveKind::allreduce, make.all(a, rank), make.all(out, rank)));
    make.step(rank, 0,
              Maker::collective(CollectiveKind::reducescatter, make.all(a, rank), make.all(sum, rank)));
  }
  return make.plan;
}

/// Values whose sum depends on the order: all ranks and all runs agree on the bits of ((r0 + r1) + r2) …,
/// rounded once.
TEST_P(BackendContract, ReductionsHaveOneOrder) {
  if (!served().rank_order) GTEST_SKIP() << "sums over ranks are rounded as they come";
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    constexpr std::int64_t cols = 257;
    Bench bench(*world, reductions(ranks, cols, type));
    const auto value = [&](int rank, std::int64_t row, std::int64_t col) {
      float x = std::sin(static_cast<float>(rank * 1000 + row * cols + col)) * (col % 3 == 0 ? 300.0f : 1.0f);
      std::byte stored[4];
      store_element(type, stored, 0, x);
      return load_element(type, stored, 0);
    };
    for (const int rank : world->local_ranks())
      bench.set(rank, Role::a, [&](std::int64_t row, std::int64_t col) { return value(rank, row, col); });
    const auto total = [&](std::int64_t row, std::int64_t col) {
      float x = value(0, row, col);
      for (int rank = 1; rank < ranks; ++rank) x += value(rank, row, col);
      std::byte stored[4];
      store_element(type, stored, 0, x);
      return static_cast<double>(load_element(type, stored, 0));
    };
    for (int repeat = 0; repeat < 3; ++repeat) {
      bench.poison();
      bench.run();
      bench.expect(Role::out, [&](int, std::int64_t row, std::int64_t col) { return total(row, col); });
      bench.expect(Role::sum, [&](int rank, std::int64_t, std::int64_t col) { return total(rank, col); });
    }
  }
}

/// Whatever their order, sums lose no more than a rounding for each rank. All terms are positive.
TEST_P(BackendContract, ReductionsAreAccurate) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    constexpr std::int64_t cols = 257;
    Bench bench(*world, reductions(ranks, cols, type));
    const auto value = [](int rank, std::int64_t row, std::int64_t col) {
      return 1.5f + std::sin(static_cast<float>(rank * 1000 + row * cols + col));
    };
    for (const int rank : world->local_ranks())
      bench.set(rank, Role::a, [&](std::int64_t row, std::int64_t col) { return value(rank, row, col); });
    const auto total = [&](std::int64_t row, std::int64_t col) {
      double x = 0;
      for (int rank = 0; rank < ranks; ++rank) x += value(rank, row, col);
      return x;
    };
    bench.run();
    const double bound = ranks * epsilon(type);
    bench.expect(Role::out, [&](int, std::int64_t row, std::int64_t col) { return total(row, col); }, bound);
    bench.expect(
        Role::sum, [&](int rank, std::int64_t, std::int64_t col) { return total(rank, col); }, bound);
  }
}

/// Two messages around a ring, which keep their order, and one to itself: of whole rows, and of slices that
/// are not.
TEST_P(BackendContract, ExchangeKeepsTheOrderOfMessages) {
  for (const bool whole : {true, false}) {
    const auto cols_from = [whole](std::int64_t col) { return whole ? std::int64_t{0} : col; };
    const std::int64_t cols = whole ? 6 : 3;
    Maker make(ranks);
    const std::int32_t a = make.buffer(Role::a, 8, 6), out = make.buffer(Role::out, 8, 6);
    for (int rank = 0; rank < ranks; ++rank) {
      const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
      const auto part = [&](std::int32_t buffer, std::int64_t row, std::int64_t col) {
        return Slice{buffer, rank, row, 2, cols_from(col), cols};
      };
      Exchange step;
      step.sends = {{next, part(a, 0, 0)}, {rank, part(a, 4, 3)}, {next, part(a, 2, 1)}};
      step.receives = {{before, part(out, 6, 3)}, {before, part(out, 0, 2)}, {rank, part(out, 3, 0)}};
      if (ranks == 1)
        step.receives = {step.receives[0], step.receives[2],
                         step.receives[1]};  // all from itself, as they were sent
      make.step(rank, 0, step);
    }
    if (!whole && !served().part_rows) {
      expect_refused(*world, make.plan);
      continue;
    }
    Bench bench(*world, make.plan);
    bench.run(5);
    bench.expect(Role::out, [&](int rank, std::int64_t row, std::int64_t col) {
      const int before = (rank + ranks - 1) % ranks;
      const auto within = [&](std::int64_t first) {
        return col >= cols_from(first) && col < cols_from(first) + cols;
      };
      const auto from = [&](int sender, std::int64_t r, std::int64_t first, std::int64_t to) {
        return static_cast<double>(element(sender, Role::a, r, col - cols_from(to) + cols_from(first)));
      };
      if (row >= 6 && within(3)) return from(before, row - 6, 0, 3);
      if (row < 2 && within(2)) return from(before, row + 2, 1, 2);
      if (row >= 3 && row < 5 && within(0)) return from(rank, row + 1, 3, 0);
      return std::nan("");
    });
  }
}

/// Parts of rows, two rows each.
inline Slice part_of(std::int32_t buffer, int rank, std::int64_t row, std::int64_t col) {
  return {buffer, rank, row, 2, col, 3};
}

TEST_P(BackendContract, CopyAndFill) {
  Maker make(ranks);
  const std::int32_t a = make.buffer(Role::a, 4, 6), out = make.buffer(Role::out, 4, 6);
  for (int rank = 0; rank < ranks; ++rank) {
    make.step(rank, 0, Copy{part_of(a, rank, 0, 0), part_of(out, rank, 2, 3)});
    make.step(rank, 0, Copy{part_of(a, rank, 2, 3), part_of(out, rank, 0, 0)});
    make.step(rank, 0, Fill{part_of(out, rank, 1, 1)});
  }
  Bench bench(*world, make.plan);
  bench.run(2);
  bench.expect(Role::out, [](int rank, std::int64_t row, std::int64_t col) {
    if (row >= 1 && row < 3 && col >= 1 && col < 4) return 0.0;
    if (row >= 2 && col >= 3) return static_cast<double>(element(rank, Role::a, row - 2, col - 3));
    if (row < 2 && col < 3) return static_cast<double>(element(rank, Role::a, row + 2, col + 3));
    return std::nan("");
  });
}

TEST_P(BackendContract, BroadcastReachesAllItsDestinations) {
  Maker make(ranks);
  const std::int32_t a = make.buffer(Role::a, 4, 6), out = make.buffer(Role::out, 6, 6);
  for (int rank = 0; rank < ranks; ++rank)
    make.step(rank, 0,
              Broadcast{part_of(a, rank, 1, 2), {part_of(out, rank, 2, 3), part_of(out, rank, 4, 0)}});
  if (!served().broadcast) {
    expect_refused(*world, make.plan);
    GTEST_SKIP() << "no broadcasts";
  }
  Bench bench(*world, make.plan);
  bench.run(2);
  bench.expect(Role::out, [](int rank, std::int64_t row, std::int64_t col) {
    if (row >= 2 && row < 4 && col >= 3) return static_cast<double>(element(rank, Role::a, row - 1, col - 1));
    if (row >= 4 && col < 3) return static_cast<double>(element(rank, Role::a, row - 3, col + 2));
    return std::nan("");
  });
}

TEST_P(BackendContract, SwapExchangesTwoSlices) {
  Maker make(ranks);
  const std::int32_t a = make.buffer(Role::a, 4, 6), out = make.buffer(Role::out, 4, 6);
  for (int rank = 0; rank < ranks; ++rank) {
    make.step(rank, 0, Copy{part_of(a, rank, 0, 0), part_of(out, rank, 0, 0)});
    make.step(rank, 0, Copy{part_of(a, rank, 2, 3), part_of(out, rank, 2, 3)});
    make.step(rank, 0, Swap{part_of(out, rank, 0, 0), part_of(out, rank, 2, 3)});
  }
  if (!served().swap) {
    expect_refused(*world, make.plan);
    GTEST_SKIP() << "no swaps";
  }
  Bench bench(*world, make.plan);
  bench.run(2);
  bench.expect(Role::out, [](int rank, std::int64_t row, std::int64_t col) {
    if (row < 2 && col < 3) return static_cast<double>(element(rank, Role::a, row + 2, col + 3));
    if (row >= 2 && col >= 3) return static_cast<double>(element(rank, Role::a, row - 2, col - 3));
    return std::nan("");
  });
}

/// A token runs around all ranks: every rank sets its neighbour's counter; the token is a row that each
/// copies on.
TEST_P(BackendContract, CountersAcrossRanksOverEpochs) {
  if (!remote()) GTEST_SKIP() << "no remote memory";
  Maker make(ranks);
  const std::int32_t a = make.buffer(Role::a, 1, 4), out = make.buffer(Role::out, 1, 4),
                     token = make.buffer(Role::internal, 1, 4);
  const std::int32_t passed = make.counter({1}, CounterKind::set), tail = make.counter({3}, CounterKind::set);
  for (int rank = 0; rank < ranks; ++rank) {
    const int next = (rank + 1) % ranks;
    if (rank == 0) make.step(rank, 0, Copy{make.all(a, 0), make.all(token, 0)});
    if (rank > 0) make.step(rank, 0, Await{{passed, rank, 0}, 1});
    make.step(rank, 0, Copy{make.all(token, rank), make.all(out, rank)});
    if (next != 0) make.step(rank, 0, Copy{make.all(token, rank), make.all(token, next)});
    make.step(rank, 0, Notify{{passed, next, 0}, 1});
    if (rank == 0) make.step(rank, 0, Await{{passed, 0, 0}, 1});  // so that no token overtakes another
    make.step(rank, 1, Notify{{tail, rank, 0}, 1});
    make.step(rank, 1, Notify{{tail, rank, 0}, 3});
    make.step(rank, 2, Await{{tail, rank, 0}, 2});
  }
  Bench bench(*world, make.plan);
  bench.run(7);
  bench.run(2);
  bench.expect(Role::out,
               [](int, std::int64_t row, std::int64_t col) { return element(0, Role::a, row, col); });
}

}  // namespace shingle::contract
