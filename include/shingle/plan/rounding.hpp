// What a plan says of its numbers: where values are rounded, and in which order ranks are summed.
// Plan::rounding holds one of these statements as a sentence; verify() proves it from the steps.
#pragma once

#include <string>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

enum class Summing : std::uint8_t {
  none,        ///< no sum over ranks
  library,     ///< by collectives, in the order of their library
  rank_order,  ///< in one pass, from rank 0 on
  ring,        ///< rank by rank around the ring, rounded at each
  steps,       ///< as the steps have it; true of every plan
};

struct Rounding {
  Summing summing = Summing::steps;
  DType staged = DType::f32;  ///< rank_order: what each rank's part is rounded to on the way
  bool last_pass = false;     ///< a pass behind the rounded result applies epilogue or norm, and rounds again

  bool operator==(const Rounding&) const = default;
};

/// The statement as the sentence that a plan of the problem holds.
std::string sentence(const Problem& problem, const Rounding& rounding);
/// Every statement that a plan of the problem may hold, the strongest first.
std::vector<Rounding> statements(const Problem& problem);

}  // namespace shingle
