// Lines in NCCL's own log.
#pragma once

#include <string_view>

#include "abi.hpp"

namespace shingle::nccl_tuner {

/// Safe where an exception is being handled, and where there is no memory left.
class Log {
 public:
  explicit Log(abi::Logger logger) : logger_(logger) {}

  /// Shown with NCCL_DEBUG=WARN and above; the same line once a process, however many communicators meet it.
  void warn(std::string_view line) const noexcept;
  /// Shown with NCCL_DEBUG=INFO.
  void inform(std::string_view line) const noexcept;

 private:
  void write(int level, std::string_view line) const noexcept;

  abi::Logger logger_;
};

}  // namespace shingle::nccl_tuner
