// Figures of ranks together: collectives, with nothing beside them.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "profiler.hpp"
#include "shingle/base/units.hpp"

namespace shingle::tuning {
namespace {

constexpr std::pair<Op, Traffic> kinds[] = {{Op::allreduce, Traffic::allreduce},
                                            {Op::reducescatter, Traffic::reducescatter},
                                            {Op::allgather, Traffic::allgather},
                                            {Op::alltoall, Traffic::alltoall}};
constexpr double least_bytes = 4 << 10, most_bytes = 256 << 20;
/// Workers of each rank that a collective takes. NCCL's own choice comes first, then the most useful counts.
constexpr std::int32_t workers_of_calls[] = {0, 16, 8, 24, 4, 32, 2};

/// Sort key of a curve in a profile. NCCL's own choice of workers comes last.
auto place(const Curve& curve) {
  const auto workers = curve.workers > 0 ? curve.workers : std::numeric_limits<std::int32_t>::max();
  return std::tuple(curve.traffic, curve.ranks, workers);
}

}  // namespace

/// Samples sizes until a call takes long. Repeats each call within a run until the run is long enough.
void Profiler::sample(Op op, Curve& curve) {
  constexpr double most_calls = 16, longest_us = 2e4;
  double last_us = 0;
  for (double bytes = least_bytes; bytes <= most_bytes && last_us < longest_us; bytes *= 4) {
    const double count =
        last_us > 0 ? std::clamp(watch_.timing().run_us / (4 * last_us), 1.0, most_calls) : most_calls;
    const auto calls = plans_.calls(op, curve.ranks, curve.workers, bytes, static_cast<int>(count));
    const double us = alone_us(watch_.us(calls.plan), 0);
    last_us = us / static_cast<int>(count);
    curve.samples.push_back({calls.bytes, last_us});
  }
}

void Profiler::collectives(int ranks) {
  for (const std::int32_t workers : workers_of_calls) {
    if (workers > 0 && (!calls_take_ || workers >= machine_.workers)) continue;
    for (const auto& [op, traffic] : kinds) {
      const std::string on = workers > 0 ? fmt::format(" on {} workers", workers) : "";
      if (!next(fmt::format("{} of {} ranks{}", name(op), ranks, on))) continue;
      Curve curve{traffic, ranks, workers, {}};
      sample(op, curve);
      std::erase_if(machine_.curves, [&](const Curve& known) { return place(known) == place(curve); });
      machine_.curves.push_back(std::move(curve));
      ++curves_;
    }
  }
  std::ranges::sort(machine_.curves, {}, place);
  if (curves_ == 0) return;
  const std::string text = "calls of the backend's own library, nothing beside them";
  if (curves_ < machine_.curves.size())
    note_part("curves", Origin::measured, fmt::format("{}, of up to {} ranks", text, size_));
  else
    note("curves", Origin::measured, text);
}

/// Measures the added time of collectives that a count separates, over back-to-back collectives.
void Profiler::lone_calls() {
  constexpr int count = 16;
  if (!calls_take_ || !next("collectives one at a time")) return;
  const Plan calls = plans_.calls(Op::allreduce, size_, 0, least_bytes, count).plan;
  const double following = alone_us(watch_.us(calls), 0);
  const double apart = alone_us(watch_.us(counted(calls)), count * machine_.sync_us);
  // The first collective follows no other in either plan.
  machine_.lone_latency = std::max((apart - following) / (count - 1), 0.0) / (following / count);
  note("lone_latency", Origin::measured,
       fmt::format("{} allreduces of {} with a count behind each", count, format_bytes(least_bytes)));
}

/// Chooses the fewest workers with nearly the rate of NCCL's own choice.
void Profiler::choose_workers() {
  constexpr double slower = 1.1;
  if (!calls_take_ || curves_ == 0) return;
  const auto own = [&](const Curve& curve) {
    return curve.traffic == Traffic::allreduce && curve.ranks == size_;
  };
  const Curve& free = *std::ranges::find_if(machine_.curves.rbegin(), machine_.curves.rend(), own);
  const double bytes = free.samples.back().bytes;
  for (const Curve& curve : machine_.curves) {  // fewest workers first
    if (!own(curve) || curve.workers == 0 || curve.us(bytes) > slower * free.us(bytes)) continue;
    machine_.collective_workers = curve.workers;
    return note(
        "collective_workers", Origin::measured,
        fmt::format("the fewest with which an allreduce of {} on {} ranks takes at most a tenth longer "
                    "than with the library's own choice",
                    format_bytes(bytes), size_));
  }
}

}  // namespace shingle::tuning
