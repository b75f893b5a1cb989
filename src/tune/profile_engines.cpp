// Phases of copy engines (DMA collectives, Figure 5), from the times of small plans.
#include <algorithm>

#include "least_squares.hpp"
#include "profiler.hpp"

namespace shingle::tuning {
namespace {

constexpr double small_bytes = 4 << 10;
/// Small sizes show the fixed phases; large sizes show the rate.
constexpr double sampled_bytes[] = {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 64 << 20};
/// A single engine would copy while the launching thread creates its next commands.
constexpr int sampled_engines[] = {2, 4, 6};
constexpr int sampled_commands[] = {1, 5, 17};

double at_least_none(double us) {
  return std::max(us, 0.0);
}

}  // namespace

/// Skips engines that the host backend emulates: their phases are its options, not measurements.
void Profiler::engines() {
  constexpr int commands = 17, notifies = 9;
  if (size_ < 2 || !can_.remote_memory || can_.host_accessible || !next("copy engines")) return;
  const auto us = [&](const EngineWork& work) { return watch_.us(plans_.engines(work)); };
  const auto prelaunched = [&](double bytes) { return us({.bytes = bytes}); };
  const double none = us({.commands = 0}), one = prelaunched(small_bytes);
  std::vector<SumSample<2>> copies;
  for (const double bytes : sampled_bytes) copies.push_back({{1, bytes}, prelaunched(bytes)});
  const auto [copy_us, byte_us] = fit_sums(copies);

  EnginePhases found;
  found.gbps = byte_us > 0 ? 1e-3 / byte_us : 0;
  found.copy_us = at_least_none(copy_us - none - machine_.link.latency_us);
  found.queued_us = at_least_none((us({.commands = commands, .bytes = small_bytes}) - one) / (commands - 1));
  found.sync_us = at_least_none((us({.bytes = small_bytes, .notifies = notifies}) - one) / (notifies - 1));
  found.poll_us = at_least_none(none - machine_.begin_us - machine_.signal_us - found.sync_us);
  // With several engines, only the last engine's queue shows in the time, plus all creation by the launching
  // thread: of copies and a notify.
  std::vector<SumSample<3>> launches;
  for (const int engines : sampled_engines)
    for (const int count : sampled_commands) {
      const double all =
          us({.engines = engines, .commands = count, .bytes = small_bytes, .prelaunched = false});
      const double created = all - (count - 1) * found.queued_us, each = engines;
      if (created > 0) launches.push_back({{1, each * (count + 1), each}, created});
    }
  const auto begun = fit_sums(launches);
  found.control_us = begun[1];
  found.schedule_us = begun[2];
  const auto beyond = [&](EngineWork::Kind kind) {
    return at_least_none(us({.bytes = small_bytes, .kind = kind}) - one);
  };
  found.broadcast_us = beyond(EngineWork::Kind::broadcast);
  found.swap_us = beyond(EngineWork::Kind::swap);
  machine_.engine = found;
  note("engine", Origin::measured,
       "copies of 4 KiB to 64 MiB to the next rank, all ranks at once; several commands, notifies and "
       "engines, with commands created by a thread of each rank");
}

}  // namespace shingle::tuning
