// Actions for the exit of the process.
#pragma once

#include <sys/types.h>

#include <functional>

namespace shingle {

/// Calls `act` with the exit status if the process exits while this object exists: by exit() or by returning
/// from main(), not by _exit() or a signal, nor in a forked child. `act` must neither throw nor fork, nor
/// make or destroy an AtExit. A fork waits for `act` to return if it has begun.
class AtExit {
 public:
  /// Throws std::bad_alloc.
  explicit AtExit(std::function<void(int status)> act);
  /// Waits for `act` to return if it has begun.
  ~AtExit();
  AtExit(const AtExit&) = delete;
  AtExit& operator=(const AtExit&) = delete;

 private:
  static void act_all(int status, void*);

  const std::function<void(int)> act_;
  const pid_t process_;
  AtExit* next_ = nullptr;   // made before this one
  AtExit** link_ = nullptr;  // what points here
};

}  // namespace shingle
