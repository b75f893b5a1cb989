#include "log.hpp"

#include <mutex>
#include <set>
#include <string>

namespace shingle::nccl_tuner {
namespace {

/// True if no thread of this process has logged this line yet.
bool first_time(std::string_view line) {
  constexpr std::size_t most_lines = 1000;  // bounds the memory of remembered lines
  static std::mutex mutex;
  static std::set<std::string, std::less<>> said;
  const std::lock_guard guard(mutex);
  return said.size() < most_lines && said.emplace(line).second;
}

}  // namespace

void Log::warn(std::string_view line) const noexcept {
  bool first = true;
  try {
    first = first_time(line);
  } catch (...) {  // out of memory: may repeat the line
  }
  if (first) write(abi::log_warning, line);
}

void Log::inform(std::string_view line) const noexcept {
  write(abi::log_information, line);
}

void Log::write(int level, std::string_view line) const noexcept {
  if (logger_ == nullptr) return;
  char text[1024];
  const std::size_t length = line.copy(text, sizeof text - 1);
  text[length] = '\0';
  logger_(level, abi::log_tuning, "shingle", 0, "shingle tuner: %s", text);
}

}  // namespace shingle::nccl_tuner
