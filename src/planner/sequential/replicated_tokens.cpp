// Tensor-parallel experts of tokens that all ranks have: products, the sums over choices, an all-reduce, one
// after the other.
#include "planner/common/replicated_tokens.hpp"
#include "sequential.hpp"

namespace shingle::planner {

void replicated_tokens_in_sequence(Builder& build, const Machine& machine) {
  const Problem& p = build.problem();
  if (p.m == 0) return;
  const ReplicatedTokens tokens(build, machine, {}, build.workers());
  // A call may have fewer rows of the output than the collective sums.
  const std::int32_t sums = p.has_slots() ? build.buffer("sums", p.m, p.n) : build.out;
  const std::int32_t combined = build.counter("combined", 1),
                     summed = p.has_slots() ? build.counter("summed", 1) : -1;
  for (int r = 0; r < build.world(); ++r) {
    tokens.take(r);
    const auto [product, strips] = tokens.product(r, {1});
    build.step(r, compute_lane, product);
    Elementwise pass = tokens.combine(r, strips.front(), build.row_blocks(p.m, p.n));
    pass.to = Builder::in_place(build.all(sums, r));
    build.step(r, compute_lane, std::move(pass));
    hand_over(build, r, combined, compute_lane, communicate_lane);
    build.collective(r, CollectiveKind::allreduce, build.all(sums, r), build.all(sums, r));
    if (sums == build.out) continue;
    hand_over(build, r, summed, communicate_lane, compute_lane);
    build.step(r, compute_lane, build.copy(build.all(sums, r), build.all(build.out, r)));
  }
}

}  // namespace shingle::planner
