#include "at_exit.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace shingle {
namespace {

struct Registry {
  const pid_t process = ::getpid();
  std::mutex mutex;
  std::set<const AtExit*> all;
};

/// The registry of this process. It is never destroyed, because objects may outlast static destructors.
///
/// A forked child gets one of its own. If another thread of the parent held the lock at the fork, no thread
/// of the child would ever release it.
Registry& registry() {
  static constinit std::atomic<Registry*> current{nullptr};
  Registry* found = current;
  while (found == nullptr || found->process != ::getpid()) {
    auto made = std::make_unique<Registry>();
    if (current.compare_exchange_strong(found, made.get())) return *made.release();
  }
  return *found;
}

}  // namespace

AtExit::AtExit(std::function<void(int status)> act) : act_(std::move(act)), process_(::getpid()) {
  static const int registered = ::on_exit(act_all, nullptr);
  static_cast<void>(registered);
  const std::lock_guard lock(registry().mutex);
  registry().all.insert(this);
}

AtExit::~AtExit() {
  if (process_ != ::getpid()) return;  // a forked child's copy
  const std::lock_guard lock(registry().mutex);
  registry().all.erase(this);
}

void AtExit::act_all(int status, void*) {
  const std::lock_guard lock(registry().mutex);
  for (const AtExit* const one : registry().all) one->act_(status);
}

}  // namespace shingle
