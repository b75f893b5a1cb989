#include "at_exit.hpp"

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>

namespace shingle {
namespace {

/// A list without nodes of its own: nothing is allocated under the lock, where a fork may wait.
struct Registry {
  std::mutex mutex;
  AtExit* first = nullptr;
  bool acts = false;  // whether exit() calls the actions
};
static_assert(std::is_trivially_destructible_v<Registry>, "objects may outlast static destructors");

constinit Registry registry;

/// Lets a fork wait for the lock: no thread of a child would release one that another thread of its parent
/// held. The child has none of its parent's objects. Registered when the library is loaded: a thread that did
/// it later would itself hold a lock (of the local static, of the list of exit handlers) at another's fork.
const bool forks_wait = ::pthread_atfork([] { registry.mutex.lock(); }, [] { registry.mutex.unlock(); },
                                         [] {
                                           registry.first = nullptr;
                                           registry.mutex.unlock();
                                         }) == 0;

}  // namespace

AtExit::AtExit(std::function<void(int status)> act) : act_(std::move(act)), process_(::getpid()) {
  const std::lock_guard lock(registry.mutex);
  // Not when the library is loaded: the last registered acts first, and this one must act before the handlers
  // of the libraries that the actions call.
  if (!registry.acts) registry.acts = forks_wait && ::on_exit(act_all, nullptr) == 0;
  if (!registry.acts) throw std::bad_alloc();
  next_ = registry.first;
  link_ = &registry.first;
  if (next_ != nullptr) next_->link_ = &next_;
  *link_ = this;
}

AtExit::~AtExit() {
  if (process_ != ::getpid()) return;  // a forked child's copy
  const std::lock_guard lock(registry.mutex);
  *link_ = next_;
  if (next_ != nullptr) next_->link_ = link_;
}

void AtExit::act_all(int status, void*) {
  const std::lock_guard lock(registry.mutex);
  for (const AtExit* one = registry.first; one != nullptr; one = one->next_) one->act_(status);
}

}  // namespace shingle
