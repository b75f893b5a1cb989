// Finds the iteration of a program in its calls: the shortest sequence that repeats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shingle::nccl_tuner {

class Iteration {
 public:
  enum class Event : std::uint8_t { none, begins, broken };

  /// The signature of the next call. `begins`: with this call an iteration begins; `broken`: what was taken
  /// for the iteration does not go on.
  Event push(std::uint64_t signature);

  /// Calls of an iteration; 0: none is known.
  std::size_t period() const { return period_; }
  /// Signatures of the last `period` calls, the latest last.
  std::vector<std::uint64_t> calls() const;

 private:
  /// Longer iterations, or those that repeat less within so many calls, are not found.
  static constexpr std::size_t span = 16384;
  static constexpr std::size_t repetitions = 3;  ///< that make an iteration of a sequence
  /// What broke after fewer calls may have been a layer that repeats within the iteration; after more it was
  /// interrupted.
  static constexpr std::size_t proven = 4096;

  std::uint64_t back(std::size_t calls_ago) const { return ring_[(count_ - 1 - calls_ago) % span]; }
  std::size_t shortest_period() const;

  std::vector<std::uint64_t> ring_ = std::vector<std::uint64_t>(span);
  std::size_t count_ = 0;
  std::size_t period_ = 0;
  std::size_t held_ = 0;         // calls that the period explains
  std::size_t begun_ = 0;        // the call with which the last iteration began
  std::size_t least_held_ = 32;  // calls that a period has to explain
  std::size_t searched_from_ = 0,
              next_look_ = 0;  // a look for a period costs as much as calls since the last
};

}  // namespace shingle::nccl_tuner
