// Console output: results on stdout; failures, one line each, and progress on stderr.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "shingle/common/process_launch.hpp"

namespace shingle::cli {

/// Prints "shingle: …" to stderr, as one line whatever the message holds.
void print_failure(std::string_view message);

inline constexpr const char* unwritable_output = "standard output could not be written";

/// Prints a failure during work. Every process of an MPI run prints its own, because reasons may differ.
void print_failure(const std::exception& error, const ProcessLaunch& launch);

/// Prints a note for the user as one line on stderr: only once, and by one of a launcher's processes.
void print_note(const std::string& message);

/// Shows what is being done and for how long. On a terminal it uses the last line, from the third second on,
/// and erases it when destroyed. On a pipe or in a file it prints a line every ten seconds. These lines hold
/// the parts done, all parts and the time left, if known.
class Progress {
 public:
  struct Output {
    std::FILE* file = stderr;
    std::chrono::milliseconds every{10'000};  ///< between lines that do not go to a terminal
  };

  explicit Progress(bool enabled, Output output);
  explicit Progress(bool enabled) : Progress(enabled, Output{}) {}
  ~Progress();
  void now(std::string what);
  /// Sets the number of parts of the remaining work. The time left assumes that all parts take equally long.
  void expect(std::size_t parts);
  /// One part is done.
  void advance();
  /// Prints to stdout at once, without mixing with the progress line.
  void print(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  void show();
  void report();
  std::string line() const;

  const Output output_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string what_;
  std::size_t parts_ = 0, parts_done_ = 0;  ///< 0 parts: not known
  Clock::time_point expected_ = start_;     ///< when the parts were begun
  bool done_ = false;
  std::thread painter_;
};

}  // namespace shingle::cli
