// Estimate of a profile's duration, before it is measured. For display only.
#include <algorithm>
#include <bit>

#include "profiler.hpp"

namespace shingle::tuning {
namespace {

constexpr double first_run_s = 0.02;  // compiling a plan and filling its matrices
constexpr double again = 1.3;         // unsteady plans are timed again

}  // namespace

/// Seconds of `plans` plans: each runs once first, and is then timed.
double Profiler::runs_s(double plans, double us, bool multiplies) const {
  const double rest_us = multiplies ? watch_.timing().rest_us : 0;
  return plans * (first_run_s + 1e-6 * ((options_.repeat + 1) * us + options_.repeat * rest_us));
}

/// The largest calls of a curve take the most time: up to 80 ms on cores, a few milliseconds on links.
double Profiler::collectives_s() const {
  constexpr double calls_of_cores_us = 1.2e5, calls_of_links_us = 1e4;
  constexpr int kinds = 4, sizes = 9, numbers_of_workers = 7;
  const int curves = kinds * (calls_take_ ? numbers_of_workers : 1);
  const int worlds = std::bit_width(static_cast<unsigned>(size_)) - 1;
  return curves * worlds *
         (sizes * first_run_s + runs_s(1, calls_take_ ? calls_of_links_us : calls_of_cores_us, false));
}

double Profiler::contention_s() const {
  if (size_ < 2) return 0;
  constexpr int samples_of_channels = 32, samples_of_cores = 9;
  const double us = 8 * reference_us_.front() + 2 * watch_.timing().run_us;
  return calls_take_ ? runs_s(samples_of_channels, us, true) : 4 * runs_s(samples_of_cores, us, true);
}

double Profiler::expected_s() {
  constexpr int others = 66;  // plans of steps, passes, engines, products, edges, attention
  if (reference_us_.empty()) reference_us();
  double seconds = contention_s();
  if (!options_.contention_only && options_.chunk_bytes == 0) {
    seconds += tiles_s() + runs_s(others, 2 * watch_.timing().run_us, true);
    if (size_ > 1) seconds += collectives_s();
  }
  return again * seconds;
}

}  // namespace shingle::tuning
