#include "log.hpp"

#include <cstdio>
#include <mutex>
#include <utility>

namespace shingle {
namespace {

struct Log {
  std::mutex mutex;
  LogSink sink;
};

Log& the_log() {
  static auto* const log = new Log;  // never destroyed: destructors log during process exit
  return *log;
}

}  // namespace

void set_log_sink(LogSink sink) {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  std::swap(log.sink, sink);
}

void log_line(LogLevel level, const std::string& line) noexcept try {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  if (log.sink) {
    log.sink(level, line);
  } else if (level == LogLevel::warning) {
    std::fprintf(stderr, "shingle: %s\n", line.c_str());
  }
} catch (...) {  // a log has nowhere to report to
}

}  // namespace shingle
