#include "at_exit.hpp"

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

/// Never destroyed, because objects may outlast static destructors.
Registry& registry() {
  static Registry* const made = new Registry;
  return *made;
}

}  // namespace

AtExit::AtExit(std::function<void(int status)> act) : act_(std::move(act)), process_(::getpid()) {
  static const int registered = ::on_exit(act_all, nullptr);
  static_cast<void>(registered);
  const std::lock_guard lock(registry().mutex);
  registry().all.insert(this);
}

AtExit::~AtExit() {
  const std::lock_guard lock(registry().mutex);
  registry().all.erase(this);
}

void AtExit::act_all(int status, void*) {
  const std::lock_guard lock(registry().mutex);
  for (const AtExit* const one : registry().all)
    if (one->process_ == ::getpid()) one->act_(status);
}

}  // namespace shingle
