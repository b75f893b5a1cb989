// The README's program: gemm+allreduce on four ranks, which are threads. The test lint.readme checks that it
// equals the README.
#include <cstdio>
#include <shingle/shingle.hpp>
#include <vector>

int main() {
  auto world = shingle::make_world(4, {.link = shingle::parse_link("1GB/s,10us")});
  shingle::Operator op(*world,
                       {.op = shingle::Op::gemm_allreduce, .world = 4, .m = 512, .n = 1024, .k = 256});
  std::vector<float> a[4], b(256 * 1024, 0.5f), out[4];
  for (int rank = 0; rank < 4; ++rank) {
    a[rank].resize(512 * 256, rank + 1.0f);
    out[rank].resize(512 * 1024);
    op.bind(rank, shingle::Role::a, a[rank]);  // throws if size or type are not those of the operator
    op.bind(rank, shingle::Role::b, b);
    op.bind(rank, shingle::Role::out, out[rank]);
  }
  const double us = op.run().elapsed_us;
  std::printf("%g in %s\n", out[3].back(), shingle::format_us(us).c_str());
  return out[3].back() == 256 * 0.5f * (1 + 2 + 3 + 4) ? 0 : 1;
}
