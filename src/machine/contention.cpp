#include "shingle/machine/contention.hpp"

#include <algorithm>
#include <cmath>

namespace shingle {

double Contention::share(ComputationKind kind, const MovedBytes& moved, double us, double all_gbps) const {
  const std::optional<double> missed = misses_of(kind);
  if (!missed || moved.once == 0 || us <= 0 || all_gbps == 0) return memory_share;
  return std::min((moved.once + *missed * moved.again) / (all_gbps * 1e3) / us, 1.0);
}

double Contention::slowed(double share, double taken_gbps, double all_gbps) {
  if (share == 0 || taken_gbps == 0 || all_gbps == 0) return 1;
  return 1 - share + share * all_gbps / std::max(all_gbps - taken_gbps, 0.05 * all_gbps);
}

MovedBytes product_moves(const TiledProduct& product, double element) {
  const auto m = static_cast<double>(product.m), n = static_cast<double>(product.n),
             k = static_cast<double>(product.k);
  const double rows = std::ceil(m / product.tile_rows), cols = std::ceil(n / product.tile_cols);
  return {(m * k + k * n + m * n) * element, ((cols - 1) * m * k + (rows - 1) * k * n) * element};
}

MovedBytes attention_moves(double queries, double keys, double cols, bool causal, double element) {
  constexpr double block = 128;
  const double once = 2 * keys * cols, all = once * queries / block * (causal ? 0.5 : 1);
  return {(2 * queries * cols + once) * element, std::max(all - once, 0.0) * element};
}

}  // namespace shingle
