// Where one lane of a rank waits for another one alone: what CUDA's events order without a kernel, which
// would hold an SM for as long as it waits, and keep a library's product from it.
#pragma once

#include <map>
#include <utility>

#include "cuda/raii/stream.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::cuda {

class HandOvers {
 public:
  /// Of a rank's lanes; the rank's device is current.
  HandOvers(const Plan& plan, int rank);

  /// What a notify records and an await waits for in the place of a kernel; null where it takes one.
  const Event* event(std::size_t lane, std::size_t step) const;

 private:
  /// A count is handed over where one notify of the rank's own makes all of it, where awaits of the rank's
  /// own are all that look at it, and where these are issued later: a wait for an event that is not recorded
  /// yet waits for nothing.
  std::map<std::pair<std::int32_t, std::int32_t>, Event> events_;  // by counter and entry
  std::map<std::pair<std::size_t, std::size_t>, const Event*> steps_;
};

}  // namespace shingle::cuda
