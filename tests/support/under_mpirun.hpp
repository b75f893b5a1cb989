// This program, started again under mpirun.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

namespace shingle::test {

struct MpiOutcome {
  int code = -1;
  std::string text;
  std::chrono::duration<double> time{};
};

/// This program under mpirun with `ranks` processes, running the tests that match `filter`. mpirun is killed
/// after two minutes.
inline MpiOutcome under_mpirun(int ranks, const std::string& filter) {
  const std::string command = "timeout -k 5 120 " + std::string(SHINGLE_TEST_MPIEXEC) + " -n " +
                              std::to_string(ranks) +
                              " --oversubscribe --allow-run-as-root --bind-to none /proc/" +
                              std::to_string(getpid()) + "/exe --gtest_filter='" + filter + "' 2>&1";
  const auto begin = std::chrono::steady_clock::now();
  MpiOutcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> part{};
  while (const std::size_t n = fread(part.data(), 1, part.size(), pipe)) outcome.text.append(part.data(), n);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.time = std::chrono::steady_clock::now() - begin;
  return outcome;
}

}  // namespace shingle::test
