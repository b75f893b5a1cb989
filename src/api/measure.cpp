#include "shingle/api/measure.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shingle {
namespace {

constexpr int least_rounds = 5;
constexpr int most_rounds = 20;

/// One product of a problem: the weight that it multiplies with, and itself as a problem.
struct ProductAlone {
  Role weight;
  Problem gemm;
};

std::vector<ProductAlone> products_of(const Problem& problem) {
  Problem gemm;
  gemm.world = problem.world;
  gemm.m = larger(problem.m, 1);
  gemm.n = problem.b_cols();
  gemm.k = problem.k;
  gemm.dtype = problem.dtype;
  gemm.transpose_a = problem.transpose_a;
  gemm.transpose_b = problem.transpose_b;
  std::vector<ProductAlone> products{{Role::b, gemm}};
  if (problem.op != Op::mlp) return products;
  gemm.n = problem.n;
  gemm.k = problem.inner;
  products.push_back({Role::down, gemm});
  return products;
}

/// Value at a fraction of the sorted values.
double quantile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  const double at = fraction * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

double median(const std::vector<double>& values) {
  return quantile(values, 0.5);
}

}  // namespace

double Measurement::overlap_efficiency() const {
  const double exposed = sequential_us - gemm_us;
  if (!(exposed > 0.05 * sequential_us)) return std::numeric_limits<double>::quiet_NaN();
  return 1 - (overlapped_us - gemm_us) / exposed;
}

GemmAlone::GemmAlone(World& world, const Inputs& inputs, const Workspace& workspace, double timeout_us) {
  const Problem& problem = inputs.problem();
  for (const auto& [weight, gemm] : products_of(problem)) {
    Operator& op = products_.emplace_back(
        world, gemm, Options{.mechanism = Mechanism::sequential, .timeout_us = timeout_us});
    const auto filled = random_inputs(gemm, 0);
    for (const int rank : world.local_ranks())
      for (const Role role : roles_of(gemm)) {
        const Role own = role == Role::b ? weight : role;
        const bool second = weight == Role::down;  // whose A is no matrix of the user's
        if (is_input(role) && !(second && role == Role::a) &&
            shape_of(problem, own, rank) == shape_of(gemm, role, rank)) {
          op.bind(rank, role, const_cast<void*>(workspace.data(rank, own)));
          continue;
        }
        DeviceBuffer& buffer =
            scratch_.emplace_back(world.allocate(rank, static_cast<std::size_t>(bytes_of(gemm, role, rank))));
        if (is_input(role)) filled->write(rank, role, buffer.data());
        op.bind(rank, role, buffer.data());
      }
  }
}

std::int64_t GemmAlone::bytes(const Problem& problem, int rank) {
  std::int64_t bytes = 0;
  for (const auto& [weight, gemm] : products_of(problem)) {
    const bool own_a =
        weight == Role::down || shape_of(problem, Role::a, rank) != shape_of(gemm, Role::a, rank);
    bytes += bytes_of(gemm, Role::out, rank) + (own_a ? bytes_of(gemm, Role::a, rank) : 0);
  }
  return bytes;
}

Measurement measure(World& world, std::span<Operator> products, Operator& sequential, Operator& overlapped,
                    const MeasureOptions& options) {
  const auto time = [&](Operator& op) { return world.all_max({op.run().elapsed_us})[0]; };
  const auto time_products = [&] {
    double sum = 0;
    for (Operator& product : products) sum += time(product);
    return sum;
  };
  const bool same = &sequential == &overlapped;
  time_products();
  time(sequential);
  if (!same) time(overlapped);

  std::vector<double> gemm_us, sequential_us, overlapped_us;
  double spent_us = 0;  // the same on every process, so that all do the same number of rounds
  const auto more = [&] {
    const auto rounds = static_cast<int>(gemm_us.size());
    if (options.repeat > 0) return rounds < options.repeat;
    return rounds < least_rounds || (rounds < most_rounds && spent_us < options.budget_us);
  };
  while (more()) {
    gemm_us.push_back(time_products());
    sequential_us.push_back(time(sequential));
    overlapped_us.push_back(same ? sequential_us.back() : time(overlapped));
    spent_us += gemm_us.back() + sequential_us.back() + (same ? 0 : overlapped_us.back());
  }
  Measurement result;
  result.gemm_us = median(gemm_us);
  result.sequential_us = median(sequential_us);
  result.overlapped_us = median(overlapped_us);
  result.spread = (quantile(overlapped_us, 0.75) - quantile(overlapped_us, 0.25)) / result.overlapped_us;
  result.rounds = static_cast<int>(gemm_us.size());
  return result;
}

}  // namespace shingle
