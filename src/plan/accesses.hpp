// What memory and counters a step uses, and on which ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

struct Accesses {
  /// A rank whose memory a step uses, and the buffer that it uses there.
  struct Use {
    std::int32_t rank;
    std::int32_t buffer;
  };
  std::vector<Use> memory;
  std::vector<CounterRef> counters;  ///< of tiles: entry 0 stands for all
};
Accesses accesses_of(const Step& step, int world);

/// True if the plan has a flagged buffer.
bool has_flagged(const Plan& plan);

}  // namespace shingle
