#include "health.hpp"

#include <algorithm>
#include <thread>

namespace shingle::host {

void sleep_until(Clock::time_point time, const Health& health) {
  for (auto now = Clock::now(); now < time; now = Clock::now()) {
    health.check();
    std::this_thread::sleep_until(std::min<Clock::time_point>(time, now + health.attention()));
  }
}

}  // namespace shingle::host
