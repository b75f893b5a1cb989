// Log lines of the library.
#pragma once

#include <functional>
#include <string>

namespace shingle {

enum class LogLevel { debug, info, warning };

/// Gets lines without a line break, one at a time. It must not log.
using LogSink = std::function<void(LogLevel, const std::string& line)>;

/// Sends lines to `sink`. Empty: warnings go to stderr, other lines nowhere, as at first. When it returns,
/// the previous sink is not called any more.
void set_log_sink(LogSink sink);
/// Exceptions of the sink are dropped.
void log_line(LogLevel level, const std::string& line) noexcept;

}  // namespace shingle
