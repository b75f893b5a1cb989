#include "shingle/tune/profile.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "profiler.hpp"
#include "shingle/base/error.hpp"

namespace shingle {
namespace tuning {
namespace {

/// The base machine with the workers for which the world's plans are made.
Machine base_of(const World& world, const ProfileOptions& options) {
  const Machine& own = world.machine();
  if (!options.base) {
    Machine machine = own;
    machine.ranks = world.size();
    return machine;
  }
  if (options.base->workers != own.workers)
    throw InvalidArgument(fmt::format("base {} has {} workers, this machine {}; use a base with as many",
                                      options.base->name, options.base->workers, own.workers));
  Machine machine = *options.base;
  machine.ranks = std::max(machine.ranks, world.size());
  return machine;
}

}  // namespace

Profiler::Profiler(World& world, const ProfileOptions& options)
    : world_(world),
      options_(options),
      can_(world.capabilities()),
      dtype_(options.dtype.value_or(can_.native_dtypes.front())),
      machine_(base_of(world, options)),
      size_(world.size()),
      calls_take_(world.machine().collective_workers > 0),
      watch_(world, options.repeat, options.timeout_us, options.most_spread),
      plans_(machine_, size_, dtype_, !can_.tiles.empty()) {}

Profiled Profiler::go() && {
  if (options_.chunk_bytes > 0 && !(calls_take_ && size_ > 1))
    throw InvalidArgument(
        "a chunk size needs collectives of several ranks that occupy workers: cuda with at least 2 ranks");
  if (options_.expects) {
    const double seconds = expected_s(), budget_s = options_.budget_us * 1e-6;
    options_.expects(budget_s > 0 ? std::min(seconds, budget_s) : seconds);
    watch_.take_spreads();
  }
  if (options_.contention_only || options_.chunk_bytes > 0) {
    contention();
    judge();
    say_what_the_backend_says();
    return {std::move(machine_), std::move(unsteady_), std::move(left_)};
  }
  steps();
  memory();
  if (can_.tiles.empty()) {
    tiles();
    edges();
  } else {
    hooked();  // tiles() subtracts hooked_us
    tiles();
    library();
    picking();
  }
  attention();
  settle();
  engines();
  if (size_ > 1) {
    collectives(size_);
    lone_calls();
    choose_workers();
    contention();
    for (auto ranks = std::bit_floor(static_cast<unsigned>(size_ - 1)); ranks > 1; ranks /= 2)
      collectives(static_cast<int>(ranks));
  }
  judge();
  say_what_the_backend_says();
  if (!left_.empty() && options_.progress)
    options_.progress(fmt::format("the budget is spent; figures from {}: {}",
                                  options_.base ? options_.base->name : "the backend",
                                  fmt::join(left_, ", ")));
  std::ranges::stable_sort(unsteady_, std::ranges::greater{}, &Unsteady::spread);
  return {std::move(machine_), std::move(unsteady_), std::move(left_)};
}

/// Judges by the median spread over the plans, because one plan may meet a busy moment.
void Profiler::judge() {
  std::vector<double> spreads = watch_.take_spreads();
  if (spreads.empty() || options_.most_spread <= 0) return;
  std::ranges::sort(spreads);
  if (const double spread = spreads[spreads.size() / 2]; spread > options_.most_spread)
    unsteady_.push_back({now_, spread});
}

bool Profiler::next(const std::string& what) {
  judge();
  now_ = what;
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin_;
  // All processes must take the same branch.
  if (options_.budget_us > 0 && world_.all_max({spent.count()})[0] > options_.budget_us) {
    left_.push_back(what);
    return false;
  }
  if (options_.progress) options_.progress(fmt::format("{:6.1f} s  {}", spent.count() * 1e-6, what));
  return true;
}

void Profiler::note(const std::string& of, Origin origin, std::string text) {
  std::erase_if(machine_.sources, [&](const Source& source) { return source.of == of; });
  machine_.sources.push_back({of, origin, std::move(text)});
}

void Profiler::note_part(const std::string& of, Origin origin, std::string text) {
  const std::string rest = "otherwise: ";
  std::erase_if(machine_.sources, [&](const Source& source) {
    return source.of == of && (source.note == text || source.note == rest + text);
  });
  for (Source& source : machine_.sources)
    if (source.of == of && !source.note.starts_with(rest)) source.note = rest + source.note;
  machine_.sources.push_back({of, origin, std::move(text)});
}

/// Notes figures that come from the backend rather than from a timed plan.
void Profiler::say_what_the_backend_says() {
  if (!options_.base) {
    note("ranks", Origin::measured, "of the world that was measured");
    note("peer_memory", Origin::measured, "as the backend says");
  }
  for (const char* of : {"workers", "ranks", "collective_workers", "tile", "peer_memory", "topology"})
    if (std::ranges::none_of(machine_.sources, [&](const Source& source) { return source.of == of; }))
      note(of, Origin::measured, "as the backend says");
}

}  // namespace tuning

Profiled profile_steadily(World& world, const ProfileOptions& options) {
  return tuning::Profiler(world, options).go();
}
Machine profile(World& world, const ProfileOptions& options) {
  return profile_steadily(world, options).machine;
}

std::string describe(const std::vector<Unsteady>& unsteady) {
  std::string text;
  for (const Unsteady& at : unsteady)
    text += fmt::format("{}{} by {:.0f}%", text.empty() ? "" : ", ", at.what, 100 * at.spread);
  return text;
}

}  // namespace shingle
