// Lines in NCCL's own log.
#pragma once

#include <string>

#include "abi.hpp"

namespace shingle::nccl_tuner {

class Log {
 public:
  explicit Log(abi::Logger logger) : logger_(logger) {}

  /// Shown with NCCL_DEBUG=WARN and above; the same line once a process, however many communicators meet it.
  void warn(const std::string& line) const noexcept;
  /// Shown with NCCL_DEBUG=INFO.
  void inform(const std::string& line) const noexcept;

 private:
  abi::Logger logger_;
};

}  // namespace shingle::nccl_tuner
