// One rank's part of a reduce-scatter around the ring (docs/mechanisms/ring.md).
#include "ring.hpp"

namespace shingle::planner {

Reducer::Reducer(RingBuilder& build, const Shards& shards, const Sums& sums, int rank,
                 const std::vector<std::int64_t>& rows)
    : build_(build), shards_(shards), sums_(sums), rank_(rank) {
  for (const std::int64_t row : rows) slots_.push_back({.row = row});
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
    await(sums_.sent, slot.sent[half]);
    multiply(shard, s, partial);
    std::vector<Placement> terms;
    if (i > 0) {
      await(sums_.arrived, slot.received);
      terms.push_back(Builder::in_place(build_.rows(sums_.received, rank_, slot.row, rows)));
    }
    terms.push_back(Builder::in_place(partial));
    if (last) {
      store(shards_.begin(s), rows, std::move(terms));
      if (sums_.finished >= 0) build_.notify(rank_, compute_lane, sums_.finished, s);
    } else if (i > 0) {
      add(partial, std::move(terms));
    }
    const bool again = !last || s + static_cast<std::int64_t>(slots_.size()) < shards_.slices();
    if (i > 0 && again && sums_.freed >= 0)
      build_.notify_peer(rank_, compute_lane, sums_.freed, shards_.behind(rank_, 1), slot.received);
    ++slot.turn;
  }
  if (last) return;
  if (rows > 0) {
    build_.notify(rank_, compute_lane, sums_.summed, passes_);
    slot.sent[half] = passes_;
  }
  if (incoming > 0) slot.received = passes_;
  if (!by_engines(build_))
    exchange(slot, partial, incoming);
  else if (rows > 0)
    copy_on(slot, s, partial);
  ++passes_;
}

/// Exchanges run in order, so a wait for one covers all earlier ones.
void Reducer::await(std::int32_t counter, std::int64_t pass) {
  if (pass < 0 || (!by_engines(build_) && pass <= known_)) return;
  build_.await(rank_, compute_lane, counter, pass);
  known_ = pass;
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

/// Grid of a pass that needs no complete rows: small tiles, so that a slice has enough of them for a GPU's
/// workers.
TileGrid Reducer::blocks(std::int64_t rows) const {
  constexpr std::int64_t most_cols = 512;
  const std::int64_t cols = build_.product_cols();
  return make_grid(rows, cols, 32, static_cast<std::int32_t>(smaller(cols, most_cols)));
}

void Reducer::add(const Slice& partial, std::vector<Placement> terms) {
  Elementwise sum;
  sum.grid = blocks(partial.rows);
  sum.from = std::move(terms);
  sum.to = Builder::in_place(partial);
  sum.resources = build_.beside_communication();
  build_.step(rank_, compute_lane, std::move(sum));
}

/// The sum is complete here, so epilogue and norm are in the same pass, in fp32.
void Reducer::store(std::int64_t first, std::int64_t rows, std::vector<Placement> terms) {
  if (build_.problem().op == Op::gemm_allreduce) first += rank_ * build_.problem().shard_rows();
  const TileGrid grid =
      build_.row_wise_finishing() ? build_.row_blocks(rows, build_.product_cols()) : blocks(rows);
  build_.step(rank_, compute_lane,
              build_.finishing(rank_, grid, std::move(terms),
                               Builder::in_place(build_.rows(build_.out, rank_, first, rows))));
}

void Reducer::exchange(const Slot& slot, const Slice& partial, std::int64_t incoming) {
  std::vector<Exchange::Message> sends, receives;
  if (partial.rows > 0) {
    build_.await(rank_, communicate_lane, sums_.summed, passes_);
    sends.push_back({shards_.behind(rank_, -1), partial});
  }
  if (incoming > 0)
    receives.push_back({shards_.behind(rank_, 1), build_.rows(sums_.received, rank_, slot.row, incoming)});
  if (sends.empty() && receives.empty()) return;
  build_.exchange(rank_, std::move(sends), std::move(receives));
  build_.notify(rank_, communicate_lane, sums_.arrived, passes_);
}

void Reducer::copy_on(Slot& slot, std::int64_t s, const Slice& partial) {
  const std::int32_t lane = engine_of(build_, s);
  const int next = shards_.behind(rank_, -1);
  build_.ring_doorbell(rank_, lane);
  build_.await(rank_, lane, sums_.summed, passes_);
  if (slot.copied >= 0) build_.await(rank_, lane, sums_.freed, slot.copied);
  build_.step(rank_, lane, Copy{partial, build_.rows(sums_.received, next, slot.row, partial.rows)});
  build_.notify_peer(rank_, lane, sums_.arrived, next, passes_);
  build_.notify(rank_, lane, sums_.sent, passes_);
  slot.copied = passes_;
}

Sums make_sums(RingBuilder& build, const Shards& shards, std::int64_t rows) {
  const std::int64_t passes = (build.world() - 1) * shards.slices();
  Sums sums{.partial = build.buffer("partial", 2 * rows, build.product_cols()), .half = rows};
  if (build.problem().traits().attends)
    sums.attended = build.buffer("attended", build.problem().m, build.problem().k);
  if (passes == 0) return sums;
  sums.received = build.buffer("received", rows, build.product_cols());
  sums.summed = build.counter("summed", passes);
  if (!by_engines(build)) {
    sums.arrived = sums.sent = build.counter("exchanged", passes);
  } else {
    sums.arrived = build.counter("delivered", passes, CounterKind::set);
    sums.sent = build.counter("sent", passes, CounterKind::set);
    sums.freed = build.counter("freed", passes);
  }
  return sums;
}

}  // namespace shingle::planner
