// low-latency: a GEMM of cuBLASLt or oneDNN, then one kernel (two with two hops) that stores rows into the
// other ranks' flagged memory, and sums what arrives there, with the epilogue and the norm
// (docs/mechanisms/low-latency.md).
#include <fmt/format.h>

#include "delivery.hpp"
#include "planner/common/reach.hpp"
#include "shingle/base/units.hpp"

namespace shingle {
namespace {

using namespace planner;
using LowLatencyBuilder = ParamBuilder<LowLatencyParams>;

/// Rows that are summed or moved on a rank from what the ranks hold. Reads this rank's rows, and those that
/// arrive from the others.
class Arriving {
 public:
  /// `complete`: the epilogue and the norm belong to the pass.
  Arriving(Builder& build, const Delivery& delivery, int rank, const Slice& to, bool complete)
      : build_(build), delivery_(delivery), rank_(rank), rows_(to.rows) {
    const Placement store = Builder::in_place(to);
    if (complete) pass_ = build.finishing(rank, delivery.grid(rows_), {}, store);
    pass_.grid = delivery.grid(rows_);
    pass_.to = store;
    pass_.resources = build.beside_communication();
  }
  void add(int source, const Slice& own) {
    if (source == rank_) return pass_.from.push_back(Builder::in_place(own));
    pass_.from.push_back(delivery_.slot(rank_, source, rows_));
    pass_.gates.push_back(delivery_.arrival(source, rows_));
  }
  void append() && {
    if (rows_ > 0) build_.step(rank_, compute_lane, std::move(pass_));
  }

 private:
  Builder& build_;
  const Delivery& delivery_;
  int rank_;
  std::int64_t rows_;
  Elementwise pass_;
};

/// The sum of the ranks' parts of some rows, in rank order.
void sum_rows(Builder& build, const Delivery& delivery, int rank, const Slice& own, const Slice& to,
              bool complete) {
  Arriving sum(build, delivery, rank, to, complete);
  for (int source = 0; source < build.world(); ++source) sum.add(source, own);
  std::move(sum).append();
}

/// Moves the rows of a rank to their place.
void take_rows(Builder& build, const Delivery& delivery, int rank, int source, const Slice& own,
               const Slice& to, bool complete) {
  Arriving rows(build, delivery, rank, to, complete);
  rows.add(source, own);
  std::move(rows).append();
}

/// The product of a rank, as one call of a library. Nothing runs beside it, so it has all workers.
Gemm multiply(Builder& build, int rank, RowMap rows, Placement out) {
  Gemm gemm = build.gemm(rank, build.one_tile(build.problem().m), std::move(rows), std::move(out));
  gemm.resources = {1, build.workers()};
  return gemm;
}

/// The ranks' values before a reduction: products, or the input of a collective alone. Rows of shard s begin
/// at row s · shard if they are scattered.
class Parts {
 public:
  Parts(Builder& build, RowMap rows, std::int64_t held) : build_(build), rows_(std::move(rows)) {
    const bool computes = build.problem().traits().multiplies();
    buffer_ = computes ? build.buffer("product", held, build.product_cols()) : build.a;
  }
  void compute(int rank) const {
    if (buffer_ == build_.a) return;
    build_.step(rank, compute_lane,
                multiply(build_, rank, RowMap::identity(build_.problem().m),
                         {build_.all(buffer_, rank), placement::Matrix{rows_}}));
  }
  Slice rows(int rank, std::int64_t first, std::int64_t count) const {
    return build_.rows(buffer_, rank, first, count);
  }

