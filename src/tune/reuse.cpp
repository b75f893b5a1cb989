#include "reuse.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "planner/signal/grid.hpp"
#include "shingle/base/error.hpp"

namespace shingle {
namespace {

bool alike(const Problem& a, const Problem& b) {
  return a.op == b.op && a.world == b.world && a.dtype == b.dtype && a.transpose_a == b.transpose_a &&
         a.transpose_b == b.transpose_b;
}

double distance(const Problem& a, const Problem& b) {
  const auto log = [](std::int64_t size) { return std::log(static_cast<double>(larger(size, 1))); };
  return std::hypot(log(a.m) + log(a.n) - log(b.m) - log(b.n), log(a.k) - log(b.k));
}

}  // namespace

std::optional<TuneEntry> nearest(const std::vector<TuneEntry>& entries, const Problem& problem,
                                 Mechanism mechanism) {
  const TuneEntry* found = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const TuneEntry& entry : entries) {
    if (mechanism_of(entry.params) != mechanism || !alike(entry.problem, problem)) continue;
    const double far = distance(entry.problem, problem);
    if (far < least) least = far, found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return *found;
}

std::vector<std::int64_t> scale_groups(const std::vector<std::int64_t>& group_waves, std::int64_t waves) {
  std::int64_t before = 0;
  for (const std::int64_t size : group_waves) {
    if (size < 1) throw InvalidArgument(fmt::format("a group of {} waves; expected at least 1", size));
    before += size;
  }
  if (waves < 1 || before < 1)
    throw InvalidArgument(fmt::format(
        "cannot scale groups of {1} waves to {0} waves; expected at least 1 of each", waves, before));
  const auto groups = static_cast<std::int64_t>(group_waves.size());
  if (waves <= groups) return std::vector<std::int64_t>(static_cast<std::size_t>(waves), 1);
  std::vector<std::int64_t> scaled;
  std::int64_t end = 0, scaled_end = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    end += group_waves[static_cast<std::size_t>(g)];
    const double ideal = static_cast<double>(end) * static_cast<double>(waves) / static_cast<double>(before);
    // Leaves at least one wave for this group and for each later one.
    const std::int64_t next =
        std::clamp<std::int64_t>(std::llround(ideal), scaled_end + 1, waves - (groups - 1 - g));
    scaled.push_back(next - scaled_end);
    scaled_end = next;
  }
  return scaled;
}

std::optional<SignalParams> reuse(const std::vector<TuneEntry>& entries, const Problem& problem,
                                  const Machine& machine) {
  const auto neighbour = nearest(entries, problem, Mechanism::signal);
  if (!neighbour) return std::nullopt;
  SignalParams params = std::get<SignalParams>(neighbour->params);
  const auto tiles = planner::signal_grid(problem, machine, params);
  if (!tiles) return std::nullopt;
  const std::int64_t waves = tiles.value().waves();
  if (waves > 0 && !params.group_waves.empty()) {
    params.group_waves = scale_groups(params.group_waves, waves);
  } else {
    params.group_waves.clear();
  }
  return params;
}

}  // namespace shingle
