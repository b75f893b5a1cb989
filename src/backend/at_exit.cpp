#include "at_exit.hpp"

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>

namespace shingle {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<const AtExit*> all;
};

/// It is never destroyed, because objects may outlast static destructors.
Registry& registry() {
  static Registry* const one = new Registry;
  return *one;
}

/// Lets a fork wait for the lock: no thread of a child would release one that another thread of its parent
/// held. The child has none of its parent's objects.
void prepare_for_forks() {
  ::pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     registry().all.clear();
                     registry().mutex.unlock();
                   });
}

}  // namespace

AtExit::AtExit(std::function<void(int status)> act) : act_(std::move(act)), process_(::getpid()) {
  static const int registered = (prepare_for_forks(), ::on_exit(act_all, nullptr));
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