 private:
  Builder& build_;
  RowMap rows_;
  std::int32_t buffer_ = -1;
};

void reduce_in_one_hop(Builder& build) {
  const std::int64_t m = build.problem().m;
  const Parts parts(build, RowMap::identity(m), m);
  const Delivery delivery(build, "parts", m, build.product_cols());
  for (int r = 0; r < build.world(); ++r) {
    parts.compute(r);
    delivery.begin(r);
    delivery.send(r, parts.rows(r, 0, m), others(build, r));
    sum_rows(build, delivery, r, parts.rows(r, 0, m), build.all(build.out, r), true);
    delivery.end(r);
  }
}

/// First row of a rank's contiguous shard of the rows, and their number.
std::pair<std::int64_t, std::int64_t> shard_of(const Problem& p, int rank) {
  const std::int64_t first = smaller(rank * p.shard_rows(), p.m);
  return {first, smaller(p.shard_rows(), p.m - first)};
}

void reduce_in_two_hops(Builder& build) {
  const Problem& p = build.problem();
  const Parts parts(build, RowMap::identity(p.m), p.m);
  const Delivery first(build, "parts", p.shard_rows(), build.product_cols());
  const std::int32_t sums = build.buffer("sums", p.shard_rows(), build.product_cols());
  const Delivery second(build, "shards", p.shard_rows(), build.product_cols());
  for (int r = 0; r < build.world(); ++r) {
    const auto [begin, rows] = shard_of(p, r);
    const Slice own = build.rows(sums, r, 0, rows);
    parts.compute(r);
    first.begin(r);
    for (const std::int32_t peer : others(build, r)) {
      const auto [from, count] = shard_of(p, peer);
      first.send(r, parts.rows(r, from, count), {peer});
    }
    sum_rows(build, first, r, parts.rows(r, begin, rows), own, false);
    first.end(r);
    second.begin(r);
    second.send(r, own, others(build, r));
    for (int i = 0; i < build.world(); ++i) {
      const int source = (r + i) % build.world();
      const auto [to, count] = shard_of(p, source);
      take_rows(build, second, r, source, own, build.rows(build.out, r, to, count), true);
    }
    second.end(r);
  }
}

void scatter_sums(Builder& build) {
  const Problem& p = build.problem();
  const std::int64_t shard = p.shard_rows();
  const bool computes = p.traits().multiplies();
  const Parts parts(build, computes ? sharded_rows(p, shard) : RowMap::identity(p.m), p.world * shard);
  const Delivery delivery(build, "parts", shard, build.product_cols());
  for (int r = 0; r < build.world(); ++r) {
    parts.compute(r);
    delivery.begin(r);
    for (const std::int32_t peer : others(build, r))
      delivery.send(r, parts.rows(r, peer * shard, p.out_rows(peer)), {peer});
    sum_rows(build, delivery, r, parts.rows(r, r * shard, p.out_rows(r)), build.all(build.out, r), true);
    delivery.end(r);
  }
}

void gather_rows(Builder& build) {
  const Problem& p = build.problem();
  const std::int64_t shard = p.shard_rows();
  const std::int32_t gathered = build.buffer("gathered", p.world * shard, p.k);
  const std::int32_t product =
      build.needs_finishing() ? build.buffer("product", p.m, build.product_cols()) : build.out;
  const Delivery delivery(build, "rows", shard, p.k);
  for (int r = 0; r < build.world(); ++r) {
    const Slice own = build.all(build.a, r);
    delivery.begin(r);
    delivery.send(r, own, others(build, r));
    for (int i = 0; i < build.world(); ++i) {
      const int source = (r + i) % build.world();
      take_rows(build, delivery, r, source, own, build.rows(gathered, r, source * shard, p.a_rows(source)),
                false);
    }
    delivery.end(r);
    Gemm gemm = multiply(build, r, sharded_rows(p, shard), Builder::in_place(build.all(product, r)));
    gemm.a = build.all(gathered, r);
    build.step(r, compute_lane, std::move(gemm));
    finish_rows(build, r, product, p.m);
  }
}

bool reduces_everywhere(const Problem& p) {
  return p.traits().reduces() && !p.traits().scatters();
}

/// Columns of the rows that travel.
std::int64_t moved_cols(const Problem& p) {
  return p.traits().gathers() ? p.k : p.n;
}

std::optional<Reason> not_served(const Problem& p) {
  const OperatorTraits& traits = p.traits();
  if (p.op == Op::gemm) return Reason{"gemm has no communication: use sequential"};
  if (traits.attends) return Reason{"low-latency does not plan attention: use ring"};
  if (p.op == Op::mlp) return Reason{"an mlp has two collectives: use ring or fused"};
  if (traits.chains())
    return Reason{"low-latency gathers rows of A, not of a product: use chunked or copy-engine"};
  if (traits.routes()) return Reason{"low-latency does not route rows: use signal or fused"};
  if (p.op == Op::allgather)
    return Reason{
        "low-latency would turn -0.0 into 0.0, and an allgather moves values as they are: use copy-engine"};
  if (p.result_epilogue().scale != 1 || p.f32_sums)
    return Reason{"low-latency neither scales sums nor widens them: use copy-engine"};
  if (p.traits().reduces() && p.result_epilogue().activation == Activation::swiglu)
    return Reason{"swiglu of a sum needs another pass: use fused or sequential"};
  constexpr std::int64_t word = 16, most_row = 128 << 10;  // bytes: stores of the kernel, and its registers
  if (const std::int64_t row = moved_cols(p) * static_cast<std::int64_t>(size_bytes(p.dtype));
      row % word != 0 || row > most_row)
    return Reason{
        fmt::format("a row has {} bytes; low-latency moves multiples of {} up to {}", row, word, most_row)};
  constexpr int most_ranks = 16;
  if (p.world > most_ranks)
    return Reason{fmt::format("{} ranks; low-latency is for up to {}", p.world, most_ranks)};
  return std::nullopt;
}

/// Bytes of a rank's flagged memory, in one of its copies.
std::int64_t flagged_bytes(const Problem& p, int hops) {
  const std::int64_t slot = hops == 1 && reduces_everywhere(p) ? p.m : p.shard_rows();
  return hops * p.world * slot * moved_cols(p) * static_cast<std::int64_t>(size_bytes(p.dtype));
}

/// Predicted time of the hops of an all-reduce, beyond the product.
double hops_us(const Problem& p, const Machine& machine, int hops) {
  const double row_bytes = static_cast<double>(p.n) * static_cast<double>(size_bytes(p.dtype));
  const double sent = static_cast<double>((p.world - 1) * hops * (hops == 1 ? p.m : p.shard_rows()));
  const double gbps = machine.store_gbps > 0 ? machine.store_gbps : machine.link.gbps;
  return hops * (machine.launch_us + machine.signal_us) + (gbps > 0 ? sent * row_bytes / (1e3 * gbps) : 0);
}

std::int32_t chosen_hops(const Problem& p, const Machine& machine, std::int32_t wanted) {
  if (!reduces_everywhere(p)) return 1;
  if (wanted != 0) return wanted;
  if (flagged_bytes(p, 1) > most_flagged_bytes) return 2;
  return hops_us(p, machine, 1) <= hops_us(p, machine, 2) ? 1 : 2;
}

}  // namespace

Result<Plan> plan_low_latency(const Problem& problem, const Machine& machine,
                              const LowLatencyParams& params) {
  problem.validate();
  if (auto reason = infeasible(problem, machine, params)) return *reason;
  if (auto reason = not_served(problem)) return *reason;
  if (params.hops < 0 || params.hops > 2) return Reason{"hops must be 1 or 2"};
  if (params.hops == 2 && !reduces_everywhere(problem))
    return Reason{fmt::format("{} takes one hop", name(problem.op))};
  if (params.symmetric) return Reason{"each rank is planned by itself: leave symmetric off"};
  if (auto reason = out_of_reach(problem.world, machine, "low-latency stores to", "use another mechanism"))
    return *reason;
  LowLatencyParams chosen;
  chosen.hops = chosen_hops(problem, machine, params.hops);
  if (const std::int64_t bytes = flagged_bytes(problem, chosen.hops); bytes > most_flagged_bytes)
    return Reason{fmt::format("{} of rows arrive at a rank, and flagged memory has {}: too many rows",
                              format_bytes(static_cast<double>(bytes)),
                              format_bytes(static_cast<double>(most_flagged_bytes)))};
  LowLatencyBuilder build(problem, machine, chosen);
  if (problem.traits().gathers())
    gather_rows(build);
  else if (problem.traits().scatters())
    scatter_sums(build);
  else if (chosen.hops == 1)
    reduce_in_one_hop(build);
  else
    reduce_in_two_hops(build);
  const bool sums = problem.traits().reduces();
  return std::move(build).finish({sums ? Summing::rank_order : Summing::none, problem.dtype});
}

}  // namespace shingle
