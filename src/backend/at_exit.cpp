#include "at_exit.hpp"

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

namespace shingle {
namespace {

/// A list without nodes of its own: nothing is allocated under the lock, where a fork may wait.
struct Registry {
  std::mutex mutex;
  AtExit* first = nullptr;
};

/// It is never destroyed, because objects may outlast static destructors.
Registry& registry() {
  static Registry* const one = new Registry;
  return *one;
}

/// Lets a fork wait for the lock: no thread of a child would release one that another thread of its parent
/// held. The child has none of its parent's objects. Returns 0, or an error number.
int prepare_for_forks() {
  return ::pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                          [] {
                            registry().first = nullptr;
                            registry().mutex.unlock();
                          });
}

}  // namespace

AtExit::AtExit(std::function<void(int status)> act) : act_(std::move(act)), process_(::getpid()) {
  static const bool registered = prepare_for_forks() == 0 && ::on_exit(act_all, nullptr) == 0;
  if (!registered) throw std::bad_alloc();
  const std::lock_guard lock(registry().mutex);
  next_ = registry().first;
  link_ = &registry().first;
  if (next_ != nullptr) next_->link_ = &next_;
  *link_ = this;
}

AtExit::~AtExit() {
  if (process_ != ::getpid()) return;  // a forked child's copy
  const std::lock_guard lock(registry().mutex);
  *link_ = next_;
  if (next_ != nullptr) next_->link_ = link_;
}

void AtExit::act_all(int status, void*) {
  const std::lock_guard lock(registry().mutex);
  for (const AtExit* one = registry().first; one != nullptr; one = one->next_) one->act_(status);
}

}  // namespace shingle
