// gemm+allreduce on four ranks, which are threads of this program. Every rank ends up with A0·B0 + A1·B1 +
// A2·B2 + A3·B3.
#include <cstdio>
#include <vector>

#include "shingle/shingle.hpp"

int main() {
  constexpr int ranks = 4;
  shingle::Problem problem;
  problem.op = shingle::Op::gemm_allreduce;
  problem.world = ranks;
  problem.m = 512;
  problem.n = 384;
  problem.k = 128;
  const auto world =
      shingle::make_world(ranks, {.backend = "host", .link = shingle::parse_link("2GB/s,10us")});
  shingle::Operator op(*world, problem);

  // The user owns the matrices: row-major, dense, one set per rank.
  std::vector<std::vector<float>> a(ranks), b(ranks), out(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    a[rank].assign(512 * 128, 1.0f + static_cast<float>(rank));
    b[rank].assign(128 * 384, 0.5f);
    out[rank].resize(512 * 384);
    op.bind(rank, shingle::Role::a, a[rank]);
    op.bind(rank, shingle::Role::b, b[rank]);
    op.bind(rank, shingle::Role::out, out[rank]);
  }

  const shingle::RunReport report = op.run();
  std::printf("%s by %s in %s\n", describe(problem).c_str(), std::string(name(op.plan().mechanism)).c_str(),
              shingle::format_us(report.elapsed_us).c_str());

  constexpr float expected = 128 * 0.5f * (1 + 2 + 3 + 4);
  for (const auto& result : out)
    for (const float value : result)
      if (value != expected)
        return std::printf("%g instead of %g\n", static_cast<double>(value), static_cast<double>(expected)),
               1;
  std::printf("every element of every rank is %g\n", static_cast<double>(expected));
}
