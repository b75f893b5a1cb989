#include "alarm.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace shingle {
namespace {

std::chrono::steady_clock::duration exit_patience{};
std::atomic<int> exit_holds{0};

/// Exit handler that bounds the time of the handlers and destructors that run after it.
void end_in_time(int status, void*) {
  const auto deadline = std::chrono::steady_clock::now() + exit_patience;
  while (exit_holds > 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      std::fflush(nullptr);
      std::fputs("shingle: the process ends without its exit handlers: a thread still releases devices\n",
                 stderr);
      ::_exit(status);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::thread([status] {
    std::this_thread::sleep_for(exit_patience);
    std::fputs("shingle: the process ends without the rest of its exit handlers: one of them blocks\n",
               stderr);
    ::_exit(status);
  }).detach();
}

}  // namespace

Alarm::Alarm(std::chrono::steady_clock::duration after, std::function<void()> ring)
    : thread_([this, after, ring = std::move(ring)] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, after, [this] { return off_; })) return;
        lock.unlock();
        ring();
      }) {}

Alarm::~Alarm() {
  {
    const std::lock_guard lock(mutex_);
    off_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

ExitHold::ExitHold() {
  ++exit_holds;
}

ExitHold::~ExitHold() {
  --exit_holds;
}

void bound_exit(std::chrono::steady_clock::duration patience) {
  static const int registered = [patience] {
    exit_patience = patience;
    return ::on_exit(end_in_time, nullptr);
  }();
  static_cast<void>(registered);
}

}  // namespace shingle
