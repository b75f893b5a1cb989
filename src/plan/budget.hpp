// What a proof may cost, counted in things that are done and kept rather than in seconds and pages: the
// verdict on a plan is the same on every machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace shingle {

/// Leaves the proof of a plan that is too large; never leaves verify().
struct TooLarge {
  std::string text;  ///< the limit, and what there is most of
};

class Budget {
 public:
  /// What is done, from cheap to dear. Each has a price (budget.cpp).
  enum Work : std::uint8_t {
    compared,  ///< an add or await, compared with another
    visited,   ///< a node of a clock, joined or copied
    tried,     ///< a lane, asked whether it can go on
    expanded,  ///< a tile, or a piece of one
    accessed,  ///< a rectangle of memory, read or written
    cut,       ///< … of which two were made
    ran,       ///< a step or run of tiles, or what it adds to a count
  };
  /// What is kept until the proof is over.
  enum Memory : std::uint8_t { steps, schedule, clocks, lags, cells };

  /// Both throw TooLarge once the total is above the limit.
  void spend(Work what, std::int64_t count) {
    if (count > most_spent) count = most_spent + 1;
    done_[what] += count;
    if ((spent_ += count * prices[what]) > most_spent) refuse();
  }
  void keep(Memory what, std::int64_t bytes) {
    held_[what] += bytes;
    if ((kept_ += bytes) > most_kept) refuse_memory();
  }
  /// What was kept has been let go.
  void release(Memory what, std::int64_t bytes) {
    held_[what] -= bytes;
    kept_ -= bytes;
  }

  /// In units of the cheapest work, about a nanosecond of a machine of 2024.
  std::int64_t spent() const { return spent_; }
  std::int64_t kept_bytes() const { return kept_; }

  static constexpr std::int64_t most_spent = 1'400'000'000;
  static constexpr std::int64_t most_kept = std::int64_t{320} << 20;

 private:
  static constexpr std::array<std::int64_t, 7> prices{2, 12, 15, 10, 60, 150, 300};

  [[noreturn]] void refuse() const;
  [[noreturn]] void refuse_memory() const;

  std::array<std::int64_t, 7> done_{};
  std::array<std::int64_t, 5> held_{};
  std::int64_t spent_ = 0, kept_ = 0;
};

}  // namespace shingle
