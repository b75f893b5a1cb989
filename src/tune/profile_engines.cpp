// Phases of copy engines (DMA collectives, Figure 5), from time differences between small plans.
#include <algorithm>
#include <cmath>

#include "profiler.hpp"

namespace shingle::tuning {
namespace {

constexpr double small_bytes = 4 << 10;
/// Small sizes show the fixed phases; large sizes show the rate.
constexpr double sampled_bytes[] = {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 64 << 20};

/// t = at_none + bytes · slope, with the least relative error.
struct Line {
  double at_none = 0, slope = 0;
};

template <class Time>
Line line_through(Time time) {
  double w = 0, wb = 0, wbb = 0, wt = 0, wbt = 0;
  for (const double bytes : sampled_bytes) {
    const double us = time(bytes), weight = std::pow(us, -2);
    w += weight, wb += weight * bytes, wbb += weight * bytes * bytes;
    wt += weight * us, wbt += weight * bytes * us;
  }
  Line line;
  line.slope = (w * wbt - wb * wt) / (w * wbb - wb * wb);
  line.at_none = (wt - line.slope * wb) / w;
  return line;
}

double at_least_none(double us) {
  return std::max(us, 0.0);
}

}  // namespace

/// Skips engines that the host backend emulates: their phases are its options, not measurements.
void Profiler::engines() {
  constexpr int many = 6, few = 2, commands = 17, notifies = 9;
  if (size_ < 2 || !can_.remote_memory || can_.host_accessible || !next("copy engines")) return;
  const auto us = [&](const EngineWork& work) { return watch_.us(plans_.engines(work)); };
  const auto prelaunched = [&](double bytes) { return us({.bytes = bytes}); };
  const auto submitted = [&](int count, int each) {
    return us({.engines = count, .commands = each, .bytes = small_bytes, .prelaunched = false});
  };
  const double none = us({.commands = 0}), one = prelaunched(small_bytes);
  const Line copies = line_through(prelaunched);

  EnginePhases found;
  found.gbps = 1e-3 / copies.slope;
  found.copy_us = at_least_none(copies.at_none - none - machine_.link.latency_us);
  found.queued_us = at_least_none((us({.commands = commands, .bytes = small_bytes}) - one) / (commands - 1));
  found.sync_us = at_least_none((us({.bytes = small_bytes, .notifies = notifies}) - one) / (notifies - 1));
  found.poll_us = at_least_none(none - machine_.begin_us - machine_.signal_us - found.sync_us);
  // With several engines, only the last engine's queue shows in the time, plus all creation by the launching
  // thread.
  const double all = submitted(many, 1);
  found.control_us =
      at_least_none(((submitted(many, commands) - all) / (commands - 1) - found.queued_us) / many);
  found.schedule_us =
      at_least_none((all - submitted(few, 1)) / (many - few) - 2 * found.control_us);  // a copy, a notify
  const auto beyond = [&](EngineWork::Kind kind) {
    return at_least_none(us({.bytes = small_bytes, .kind = kind}) - one);
  };
  found.broadcast_us = beyond(EngineWork::Kind::broadcast);
  found.swap_us = beyond(EngineWork::Kind::swap);
  machine_.engine = found;
  note("engine", Origin::measured,
       "copies of 4 KiB to 64 MiB to the next rank, all ranks at once, and differences between plans of "
       "several commands, notifies and engines, with commands created by a thread of each rank");
}

}  // namespace shingle::tuning
