#include "settings.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>

#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::nccl_tuner {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Settings settings_from_environment() {
  Settings settings{.table = variable("SHINGLE_TUNER_TABLE"), .learn = variable("SHINGLE_TUNER_LEARN")};
  constexpr const char* deadline = "SHINGLE_TUNER_DEADLINE";
  if (const std::string text = variable(deadline); !text.empty()) {
    try {
      settings.deadline = std::chrono::microseconds(static_cast<std::int64_t>(parse_time_us(text)));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("{}: {}", deadline, error.what()));
    }
  }
  return settings;
}

}  // namespace shingle::nccl_tuner
