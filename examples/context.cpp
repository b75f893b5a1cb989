// A tensor-parallel MLP on four ranks, which are threads of this program. A context declares both products
// once, each with its collective, then serves any number of tokens:
//   hidden = relu(allgather(x) · up_r), a slice of the columns on each rank
//   y = reducescatter(hidden · down_r), a shard of the tokens on each rank
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "shingle/shingle.hpp"

namespace {

constexpr int ranks = 4;
constexpr std::int64_t most_tokens = 128, width = 48, slice = 24;

using Matrix = std::vector<float>;

/// Integers, whose sums are exact.
Matrix integers(std::int64_t rows, std::int64_t cols, int seed) {
  Matrix elements(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < elements.size(); ++i)
    elements[i] = static_cast<float>((i * 5 + i / 7 + static_cast<std::size_t>(seed)) % 5) - 2;
  return elements;
}

void add_product(const Matrix& a, const Matrix& b, Matrix& c, std::int64_t n, std::int64_t k) {
  for (std::size_t i = 0; i < c.size(); ++i)
    for (std::int64_t l = 0; l < k; ++l)
      c[i] += a[i / static_cast<std::size_t>(n) * static_cast<std::size_t>(k) + static_cast<std::size_t>(l)] *
              b[static_cast<std::size_t>(l * n) + i % static_cast<std::size_t>(n)];
}

}  // namespace

int main() {
  const auto world = shingle::make_world(ranks, {.backend = "host"});
  Matrix up[ranks], down[ranks];
  for (int rank = 0; rank < ranks; ++rank) {
    up[rank] = integers(width, slice, rank);
    down[rank] = integers(slice, width, 2 * rank + 1);
  }

  shingle::Context context(*world);
  const int first = context.declare({.op = shingle::Op::allgather_gemm,
                                     .world = ranks,
                                     .m = most_tokens,
                                     .n = slice,
                                     .k = width,
                                     .epilogue = {.activation = shingle::Activation::relu}});
  const int second = context.declare(
      {.op = shingle::Op::gemm_reducescatter, .world = ranks, .m = most_tokens, .n = width, .k = slice});

  for (const std::int64_t tokens : {std::int64_t{128}, std::int64_t{4}, std::int64_t{90}}) {
    // The shards of the tokens lie behind one another, so that x and y hold those of all ranks.
    Matrix x = integers(tokens, width, 3), y(x.size()), hidden[ranks];
    const shingle::Problem problem = context.problem(second, tokens);
    std::vector<shingle::Argument> calls[2];
    float *shard_of_x = x.data(), *shard_of_y = y.data();
    for (int rank = 0; rank < ranks; ++rank) {
      const std::int64_t rows = problem.out_rows(rank);
      hidden[rank].resize(static_cast<std::size_t>(tokens * slice));
      calls[0].push_back({rank, shingle::Role::a, {shard_of_x, {rows, width}}});
      calls[0].push_back({rank, shingle::Role::b, {up[rank].data(), {width, slice}}});
      calls[0].push_back({rank, shingle::Role::out, {hidden[rank].data(), {tokens, slice}}});
      calls[1].push_back({rank, shingle::Role::a, {hidden[rank].data(), {tokens, slice}}});
      calls[1].push_back({rank, shingle::Role::b, {down[rank].data(), {slice, width}}});
      calls[1].push_back({rank, shingle::Role::out, {shard_of_y, {rows, width}}});
      shard_of_x += rows * width;
      shard_of_y += rows * width;
    }
    context.call(first, tokens, calls[0]);  // both return at once
    context.call(second, tokens, calls[1]);
    context.synchronize();

    Matrix expected(y.size(), 0);
    for (int rank = 0; rank < ranks; ++rank) {
      Matrix product(hidden[rank].size(), 0);
      add_product(x, up[rank], product, slice, width);
      for (float& element : product) element = std::max(element, 0.0f);
      add_product(product, down[rank], expected, width, slice);
    }
    const auto named = [&](int op) { return std::string(name(context.plan(op, tokens).mechanism)); };
    std::printf("%d tokens by %s and %s: %s\n", static_cast<int>(tokens), named(first).c_str(),
                named(second).c_str(), y == expected ? "every element is right" : "wrong");
    if (y != expected) return 1;
  }
  std::printf("staging memory: %s a rank\n",
              shingle::format_bytes(static_cast<double>(context.arena_bytes())).c_str());
}
