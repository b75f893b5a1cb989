// What a user of the installed library writes: two ranks, and a check against plain loops.
#include <array>
#include <cstdio>
#include <shingle/shingle.hpp>
#include <vector>

int main() {
  constexpr int ranks = 2, m = 5, n = 3, k = 4;
  const auto world = shingle::make_world(ranks);
  shingle::Operator op(*world, {.op = shingle::Op::gemm_allreduce, .world = ranks, .m = m, .n = n, .k = k});

  std::array<std::vector<float>, ranks> a, b, out;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int i = 0; i < m * k; ++i) a[rank].push_back(float(i % 7 - rank));
    for (int i = 0; i < k * n; ++i) b[rank].push_back(float(i % 5 + rank));
    out[rank].resize(m * n, -1);
    op.bind(rank, shingle::Role::a, a[rank]);
    op.bind(rank, shingle::Role::b, b[rank]);
    op.bind(rank, shingle::Role::out, out[rank]);
  }
  op.run();

  for (int i = 0; i < m * n; ++i) {
    float expected = 0;
    for (int rank = 0; rank < ranks; ++rank)
      for (int l = 0; l < k; ++l) expected += a[rank][i / n * k + l] * b[rank][l * n + i % n];
    if (out[0][i] != expected || out[1][i] != expected) return 1;
  }
  std::printf("shingle %s, commit %s: the sum is right on every rank\n", SHINGLE_VERSION, shingle::commit());
}
