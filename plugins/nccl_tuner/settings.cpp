#include "settings.hpp"

#include <fmt/format.h>

#include <charconv>
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

/// Parses "host:port". IPv6 addresses are in brackets.
net::Address parse_address(const char* name, const std::string& text) {
  const auto colon = text.rfind(':');
  net::Address address{text.substr(0, colon)};
  const char* end = text.data() + text.size();
  if (colon != std::string::npos) {
    const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, address.port);
    if (error != std::errc{} || rest != end) address.port = 0;
  }
  if (address.host.starts_with('[') && address.host.ends_with(']'))
    address.host = address.host.substr(1, address.host.size() - 2);
  if (address.host.empty() || address.port < 1 || address.port > 65535)
    throw InvalidArgument(fmt::format("{}: '{}' is not HOST:PORT, such as node0:29500", name, text));
  return address;
}

double parse_time(const char* name, const std::string& text) {
  try {
    return parse_time_us(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", name, error.what()));
  }
}

/// A number of a variable that is set.
template <class Number>
Number parse_number(const char* name, const std::string& text, Number least, Number most) {
  Number value{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || rest != text.data() + text.size() || !(value >= least) || value > most)
    throw InvalidArgument(fmt::format("{}: '{}' is not a number from {} to {}", name, text, least, most));
  return value;
}

}  // namespace

Settings settings_from_environment() {
  Settings settings;
  settings.table = variable("SHINGLE_TUNER_TABLE");
  settings.learn = variable("SHINGLE_TUNER_LEARN");
  constexpr const char* turn = "SHINGLE_TUNER_TURN";
  settings.turn = variable(turn);
  if (settings.turn.size() > 64 || settings.turn.find('/') != std::string::npos)
    throw InvalidArgument(
        fmt::format("{}: '{}' has a slash or more than 64 characters", turn, settings.turn));
  constexpr const char* deadline = "SHINGLE_TUNER_DEADLINE";
  if (const std::string text = variable(deadline); !text.empty())
    settings.deadline = std::chrono::microseconds(static_cast<std::int64_t>(parse_time(deadline, text)));
  constexpr const char* rendezvous = "SHINGLE_TUNER_RENDEZVOUS";
  if (const std::string text = variable(rendezvous); !text.empty())
    settings.rendezvous = parse_address(rendezvous, text);
  constexpr const char* loss = "SHINGLE_TUNER_LOSS";
  if (const std::string text = variable(loss); !text.empty())
    settings.limits.loss = parse_number(loss, text, 1e-4, 1.0);
  constexpr const char* time = "SHINGLE_TUNER_TIME";
  if (const std::string text = variable(time); !text.empty())
    if (settings.limits.time_us = parse_time(time, text); settings.limits.time_us == 0)
      throw InvalidArgument(fmt::format("{}: '{}' leaves no time; unset it for no limit", time, text));
  settings.cupti = variable("SHINGLE_TUNER_CUPTI");
  return settings;
}

}  // namespace shingle::nccl_tuner
