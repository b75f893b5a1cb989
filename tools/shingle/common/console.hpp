// What the user sees: results on stdout, one line a failure and progress on stderr.
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

#include "shingle/common/launch.hpp"

namespace shingle::cli {

/// "shingle: …" on stderr, in one line whatever the message holds.
void print_failure(std::string_view message);

inline constexpr const char* unwritable_output = "standard output could not be written";

/// What failed in the middle of work. Every process of an MPI run says so for itself: each may have its own
/// reason.
void print_failure(const std::exception& error, const Launch& launch);

/// Something that the user should know, in one line on stderr: said once, and by one process of a launcher's.
void print_note(const std::string& message);

/// Shows what is being done and for how long. On a terminal: its last line, from the third second on, gone
/// when destroyed. On a pipe or in a file: a line every ten seconds, with the parts done, all parts and the
/// time that is left where they are known.
class Progress {
 public:
  struct Output {
    std::FILE* file = stderr;
    std::chrono::milliseconds every{10'000};  ///< between lines where it is no terminal
  };

  explicit Progress(bool enabled, Output output);
  explicit Progress(bool enabled) : Progress(enabled, Output{}) {}
  ~Progress();
  void now(std::string what);
  /// The work from here on has so many parts; the time that is left assumes that they take equally long.
  void expect(std::size_t parts);
  /// One of them is done.
  void advance();
  /// Prints to stdout at once, and not into the line above.
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
