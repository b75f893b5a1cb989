#include "monitor.hpp"

#include <fmt/format.h>

#include <thread>

#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::cuda {

Monitor::Monitor(CudaWorld& world)
    : world_(world),
      timeout_us_(world.options().timeout_us),
      of_kernels_(new WaitTimeout(timeout_us_), UnlessHopeless{world.shared_health()}) {}

void Monitor::set_timeout_us(double timeout_us) {
  timeout_us_ = timeout_us;
  of_kernels_->set_us(timeout_us);
}

void Monitor::begin() {
  next_end_ = deadline_in(timeout_us_ + epoch_slack_us);
}

void Monitor::watch() {
  require_sound();
  world_.watch();
  require_progress();
}

void Monitor::require_progress() {
  std::size_t ended = 0, added = 0;
  for (const Rank& rank : ranks_) ended += rank.backlog->ended(), added += rank.backlog->added();
  if (ended != ended_ || ended == added) {
    ended_ = ended;
    return begin();
  }
  if (Clock::now() > next_end_)
    throw UnnamedTimeout(fmt::format("rank {}: no epoch has ended for {}", ranks_.front().local->rank(),
                                     format_us(timeout_us_)),
                         ranks_.front().local->rank());
}

void Monitor::require_sound() const {
  for (const Rank& rank : ranks_)
    if (rank.local->aborted()) throw UnnamedTimeout(diagnosis(), rank.local->rank());
}

void Monitor::require_working() const {
  world_.health().require();
  try {
    require_sound();
  } catch (...) {
    world_.fail_and_throw(std::current_exception());
  }
}

void Monitor::run_on_all(Launchers& launchers, std::function<void(std::size_t)> action, double timeout_us) {
  constexpr double slack_us = 10e6;  // extra time for threads that keep their own deadline
  begin();
  launchers.run(std::move(action), timeout_us + slack_us, [this] { watch(); });
}

void Monitor::wait_until(const std::function<bool()>& done) {
  begin();
  for (auto look = Clock::now() + attention; !done(); std::this_thread::sleep_for(nap)) {
    const auto now = Clock::now();
    if (now < look) continue;
    watch();
    look = now + attention;
  }
  require_sound();
}

void Monitor::wait_for(const Stream& stream) const {
  const auto deadline = deadline_in(timeout_us_ + epoch_slack_us);
  for (const auto brisk = Clock::now() + attention; !stream.idle();) {
    require_sound();
    const auto now = Clock::now();
    if (now > deadline)
      throw Timeout(fmt::format("an upload to the device has not ended for {}", format_us(timeout_us_)));
    if (now > brisk) std::this_thread::sleep_for(nap);
  }
}

void Monitor::make_room(int rank, Backlog& backlog, std::size_t launches,
                        const std::function<bool()>& failed) const {
  if (!backlog.full(launches)) return;
  const auto deadline = deadline_in(timeout_us_ + epoch_slack_us);
  while (backlog.full(launches)) {
    require_sound();
    if (failed()) throw Timeout("another rank has failed");
    if (Clock::now() > deadline)
      throw UnnamedTimeout(fmt::format("rank {}: no epoch has ended for {}", rank, format_us(timeout_us_)),
                           rank);
    std::this_thread::sleep_for(nap);
  }
}

/// Names the waits that passed their deadline: rank, counter, value seen, value wanted.
std::string Monitor::diagnosis() const {
  std::string text;
  for (const Rank& rank : ranks_) {
    if (!rank.local->aborted()) continue;
    const Stall stall = rank.local->stall();
    if (stall.counter == nullptr) continue;
    text += fmt::format("{}rank {} {}", text.empty() ? "" : "; ", rank.local->rank(), world_.describe(stall));
  }
  return text.empty() ? "a wait on a device was ended" : text;
}

}  // namespace shingle::cuda
