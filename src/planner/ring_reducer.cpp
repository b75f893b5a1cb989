// A rank's side of a reduce-scatter around the ring (docs/ring.md).
#include "ring.hpp"

namespace shingle::planner {

Reducer::Reducer(Builder& build, const Shards& shards, const Sums& sums, int rank,
                 const std::vector<std::int64_t>& rows)
    : build_(build), shards_(shards), sums_(sums), rank_(rank) {
  for (const std::int64_t row : rows) slots_.push_back({row, 0, {-1, -1}, -1});
}

void Reducer::step(std::int64_t i, std::int64_t s) {
  Slot& slot = slots_[static_cast<std::size_t>(s) % slots_.size()];
  const int shard = shards_.behind(rank_, i + 1), next = shards_.behind(rank_, i + 2);
  const bool last = i + 1 == build_.world();
  const std::int64_t rows = shards_.rows(shard, s), incoming = last ? 0 : shards_.rows(next, s);
  const std::size_t half = slot.turn % 2;
  const Slice partial =
      build_.rows(sums_.partial, rank_, static_cast<std::int64_t>(half) * sums_.half + slot.row, rows);
  if (rows > 0) {
    await(slot.sent[half]);
    multiply(shard, s, partial);
    std::vector<Placement> terms;
    if (i > 0) {
      await(slot.received);
      terms.push_back(Builder::in_place(build_.rows(sums_.received, rank_, slot.row, rows)));
    }
    terms.push_back(Builder::in_place(partial));
    if (last) {
      store(shards_.begin(s), rows, std::move(terms));
      if (sums_.finished >= 0) build_.notify(rank_, compute_lane, sums_.finished, s);
    } else if (i > 0) {
      add(partial, std::move(terms));
    }
    ++slot.turn;
  }
  if (rows + incoming > 0 && !last) pass_on(slot, half, partial, incoming);
}

/// Exchanges are made in turn: who knows of one knows of all before.
void Reducer::await(std::int64_t exchange) {
  if (exchange <= known_) return;
  build_.await(rank_, compute_lane, sums_.exchanged, exchange);
  known_ = exchange;
}

void Reducer::multiply(int shard, std::int64_t s, const Slice& partial) {
  for (const Run& run : shards_.runs(shard, s)) {
    const Slice to = build_.rows(partial.buffer, rank_, partial.row + run.first, run.count);
    Gemm gemm = build_.gemm(rank_, build_.one_tile(run.count), run.rows, Builder::in_place(to));
    if (sums_.attended >= 0) {
      gemm.a = build_.all(sums_.attended, rank_);
      if (!build_.params().row_parallel) attend(run.rows.base, run.count);
    }
    if (before_) before_(shard, s, gemm);
    build_.step(rank_, compute_lane, std::move(gemm));
  }
}

void Reducer::attend(std::int64_t first, std::int64_t rows) {
  build_.step(rank_, compute_lane,
              build_.attend(rank_, first, rows, build_.rows(sums_.attended, rank_, first, rows)));
}

void Reducer::add(const Slice& partial, std::vector<Placement> terms) {
  Elementwise sum;
  sum.grid = build_.row_blocks(partial.rows, partial.cols);
  sum.from = std::move(terms);
  sum.to = Builder::in_place(partial);
  sum.resources = build_.beside_communication();
  build_.step(rank_, compute_lane, std::move(sum));
}

/// The sum is complete: epilogue and norm belong to the same pass, in fp32.
void Reducer::store(std::int64_t first, std::int64_t rows, std::vector<Placement> terms) {
  if (build_.problem().op == Op::gemm_allreduce) first += rank_ * build_.problem().shard_rows();
  Elementwise pass = build_.finishing(rank_, build_.row_blocks(rows, build_.product_cols()), terms.front(),
                                      Builder::in_place(build_.rows(build_.out, rank_, first, rows)));
  pass.from = std::move(terms);
  build_.step(rank_, compute_lane, std::move(pass));
}

void Reducer::pass_on(Slot& slot, std::size_t half, const Slice& partial, std::int64_t incoming) {
  std::vector<Exchange::Message> sends, receives;
  if (partial.rows > 0) {
    build_.notify(rank_, compute_lane, sums_.summed, exchanges_);
    build_.await(rank_, communicate_lane, sums_.summed, exchanges_);
    sends.push_back({shards_.behind(rank_, -1), partial});
    slot.sent[half] = exchanges_;
  }
  if (incoming > 0) {
    receives.push_back({shards_.behind(rank_, 1), build_.rows(sums_.received, rank_, slot.row, incoming)});
    slot.received = exchanges_;
  }
  build_.exchange(rank_, std::move(sends), std::move(receives));
  build_.notify(rank_, communicate_lane, sums_.exchanged, exchanges_++);
}

Sums make_sums(Builder& build, const Shards& shards, std::int64_t rows) {
  const std::int64_t exchanges = (build.world() - 1) * shards.slices();
  Sums sums{build.buffer("partial", 2 * rows, build.product_cols()), -1, rows, -1, -1, -1, -1};
  if (build.problem().attends())
    sums.attended = build.buffer("attended", build.problem().m, build.problem().k);
  if (exchanges == 0) return sums;
  sums.received = build.buffer("received", rows, build.product_cols());
  sums.summed = build.counter("summed", exchanges);
  sums.exchanged = build.counter("exchanged", exchanges);
  return sums;
}

}  // namespace shingle::planner
