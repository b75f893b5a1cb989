// Limits on the cost of a proof. They count operations and bytes of the proof's own data, not seconds. So the
// verdict on a plan is the same on every machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shingle {

/// Thrown if a plan is too large to prove. verify() catches it.
struct TooLarge {
  std::string text;  ///< the limit that was exceeded, and the largest share of it
};

class Budget {
 public:
  /// Kinds of work; `works` has a row for each.
  enum Work : std::uint8_t { compared, visited, tried, expanded, accessed, cut, ran };
  /// Kinds of memory that a proof keeps; `memories` names each.
  enum Memory : std::uint8_t { steps, schedule, clocks, lags, cells };

  /// Both throw TooLarge once the total is above the limit.
  void spend(Work what, std::int64_t count) {
    if (count > most_spent) count = most_spent + 1;
    done_[what] += count;
    if ((spent_ += count * works[what].price) > most_spent) refuse();
  }
  void keep(Memory what, std::int64_t bytes) {
    held_[what] += bytes;
    if ((kept_ += bytes) > most_kept) refuse_memory();
  }
  void release_all(Memory what) { release(what, held_[what]); }
  /// Returns memory that is no longer kept.
  void release(Memory what, std::int64_t bytes) {
    held_[what] -= bytes;
    kept_ -= bytes;
  }

  /// Units of work: one unit is about a nanosecond on a machine of 2024.
  std::int64_t spent() const { return spent_; }
  std::int64_t kept_bytes() const { return kept_; }

  static constexpr std::int64_t most_spent = 1'400'000'000;
  static constexpr std::int64_t most_kept = std::int64_t{320} << 20;

 private:
  struct Kind {
    std::int64_t price;
    std::string_view name;
  };
  static constexpr std::array<Kind, 7> works{{{2, "comparisons of adds and awaits"},
                                              {12, "nodes of vector clocks, joined or copied"},
                                              {15, "attempts of lanes to go on"},
                                              {10, "tiles and their pieces"},
                                              {60, "accesses to rectangles of memory"},
                                              {150, "cuts of memory"},
                                              {300, "steps, runs of tiles and what they add to counts"}}};
  static constexpr std::array<std::string_view, 5> memories{
      "the plan itself", "the schedule", "vector clocks", "lags of adds", "cells of memory"};

  [[noreturn]] void refuse() const;
  [[noreturn]] void refuse_memory() const;

  std::array<std::int64_t, works.size()> done_{};
  std::array<std::int64_t, memories.size()> held_{};
  std::int64_t spent_ = 0, kept_ = 0;
};

}  // namespace shingle
