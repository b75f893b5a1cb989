// What ranks do together: collectives, alone and beside computation.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "profiler.hpp"
#include "shingle/base/units.hpp"

namespace shingle::tune {
namespace {

constexpr std::pair<Op, Traffic> kinds[] = {{Op::allreduce, Traffic::allreduce},
                                            {Op::reducescatter, Traffic::reducescatter},
                                            {Op::allgather, Traffic::allgather},
                                            {Op::alltoall, Traffic::alltoall}};
constexpr double least_bytes = 4 << 10, most_bytes = 256 << 20;
/// Of each rank, that a collective takes; the library's own choice first, then the most useful ones.
constexpr std::int32_t workers_of_calls[] = {0, 16, 8, 24, 4, 32, 2};

/// What a curve is of, as profiles list them: the library's own choice of workers last.
auto place(const Curve& curve) {
  const auto workers = curve.workers > 0 ? curve.workers : std::numeric_limits<std::int32_t>::max();
  return std::tuple(curve.traffic, curve.ranks, workers);
}

}  // namespace

/// Up to sizes that take long, each as often in a run as makes it long enough.
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

/// What collectives take longer that a count keeps apart, of those that follow one another.
void Profiler::lone_calls() {
  constexpr int count = 16;
  if (!calls_take_ || !next("collectives one at a time")) return;
  const Plan calls = plans_.calls(Op::allreduce, size_, 0, least_bytes, count).plan;
  const double following = alone_us(watch_.us(calls), 0);
  const double apart = alone_us(watch_.us(counted(calls)), count * machine_.sync_us);
  // The first follows none in either.
  machine_.lone_latency = std::max((apart - following) / (count - 1), 0.0) / (following / count);
  note("lone_latency", Origin::measured,
       fmt::format("{} allreduces of {} with a count behind each", count, format_bytes(least_bytes)));
}

/// As many workers as carry nearly what the library carries on those that it takes by itself.
void Profiler::choose_workers() {
  constexpr double slower = 1.1;
  if (!calls_take_ || curves_ == 0) return;
  const auto own = [&](const Curve& curve) {
    return curve.traffic == Traffic::allreduce && curve.ranks == size_;
  };
  const Curve& free = *std::ranges::find_if(machine_.curves.rbegin(), machine_.curves.rend(), own);
  const double bytes = free.samples.back().bytes;
  for (const Curve& curve : machine_.curves) {  // fewest first
    if (!own(curve) || curve.workers == 0 || curve.us(bytes) > slower * free.us(bytes)) continue;
    machine_.collective_workers = curve.workers;
    return note(
        "collective_workers", Origin::measured,
        fmt::format("the fewest with which an allreduce of {} on {} ranks takes at most a tenth longer "
                    "than with the library's own choice",
                    format_bytes(bytes), size_));
  }
}

/// What a GEMM and collectives that have workers of their own take from each other, and whether a collective
/// that comes late finds any.
void Profiler::own_workers() {
  constexpr double assumed_traffic = 3;  // bytes of memory's for each on the wire: read, received, written
  constexpr double moved_bytes = 32 << 20, small_bytes = 1 << 20;
  constexpr std::int64_t k = 4096;
  if (!next("computation beside communication")) return;
  const TileShape shape = own_tile();
  const Plan product = plans_.tiled(shape, k, 2 * waves(shape, k)).plan;
  const std::int32_t taken = machine_.collective_workers;
  Beside what{.products = 1, .calls = 0, .bytes = moved_bytes, .workers = taken, .left = taken};
  const double alone = watch_.lane_us(plans_.beside(product, what), 0);
  what.calls = 4, what.products = 0;
  const double call = watch_.step_us(plans_.beside(product, what), 0, 0);
  // Calls that go on for as long as the product does; then products for as long as the calls. As in plans,
  // the product has its workers first.
  what.late = true;
  what.calls = static_cast<int>(1.5 * alone / call) + 1, what.products = 1;
  const double before = plans_.first_group(product);  // not slowed yet
  const double slower = (watch_.lane_us(plans_.beside(product, what), 0) / alone - before) / (1 - before);
  what.calls = 4, what.products = static_cast<int>(1.5 * what.calls * call / alone) + 1;
  const double beside = watch_.step_us(plans_.beside(product, what), 1, 1);

  Contention& found = machine_.contention;
  const double taken_gbps =
      assumed_traffic * wire_factor(Traffic::allreduce, size_) * moved_bytes / call * 1e-3;
  const double left_gbps = std::max(machine_.memory_gbps - taken_gbps, 0.05 * machine_.memory_gbps);
  found.channel_gbps = taken_gbps / taken;
  found.memory_share = std::clamp((slower - 1) / (machine_.memory_gbps / left_gbps - 1), 0.0, 1.0);
  found.collective_slowdown = std::max(beside / call - 1, 0.0);
  if (!can_.tiles.empty()) {
    const std::int32_t few = std::max(machine_.workers / 32, 1);
    const Plan late = plans_.beside(
        product,
        {.products = 1, .calls = 1, .bytes = small_bytes, .workers = 6 * few, .left = few, .late = true});
    found.persistent = watch_.lane_us(late, 1) > 0.9 * watch_.lane_us(late, 0);
  }
  note("contention", Origin::fitted,
       fmt::format(
           "allreduces of {} on {} workers slow a GEMM on the others by {:.1f}%, and it them by {:.1f}%; "
           "that memory traffic is three times the wire's is assumed",
           format_bytes(moved_bytes), taken, 100 * (slower - 1), 100 * (beside / call - 1)));
}

/// What a GEMM loses to collectives whose threads share its cores, of the time that these take alone.
void Profiler::shared_cores() {
  constexpr std::int64_t size = 1024;
  constexpr double bytes = size * size * 4, nothing = 4 * size * 4;
  if (!next("computation beside communication")) return;
  const Plan product = plans_.reduced_product(size);
  const auto plan = [&](int products, int calls, double moved) {
    return plans_.beside(product, {.products = products, .calls = calls, .bytes = moved});
  };
  const double gemms = at_one_pace(plan(4, 0, 0));
  const double call = watch_.lane_us(plan(0, 4, bytes), 0) / 4;
  const auto calls = std::max(1, static_cast<int>(0.3 * gemms / call));
  const double beside = at_one_pace(plan(4, calls, bytes));
  machine_.contention.steals = std::clamp((beside - gemms) / (calls * call), 0.0, 1.0);
  // Calls that move nothing to speak of, while products go on: what is left is meeting.
  constexpr int meetings = 20;
  const double idle = watch_.lane_us(plan(0, meetings, nothing), 0) / meetings;
  const double busy = watch_.lane_us(plan(8, meetings, nothing), 1) / meetings;
  machine_.contention.wake_us = std::max(busy - idle, 0.0);
  note("contention", Origin::measured,
       "GEMMs beside collectives that take 0.3 of their time, and beside many small ones");
}

}  // namespace shingle::tune
