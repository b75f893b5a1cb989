// What the user sees: results on stdout, one line a failure and progress on stderr.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "shingle/launch.hpp"

namespace shingle::cli {

/// "shingle: …" on stderr, in one line whatever the message holds.
void print_failure(std::string_view message);

/// What failed in the middle of work. Every process of an MPI run says so for itself: each may have its own
/// reason.
void print_failure(const std::exception& error, const Launch& launch);

/// Shows what is being done and for how long, on the last line of a terminal, from the third second on.
/// Silent where stderr is no terminal, and gone when destroyed.
class Progress {
 public:
  explicit Progress(bool enabled);
  ~Progress();
  void now(std::string what);
  /// Prints to stdout at once, and not into the line above.
  void print(const std::string& text);

 private:
  void show();

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string what_;
  bool done_ = false;
  std::thread painter_;
};

}  // namespace shingle::cli
