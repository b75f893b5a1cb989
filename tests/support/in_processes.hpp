// A function of a test, run in several processes.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <vector>

namespace shingle::test {

/// Runs each rank in a process of its own. What it returns is its exit code, 255 where it throws; −1 stands
/// for a process that was killed, as all are after a minute.
inline std::vector<int> in_processes(int ranks, const std::function<int(int rank)>& run) {
  constexpr unsigned longest_s = 60;
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(longest_s);
      int code = 255;
      try {
        code = run(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      ::_exit(code);
    }
    children.push_back(child);
  }
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }
  return codes;
}

}  // namespace shingle::test
