// Finds a program's iteration in its calls: the shortest sequence that repeats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shingle::nccl_tuner {

class Iteration {
 public:
  enum class Event : std::uint8_t { none, begins, broken };

  /// Takes the signature of the next call. `begins`: an iteration begins with this call. `broken`: the known
  /// iteration does not continue.
  Event push(std::uint64_t signature);

  /// Takes so many of the sequences found as one iteration, until it is broken. Returns false, and does
  /// nothing, if fewer have passed.
  bool join(std::size_t sequences);
  /// Calls of an iteration; 0: unknown.
  std::size_t period() const { return period_; }
  /// Signatures of the last `period` calls, the latest last.
  std::vector<std::uint64_t> calls() const;

 private:
  /// Number of calls searched. Iterations that do not repeat often enough within it are not found.
  static constexpr std::size_t span = 16384;
  static constexpr std::size_t repetitions = 3;  ///< of a sequence, for it to count as an iteration
  /// Calls after which a broken period counts as interrupted. A period that broke earlier may have been a
  /// layer that repeats within the iteration.
  static constexpr std::size_t proven = 4096;

  std::uint64_t back(std::size_t calls_ago) const { return ring_[(count_ - 1 - calls_ago) % span]; }
  std::size_t shortest_period() const;

  std::vector<std::uint64_t> ring_ = std::vector<std::uint64_t>(span);
  std::size_t count_ = 0;
  std::size_t period_ = 0;
  std::size_t held_ = 0;         // calls that the period explains
  std::size_t begun_ = 0;        // index of the call that began the last iteration
  std::size_t least_held_ = 32;  // calls that a period must explain
  // Last and next search for a period. A search costs as much as the calls since the last one.
  std::size_t searched_from_ = 0, next_look_ = 0;
};

}  // namespace shingle::nccl_tuner
