#include "shingle/common/console.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <set>

namespace shingle::cli {
namespace {

constexpr const char* erase_line = "\r\033[K";

/// Returns, for example, "75 s" or "12 min".
std::string rounded(std::chrono::duration<double> time) {
  constexpr double longest_s = 120;
  return time.count() < longest_s ? fmt::format("{:.0f} s", time.count())
                                  : fmt::format("{:.0f} min", time.count() / 60);
}

}  // namespace

void print_failure(std::string_view message) {
  std::string line(message);
  std::replace_if(line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  fmt::print(stderr, "shingle: {}\n", line);
}

void print_failure(const std::exception& error, const ProcessLaunch& launch) {
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  // fmt's message names only "a file".
  const bool no_output = std::ferror(stdout) != 0;
  const std::string_view what = no_memory ? "out of memory" : no_output ? unwritable_output : error.what();
  const bool named = !launch.processes() || what.starts_with("rank ");
  print_failure(named ? std::string(what) : fmt::format("rank {}: {}", launch.rank, what));
}

void print_note(const std::string& message) {
  static std::set<std::string> said;
  if (find_process_launch().speaks() && said.insert(message).second) print_failure("note: " + message);
}

Progress::Progress(bool enabled, Output output)
    : output_(output), terminal_(isatty(fileno(output.file)) != 0) {
  if (enabled) painter_ = std::thread(terminal_ ? &Progress::show : &Progress::report, this);
}

Progress::~Progress() {
  if (!painter_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  painter_.join();
}

void Progress::now(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Progress::expect(std::size_t parts) {
  const std::lock_guard lock(mutex_);
  parts_ = parts, parts_done_ = 0;
  expected_ = Clock::now();
}

void Progress::advance() {
  const std::lock_guard lock(mutex_);
  ++parts_done_;
}

void Progress::print(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (painter_.joinable() && terminal_) fmt::print(output_.file, "{}", erase_line);
  fmt::print("{}", text);
  std::fflush(stdout);
}

void Progress::show() {
  std::unique_lock lock(mutex_);
  if (changed_.wait_until(lock, start_ + std::chrono::seconds(2), [this] { return done_; })) return;
  do {
    const std::chrono::duration<double> elapsed = Clock::now() - start_;
    // 79 columns fit one line of any terminal; a wrapped line could not be erased.
    fmt::print(output_.file, "{}{:.79}", erase_line, fmt::format("{:.0f} s  {}", elapsed.count(), what_));
    std::fflush(output_.file);
  } while (!changed_.wait_for(lock, std::chrono::milliseconds(200), [this] { return done_; }));
  fmt::print(output_.file, "{}", erase_line);
  std::fflush(output_.file);
}

void Progress::report() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, output_.every, [this] { return done_; })) {
    fmt::print(output_.file, "{}\n", line());
    std::fflush(output_.file);
  }
}

std::string Progress::line() const {
  std::string text = "shingle: " + rounded(Clock::now() - start_);
  if (parts_ > 0) text += fmt::format(", {} of {} done", parts_done_, parts_);
  if (parts_done_ > 0 && parts_done_ < parts_)
    text += fmt::format(", about {} left",
                        rounded((Clock::now() - expected_) * (static_cast<double>(parts_ - parts_done_) /
                                                              static_cast<double>(parts_done_))));
  return what_.empty() ? text : text + ": " + what_;
}

}  // namespace shingle::cli
