// ring: Flash-Overlap (docs/ring.md). No collective but messages to the next rank: each carries one slice of
// one shard while the slice behind it is computed, and the order in which a rank computes the shards leaves
// no message to wait for at the end (reduce-scatter: its own last) or at the beginning (all-gather: its own
// first).
#include <fmt/format.h>

#include <algorithm>

#include "builder.hpp"
#include "ulysses.hpp"

namespace shingle {
namespace {

using planner::Builder;
using planner::chunk_begin;
using planner::communicate_lane;
using planner::compute_lane;

/// Eight slices in all: where messages take longer than computation, that of one slice is exposed; but two
/// of a rank at least, so that a message may come late without anyone waiting for it. In an allreduce the
/// all-gather of one slice of every rank is exposed, however many ranks there are.
std::int32_t default_slices(const Problem& problem) {
  if (problem.op == Op::gemm_allreduce) return 8;
  if (problem.exchanges_heads()) return planner::default_ulysses_slices(problem);
  return std::max(8 / problem.world, 2);
}

/// Rows of a shard that one row map describes.
struct Run {
  RowMap rows;             ///< row of the run → row of the global matrix
  std::int64_t first = 0;  ///< from the beginning of the slice on
  std::int64_t count = 0;
};

/// The shards of the rows, and where each is cut: slice s is rows [begin(s), begin(s + 1)) of every shard,
/// of which the last shards may have fewer, or none.
class Shards {
 public:
  explicit Shards(const Builder& build) : p_(build.problem()) {
    const std::int64_t unit = dealt() ? p_.row_block : 1;
    const std::int64_t count = smaller(build.params().slices, ceil_div(p_.shard_rows(), unit));
    for (std::int64_t s = 0; s <= count; ++s) begins_.push_back(chunk_begin(p_.shard_rows(), count, s, unit));
  }

  std::int64_t slices() const { return static_cast<std::int64_t>(begins_.size()) - 1; }
  std::int64_t begin(std::int64_t s) const { return begins_[static_cast<std::size_t>(s)]; }
  std::int64_t longest() const {
    std::int64_t rows = 0;
    for (std::int64_t s = 0; s < slices(); ++s) rows = larger(rows, begin(s + 1) - begin(s));
    return rows;
  }
  std::int64_t rows(int shard, std::int64_t s) const {
    return larger(smaller(begin(s + 1), shard_rows(shard)) - begin(s), 0);
  }
  /// The shard `behind` places behind a rank on the ring.
  int behind(int rank, std::int64_t places) const {
    return static_cast<int>((rank + p_.world - places % p_.world) % p_.world);
  }

  /// The rows of a slice of a shard: one run, or two where the last block of a dealt shard is short.
  std::vector<Run> runs(int shard, std::int64_t s) const {
    const std::int64_t first = begin(s), count = rows(shard, s), block = p_.row_block;
    if (!dealt()) return {{RowMap::identity(count, shard * p_.shard_rows() + first), 0, count}};
    const std::int64_t whole = p_.shard_rows() / block * block;
    const std::int64_t in_whole = larger(smaller(count, whole - first), 0);
    std::vector<Run> runs;
    if (in_whole > 0)
      runs.push_back({{static_cast<std::int32_t>(ceil_div(in_whole, block)), block, block, p_.world * block,
                       p_.world * first + shard * block, p_.m},
                      0,
                      in_whole});
    if (count > in_whole) {
      const std::int64_t base = p_.world * whole + shard * (p_.shard_rows() - whole);
      runs.push_back({RowMap::identity(count - in_whole, base), in_whole, count - in_whole});
    }
    return runs;
  }

 private:
  bool dealt() const { return p_.row_order == RowOrder::block_cyclic; }
  std::int64_t shard_rows(int shard) const {
    if (p_.scatters()) return p_.out_rows(shard);
    if (p_.op == Op::allgather_gemm) return p_.a_rows(shard);
    return larger(smaller(p_.m - shard * p_.shard_rows(), p_.shard_rows()), 0);
  }

  const Problem& p_;
  std::vector<std::int64_t> begins_;
};

/// What all ranks of a plan that reduces have alike.
struct Sums {
  std::int32_t partial;    ///< buffer, in two halves: while one is on the wire, the other is computed
  std::int32_t received;   ///< buffer for the sums of the ranks before
  std::int64_t half;       ///< rows of half of `partial`
  std::int32_t summed;     ///< counter: the i-th exchange may go
  std::int32_t exchanged;  ///< counter: the i-th exchange has come
  std::int32_t finished;   ///< counter: the own shard's slice is in the output; -1: nobody waits for that
  std::int32_t attended;   ///< buffer: what attention makes of the queries; -1: A is multiplied as it is
};

/// One rank's side of a reduce-scatter. The sum of a slice starts at the rank after its owner and goes around
/// the ring to the owner; every rank adds its own partial product to it.
class Reducer {
 public:
  /// `rows`: where in half of `partial`, and in `received`, the slices that are under way together lie.
  Reducer(Builder& build, const Shards& shards, const Sums& sums, int rank,
          const std::vector<std::int64_t>& rows)
      : build_(build), shards_(shards), sums_(sums), rank_(rank) {
    for (const std::int64_t row : rows) slots_.push_back({row, 0, {-1, -1}, -1});
  }

