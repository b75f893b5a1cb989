// Lines in NCCL's own log.
#pragma once

#include <string_view>

#include "abi.hpp"

namespace shingle::nccl_tuner {

/// Safe in exception handlers and without free memory.
class Log {
 public:
  explicit Log(abi::Logger logger) : logger_(logger) {}

  /// Shown with NCCL_DEBUG=WARN and above. The same line appears once per process, for all communicators.
  void warn(std::string_view line) const noexcept;
  /// Shown with NCCL_DEBUG=INFO.
  void inform(std::string_view line) const noexcept;

 private:
  void write(int level, std::string_view line) const noexcept;

  abi::Logger logger_;
};

}  // namespace shingle::nccl_tuner
