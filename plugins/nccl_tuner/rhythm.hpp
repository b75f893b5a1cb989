// Finds how many equal sequences of calls make an iteration of a program.
//
// The calls alone do not tell: a program that sums the same bytes in each of its layers makes one call again
// and again. But iterations have a rhythm. The host enqueues the calls of one in a burst, then waits.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

namespace shingle::nccl_tuner {

class Rhythm {
 public:
  using Clock = std::chrono::steady_clock;

  /// Forgets what came before.
  void restart() {
    last_.reset();
    pauses_.clear();
    passed_us_ = 0;
  }
  /// Called when a sequence begins. Returns the number of sequences in an iteration once they can be told
  /// apart: after 2 s and five of the longest pauses, or 30 s. It is 1 if pauses do not repeat.
  std::optional<std::size_t> on_begin(Clock::time_point now);

  /// Sequences after which it is decided in any case, in a few ms; an iteration has at most a quarter of
  /// them.
  static constexpr std::size_t most_begins = 4096;

 private:
  bool seen_enough() const;
  std::size_t sequences() const;

  std::optional<Clock::time_point> last_;  // when the last sequence began
  std::vector<double> pauses_;             // us between two of them
  double passed_us_ = 0;                   // their sum
};

}  // namespace shingle::nccl_tuner
