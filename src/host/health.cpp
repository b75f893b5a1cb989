#include "health.hpp"

#include <algorithm>
#include <thread>

namespace shingle::host {

std::string Health::reason() const {
  try {
    if (const auto first = error()) std::rethrow_exception(first);
  } catch (const std::exception& failure) {
    return failure.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
  return {};
}

void sleep_until(Clock::time_point time, const Health& health) {
  for (auto now = Clock::now(); now < time; now = Clock::now()) {
    health.check();
    std::this_thread::sleep_until(std::min<Clock::time_point>(time, now + health.attention()));
  }
}

}  // namespace shingle::host
