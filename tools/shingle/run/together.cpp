#include "shingle/run/together.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>

#include "shingle/common/console.hpp"
#include "shingle/common/process_launch.hpp"

namespace shingle::cli {

void together(World& world, const std::function<void()>& work) {
  using namespace std::chrono_literals;
  if (static_cast<int>(world.local_ranks().size()) == world.size()) return work();
  std::future<void> done = std::async(std::launch::async, work);
  const auto is_done = [&](std::chrono::milliseconds within) {
    return done.wait_for(within) == std::future_status::ready;
  };
  try {
    while (world.all_max({is_done(50ms) ? 0.0 : 1.0})[0] > 0) {
    }
  } catch (const std::exception& error) {
    if (is_done(1000ms)) throw;
    print_failure(error, find_process_launch());
    std::fflush(nullptr);
    std::_Exit(1);
  }
  done.get();
}

}  // namespace shingle::cli