  /// The attention of all queries at once, before any product (row-parallel, Algorithm 3).
  void attend_all() { attend(0, build_.problem().m); }

  /// Step i of the ring for slice s: the shard i + 1 places behind the rank, and so its own at last.
  void step(std::int64_t i, std::int64_t s) {
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

 private:
  /// Where slices lie, and the exchanges that have read or written them last (-1: none).
  struct Slot {
    std::int64_t row;
    std::size_t turn;
    std::int64_t sent[2];
    std::int64_t received;
  };

  /// Exchanges are made in turn: who knows of one knows of all before.
  void await(std::int64_t exchange) {
    if (exchange <= known_) return;
    build_.await(rank_, compute_lane, sums_.exchanged, exchange);
    known_ = exchange;
  }

  void multiply(int shard, std::int64_t s, const Slice& partial) {
    for (const Run& run : shards_.runs(shard, s)) {
      const Slice to = build_.rows(partial.buffer, rank_, partial.row + run.first, run.count);
      Gemm gemm = build_.gemm(rank_, build_.one_tile(run.count), run.rows, Builder::in_place(to));
      if (sums_.attended >= 0) {
        gemm.a = build_.all(sums_.attended, rank_);
        if (!build_.params().row_parallel) attend(run.rows.base, run.count);
      }
      build_.step(rank_, compute_lane, std::move(gemm));
    }
  }

  void attend(std::int64_t first, std::int64_t rows) {
    build_.step(rank_, compute_lane,
                build_.attend(rank_, first, rows, build_.rows(sums_.attended, rank_, first, rows)));
  }

  void add(const Slice& partial, std::vector<Placement> terms) {
    Elementwise sum;
    sum.grid = build_.row_blocks(partial.rows, partial.cols);
    sum.from = std::move(terms);
    sum.to = Builder::in_place(partial);
    sum.resources = build_.beside_communication();
    build_.step(rank_, compute_lane, std::move(sum));
  }

  /// The sum is complete: epilogue and norm belong to the same pass, in fp32.
  void store(std::int64_t first, std::int64_t rows, std::vector<Placement> terms) {
    if (build_.problem().op == Op::gemm_allreduce) first += rank_ * build_.problem().shard_rows();
    Elementwise pass = build_.finishing(rank_, build_.row_blocks(rows, build_.product_cols()), terms.front(),
                                        Builder::in_place(build_.rows(build_.out, rank_, first, rows)));
    pass.from = std::move(terms);
    build_.step(rank_, compute_lane, std::move(pass));
  }

  void pass_on(Slot& slot, std::size_t half, const Slice& partial, std::int64_t incoming) {
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

  Builder& build_;
  const Shards& shards_;
  const Sums& sums_;
  int rank_;
  std::vector<Slot> slots_;
  std::int64_t known_ = -1;     ///< the last exchange that the compute lane has awaited
  std::int64_t exchanges_ = 0;  ///< made so far
};

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

/// All slices of a shard, then the next shard: a message has the time of all slices to arrive.
void plan_reducescatter(Builder& build, const Shards& shards) {
  const Sums sums = make_sums(build, shards, build.problem().shard_rows());
  std::vector<std::int64_t> rows;
  for (std::int64_t s = 0; s < shards.slices(); ++s) rows.push_back(shards.begin(s));
  for (int r = 0; r < build.world(); ++r) {
    Reducer reducer(build, shards, sums, r, rows);
    if (build.params().row_parallel) reducer.attend_all();
    for (std::int64_t i = 0; i < build.world(); ++i)
      for (std::int64_t s = 0; s < shards.slices(); ++s) reducer.step(i, s);
  }
}

/// Step i of the all-gather of slice s of the output: passes on the shard i places behind.
void gather(Builder& build, const Shards& shards, int rank, std::int32_t finished, std::int64_t i,
            std::int64_t s) {
  const auto messages = [&](int shard, int peer) {
    std::vector<Exchange::Message> list;
    const std::int64_t rows = shards.rows(shard, s);
    const std::int64_t first = shard * build.problem().shard_rows() + shards.begin(s);
    if (rows > 0) list.push_back({peer, build.rows(build.out, rank, first, rows)});
    if (rows > 0 && build.sum >= 0) list.push_back({peer, build.rows(build.sum, rank, first, rows)});
    return list;
  };
  auto sends = messages(shards.behind(rank, i), shards.behind(rank, -1));
  auto receives = messages(shards.behind(rank, i + 1), shards.behind(rank, 1));
  if (sends.empty() && receives.empty()) return;
  if (i == 0 && !sends.empty()) build.await(rank, communicate_lane, finished, s);
  build.exchange(rank, std::move(sends), std::move(receives));
}

/// Slice by slice, so that the all-gather of a slice runs beside the reduce-scatter of the next one.
void plan_allreduce(Builder& build, const Shards& shards) {
  Sums sums = make_sums(build, shards, shards.longest());
  const std::int64_t steps = build.world() - 1;
  if (steps > 0) sums.finished = build.counter("finished", shards.slices());
  for (int r = 0; r < build.world(); ++r) {
    Reducer reducer(build, shards, sums, r, {0});
    for (std::int64_t s = 0; s <= shards.slices(); ++s)
      for (std::int64_t i = 0; i <= steps; ++i) {
        if (s > 0 && i < steps) gather(build, shards, r, sums.finished, i, s - 1);
        if (s < shards.slices()) reducer.step(i, s);
      }
  }
}

void plan_allgather(Builder& build, const Shards& shards) {
  const Problem& p = build.problem();
  const std::int64_t shard = p.shard_rows(), slices = shards.slices();
  const bool finishing = p.norm.enabled;
  const std::int32_t product = finishing ? build.buffer("product", p.m, build.product_cols()) : build.out;
  // In order of arrival, without the own shard, which is where it is.
  const std::int32_t gathered = p.world > 1 ? build.buffer("gathered", (p.world - 1) * shard, p.k) : -1;
  const std::int32_t arrived = p.world > 1 ? build.counter("arrived", (p.world - 1) * slices) : -1;
  for (int r = 0; r < p.world; ++r) {
    // The slice of the shard i places behind, in this rank's memory.
    const auto held = [&](std::int64_t i, std::int64_t s) {
      const std::int64_t rows = shards.rows(shards.behind(r, i), s);
      return i == 0 ? build.rows(build.a, r, shards.begin(s), rows)
                    : build.rows(gathered, r, (i - 1) * shard + shards.begin(s), rows);
    };
    for (std::int64_t i = 0; i < p.world; ++i)
      for (std::int64_t s = 0; s < slices; ++s) {
        const Slice own = held(i, s);
        if (i + 1 < p.world) {
          const Slice next = held(i + 1, s);
          std::vector<Exchange::Message> sends, receives;
          if (own.rows > 0) sends.push_back({shards.behind(r, -1), own});
          if (next.rows > 0) receives.push_back({shards.behind(r, 1), next});
          if (own.rows + next.rows > 0) build.exchange(r, std::move(sends), std::move(receives));
          if (next.rows > 0) build.notify(r, communicate_lane, arrived, i * slices + s);
        }
        if (own.rows == 0) continue;
        if (i > 0) build.await(r, compute_lane, arrived, (i - 1) * slices + s);
        for (const Run& run : shards.runs(shards.behind(r, i), s)) {
          Placement store = Builder::in_place(build.all(product, r));
          store.rows = run.rows;
          Gemm gemm = build.gemm(r, build.one_tile(run.count), RowMap::identity(run.count, run.first),
                                 std::move(store));
          gemm.a = own;
          build.step(r, compute_lane, std::move(gemm));
        }
      }
    if (finishing)
      build.step(r, compute_lane,
                 build.finishing(r, build.row_blocks(p.m, build.product_cols()),
                                 Builder::in_place(build.all(product, r)),
                                 Builder::in_place(build.all(build.out, r))));
  }
}

std::string rounding(const Problem& problem) {
  if (!problem.reduces() || problem.world == 1) return planner::rounding(problem);
  return fmt::format(
      "products accumulate in fp32 and are rounded once to {0}; the sum of a row's shard starts at the rank "
      "after its owner and goes around the ring: each rank adds its product in fp32 and rounds to {0}, the "
      "owner after the epilogue",
      name(problem.dtype));
}

}  // namespace

Result<Plan> plan_ring(const Problem& problem, const Machine& machine, const Params& params) {
  problem.validate();
  if (auto reason = planner::infeasible(problem, machine, params)) return *reason;
  if (auto reason = planner::nothing_to_overlap(problem)) return *reason;
  if (problem.routes())
    return Reason{fmt::format("ring passes shards from rank to rank; rows of {} go to any: use fused",
                              name(problem.op))};
  const auto most = static_cast<std::int32_t>(planner::max_slices) / problem.world;
  if (params.slices < 0 || params.slices > most)
    return Reason{fmt::format("slices = {} must be at least 1 and at most {} for {} ranks", params.slices,
                              most, problem.world)};
  Params chosen;
  chosen.slices = params.slices > 0 ? params.slices : default_slices(problem);
  chosen.row_parallel = params.row_parallel && problem.op == Op::attention_reducescatter;
  Builder build(problem, machine, Mechanism::ring, chosen);
  if (problem.exchanges_heads()) {
    planner::ulysses_by_slices(build);
    return std::move(build).finish(rounding(problem));
  }
  const Shards shards(build);
  if (problem.scatters()) plan_reducescatter(build, shards);
  if (problem.op == Op::gemm_allreduce) plan_allreduce(build, shards);
  if (problem.op == Op::allgather_gemm) plan_allgather(build, shards);
  return std::move(build).finish(rounding(problem));
}

}  // namespace shingle
