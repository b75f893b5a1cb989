#include "shingle/console.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>

namespace shingle::cli {
namespace {

constexpr const char* erase_line = "\r\033[K";

}  // namespace

void print_failure(std::string_view message) {
  std::string line(message);
  std::replace_if(line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  fmt::print(stderr, "shingle: {}\n", line);
}

void print_failure(const std::exception& error, const Launch& launch) {
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const std::string_view what = no_memory ? "out of memory" : error.what();
  const bool named = !launch.processes() || what.starts_with("rank ");
  print_failure(named ? std::string(what) : fmt::format("rank {}: {}", launch.rank, what));
}

Progress::Progress(bool enabled) {
  if (enabled && isatty(STDERR_FILENO) != 0) painter_ = std::thread(&Progress::show, this);
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

void Progress::print(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (painter_.joinable()) fmt::print(stderr, "{}", erase_line);
  fmt::print("{}", text);
  std::fflush(stdout);
}

void Progress::show() {
  std::unique_lock lock(mutex_);
  if (changed_.wait_until(lock, start_ + std::chrono::seconds(2), [this] { return done_; })) return;
  do {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    // One line of any terminal: what wraps could not be erased.
    fmt::print(stderr, "{}{:.79}", erase_line, fmt::format("{:.0f} s  {}", elapsed.count(), what_));
    std::fflush(stderr);
  } while (!changed_.wait_for(lock, std::chrono::milliseconds(200), [this] { return done_; }));
  fmt::print(stderr, "{}", erase_line);
  std::fflush(stderr);
}

}  // namespace shingle::cli
