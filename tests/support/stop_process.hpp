// A process that is stopped, not dead.
#pragma once

#include <signal.h>
#include <unistd.h>

namespace shingle::test {

/// Stops this process, as SIGSTOP from outside would. A child of it kills it after so many seconds, if the
/// launcher has not: nothing is left behind, whatever happens.
inline void stop_this_process(int longest_s = 60) {
  constexpr int looks_a_second = 10;
  const pid_t self = ::getpid();
  if (::fork() == 0) {
    for (int fd = 0; fd < 1024; ++fd) ::close(fd);  // nobody waits for the end of an output because of it
    ::signal(SIGTERM, SIG_IGN);
    for (int look = 0; look < longest_s * looks_a_second; ++look) {
      if (::getppid() != self) ::_exit(0);
      ::usleep(1000000 / looks_a_second);
    }
    ::kill(self, SIGKILL);
    ::_exit(0);
  }
  ::raise(SIGSTOP);
}

}  // namespace shingle::test
