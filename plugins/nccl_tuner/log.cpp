#include "log.hpp"

#include <mutex>
#include <set>

namespace shingle::nccl_tuner {
namespace {

/// Whether nobody in this process has said so yet.
bool first_time(const std::string& line) {
  constexpr std::size_t most_lines = 1000;  // who reads further?
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard guard(mutex);
  return said.size() < most_lines && said.insert(line).second;
}

}  // namespace

void Log::warn(const std::string& line) const noexcept try {
  if (logger_ != nullptr && first_time(line))
    logger_(abi::log_warning, abi::log_tuning, "shingle", 0, "shingle tuner: %s", line.c_str());
} catch (...) {  // out of memory: then in silence
}

void Log::inform(const std::string& line) const noexcept {
  if (logger_ != nullptr)
    logger_(abi::log_information, abi::log_tuning, "shingle", 0, "shingle tuner: %s", line.c_str());
}

}  // namespace shingle::nccl_tuner
