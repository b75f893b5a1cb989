// gemm+reducescatter with mechanism `signal`: choose the tile and the groups of waves, print the plan, prove
// it, run it.
#include <cstdio>
#include <vector>

#include "shingle/shingle.hpp"

int main() {
  constexpr int ranks = 2;
  shingle::Problem problem;
  problem.op = shingle::Op::gemm_reducescatter;
  problem.world = ranks;
  problem.m = 300;
  problem.n = 256;
  problem.k = 64;
  problem.epilogue.activation = shingle::Activation::relu;

  const auto world = shingle::make_world(ranks, {.backend = "host", .workers_per_rank = 1});
  // Ten tiles. The transfer of the last group is exposed, so that group is small.
  const shingle::SignalParams params{.tile = {64, 128}, .group_waves = {4, 4, 2}};
  shingle::Operator op(*world, problem, {.params = params});

  std::printf("%s\n", to_text(op.plan()).c_str());
  const shingle::Proof proof = verify(op.plan());
  std::printf("%s: %lld steps and runs of tiles, %lld accesses\n", proof ? "proven" : proof.failure.c_str(),
              static_cast<long long>(proof.segments), static_cast<long long>(proof.accesses));

  std::vector<std::vector<float>> memory;
  for (const int rank : world->local_ranks())
    for (const shingle::Role role : roles_of(problem)) {
      memory.emplace_back(static_cast<std::size_t>(op.shape(role, rank).elements()),
                          rank == 0 ? 1.0f : -0.5f);
      op.bind(rank, role, memory.back().data());
    }
  op.run();
  // Rank 0 contributes 64·1·1, rank 1 64·0.5·0.5. Each rank keeps its half of the rows.
  const std::vector<float>& last = memory.back();
  std::printf("rank 1 holds %lld rows, whose first element is %g\n",
              static_cast<long long>(op.shape(shingle::Role::out, 1).rows), static_cast<double>(last[0]));
  return proof && last[0] == 80 ? 0 : 1;
}
