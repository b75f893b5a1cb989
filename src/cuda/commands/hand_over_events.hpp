// Hand-overs between lanes of a rank, as CUDA's events order them without a kernel, which would hold an SM
// for as long as it waits, and keep a library's product from it.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/raii/stream.hpp"
#include "lower/hand_overs.hpp"

namespace shingle::cuda {

class HandOverEvents {
 public:
  /// Of a rank's lanes; the rank's device is current.
  HandOverEvents(const Plan& plan, int rank)
      : hand_overs_(plan), events_(static_cast<std::size_t>(hand_overs_.size(rank))) {}

  /// What the step that makes a count records, and what looks at it waits for, in the place of a kernel; null
  /// where it takes one. Of a CounterRef, or of a Step that notifies or awaits.
  template <class What>
  const Event* of(const What& what) const {
    const int number = hand_overs_.of(what);
    return number == HandOvers::none ? nullptr : &events_[static_cast<std::size_t>(number)];
  }

 private:
  HandOvers hand_overs_;
  std::vector<Event> events_;
};

}  // namespace shingle::cuda
