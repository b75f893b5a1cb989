#include "overdue.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "backend/launch.hpp"
#include "backend/neighbours.hpp"
#include "shingle/base/units.hpp"

namespace shingle::host {

Overdue::Overdue(const char* what, Clock::duration patience, Means means)
    : what_(what), patience_(patience), means_(means), thread_([this] { watch(); }) {}

Overdue::~Overdue() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Overdue::watch() {
  constexpr std::chrono::seconds between_looks{1};
  std::unique_lock lock(mutex_);
  auto since = Clock::now();
  std::string stopped;
  for (;;) {
    const auto look = std::min(since + patience_, Clock::now() + between_looks);
    if (changed_.wait_until(lock, look, [this] { return done_; })) return;
    const auto now = Clock::now();
    if (means_ == Means::anybody_late && now < since + patience_) continue;
    stopped = stopped_neighbours();
    if (means_ == Means::somebody_stopped && stopped.empty()) since = now;
    if (now < since + patience_) continue;
    fmt::print(stderr, "shingle: rank {}: waited {} in {} for the other processes{}\n", find_launcher().rank,
               format_us(to_us(patience_)), what_, stopped);
    std::fflush(nullptr);
    ::_exit(1);
  }
}

}  // namespace shingle::host
