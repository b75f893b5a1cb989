#include "watcher.hpp"

#include <utility>

namespace shingle {

void Watcher::start(std::chrono::steady_clock::duration interval, Actions actions) {
  thread_ = std::thread([this, interval, actions = std::move(actions)] { serve(interval, actions); });
}

void Watcher::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Watcher::serve(std::chrono::steady_clock::duration interval, const Actions& actions) {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval, [this] { return stopped_; })) {
    lock.unlock();
    if (!act(actions)) return;
    lock.lock();
  }
}

/// False after a failure.
bool Watcher::act(const Actions& actions) {
  int none = 0;
  if (!holds_.compare_exchange_strong(none, acting)) return true;
  bool sound = true;
  try {
    actions.look();
  } catch (...) {
    sound = false;
    actions.fail(std::current_exception());
  }
  holds_ = 0;
  holds_.notify_all();
  return sound;
}

void Watcher::Hold::take() {
  for (int held = holds_;;) {
    if (held == acting) {
      holds_.wait(acting);
      held = holds_;
    } else if (holds_.compare_exchange_weak(held, held + 1)) {
      return;
    }
  }
}

}  // namespace shingle
