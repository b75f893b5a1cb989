// Flash-Overlap (arXiv 2604.24013): the reduce-scatter as partial sums that travel a ring (Algorithm 2),
// beside the projection (row-parallel, Algorithm 3) or the attention and projection (query-split, Algorithm
// 4) of the next slice.
//
// At step i rank r works on the rows of rank r - 1 - i, adds what rank r - 1 had of them, and passes the sum
// to rank r + 1. The last step is for its own rows, which stay: nothing is left to communicate after the last
// product.
#include "ring_attention.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "builder.hpp"

namespace shingle::planner {
namespace {

/// Rows of the result that are computed and sent as one.
struct Rows {
  std::int64_t first;
  std::int64_t count;
};

class Ring {
 public:
  Ring(Builder& build, std::int32_t workers) : build_(build), workers_(workers) {
    const Problem& p = build.problem();
    attended_ = build.buffer("attended", p.m, p.k);
    product_ = build.buffer("product", p.m, p.n);
    inbox_ = build.buffer("inbox", p.m, p.n);
    result_ = build.needs_finishing() ? build.buffer("part", p.shard_rows(), p.n) : build.out;
    const std::int64_t sends = (p.world - 1) * slices();
    summed_ = build.counter("summed", sends);
    arrived_ = build.counter("arrived", sends);
  }

  void plan(int rank) {
    const Problem& p = build_.problem();
    if (build_.params().row_parallel)
      build_.step(rank, compute_lane, build_.attend(rank, 0, p.m, build_.all(attended_, rank)));
    for (int step = 0; step < p.world; ++step)
      for (std::int64_t slice = 0; slice < slices(); ++slice) {
        compute(rank, step, slice);
        if (step + 1 < p.world) pass_on(rank, step, slice);
      }
    if (!build_.needs_finishing()) return;
    const std::int64_t rows = p.out_rows(rank);
    build_.step(rank, compute_lane,
                build_.finishing(rank, build_.row_blocks(rows, p.n),
                                 Builder::in_place(build_.rows(result_, rank, 0, rows)),
                                 Builder::in_place(build_.all(build_.out, rank))));
  }

 private:
  std::int64_t slices() const { return build_.params().slices; }

  /// What a rank works on at a step.
  Rows rows_of(int rank, int step, std::int64_t slice) const {
    const Problem& p = build_.problem();
    const int owner = (rank + 2 * p.world - 1 - step) % p.world;
    const std::int64_t shard = p.out_rows(owner), first = smaller(owner * p.shard_rows(), p.m);
    const std::int64_t begin = chunk_begin(shard, slices(), slice);
    return {first + begin, chunk_begin(shard, slices(), slice + 1) - begin};
  }

  void compute(int rank, int step, std::int64_t slice) {
    const auto [first, count] = rows_of(rank, step, slice);
    const bool stays = step + 1 == build_.world();
    const bool alone = build_.world() == 1;
    if (count > 0) {
      const Slice attended = build_.rows(attended_, rank, first, count);
      const Slice product = build_.rows(product_, rank, first, count);
      const Slice kept =
          stays ? build_.rows(result_, rank, chunk_begin(build_.problem().out_rows(rank), slices(), slice),
                              count)
                : product;
      if (!build_.params().row_parallel)
        build_.step(rank, compute_lane, build_.attend(rank, first, count, attended));
      Gemm gemm = build_.gemm(rank, build_.one_tile(count), RowMap::identity(count),
                              Builder::in_place(alone ? kept : product));
      gemm.a = attended;
      build_.step(rank, compute_lane, std::move(gemm));
      if (step > 0) {
        build_.await(rank, compute_lane, arrived_, (step - 1) * slices() + slice);
        Elementwise sum;
        sum.grid = build_.row_blocks(count, build_.problem().n);
        sum.from = {Builder::in_place(build_.rows(inbox_, rank, first, count)), Builder::in_place(product)};
        sum.to = Builder::in_place(kept);
        build_.step(rank, compute_lane, std::move(sum));
      }
    }
    if (!stays) build_.notify(rank, compute_lane, summed_, step * slices() + slice);
  }

  void pass_on(int rank, int step, std::int64_t slice) {
    const int world = build_.world(), next = (rank + 1) % world, previous = (rank + world - 1) % world;
    const Rows out = rows_of(rank, step, slice), in = rows_of(rank, step + 1, slice);
    build_.await(rank, communicate_lane, summed_, step * slices() + slice);
    Exchange exchange;
    if (out.count > 0) exchange.sends.push_back({next, build_.rows(product_, rank, out.first, out.count)});
    if (in.count > 0) exchange.receives.push_back({previous, build_.rows(inbox_, rank, in.first, in.count)});
    exchange.resources = {workers_, workers_};
    build_.step(rank, communicate_lane, std::move(exchange));
    build_.notify(rank, communicate_lane, arrived_, step * slices() + slice);
  }

  Builder& build_;
  std::int32_t workers_;  // of an exchange
  std::int32_t attended_, product_, inbox_, result_, summed_, arrived_;
};

}  // namespace

Result<Plan> ring_attention(const Problem& problem, const Machine& machine, const Params& params) {
  if (auto reason = infeasible(problem, machine, params)) return *reason;
  if (problem.row_order == RowOrder::block_cyclic)
    return Reason{"ring sends shards of consecutive rows: row_order must be contiguous"};
  if (params.slices < 0 || params.slices > static_cast<std::int32_t>(max_slices))
    return Reason{fmt::format("slices = {} must be at least 1 and at most {}", params.slices, max_slices)};
  Params chosen;
  chosen.slices = std::max(params.slices, 1);
  chosen.row_parallel = params.row_parallel;
  Builder build(problem, machine, Mechanism::ring, chosen);
  Ring ring(build, machine.collective_workers);
  for (int rank = 0; rank < problem.world; ++rank) ring.plan(rank);
  return std::move(build).finish(fmt::format(
      "attention and products accumulate in fp32 and are rounded once to {0}; partial sums are added "
      "in fp32 around the ring, the own rank last, and rounded to {0} at every rank",
      name(problem.dtype)));
}

}  // namespace shingle::planner
