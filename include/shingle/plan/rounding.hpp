// Rounding: where a plan rounds values, and in which order it sums ranks. Plan::rounding holds one such
// statement as a sentence; verify() proves it from the steps.
#pragma once

#include <string>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

enum class Summing : std::uint8_t {
  none,         ///< no sum over ranks
  library,      ///< by collectives: in NCCL's order, or in rank order on the host backend
  rank_order,   ///< in one pass, from rank 0 on
  owner_first,  ///< by the row's owner, from its own product on, which stays in fp32; then from rank 0 on
  parts,  ///< no sum over ranks, but parts of an attention are merged, or parts of gradients or a token's
          ///< products summed
  ring,   ///< rank by rank around the ring, rounded on each rank
  steps,  ///< as the steps say; true of every plan
};

struct Rounding {
  Summing summing = Summing::steps;
  DType staged =
      DType::f32;  ///< rank_order, owner_first: type that each rank's part is rounded to before the sum
  /// A pass after the rounded result applies the epilogue or the norm, and rounds again.
  bool last_pass = false;

  bool operator==(const Rounding&) const = default;
};

/// The statement as the sentence that a plan of the work holds.
std::string sentence(const Work& work, const Rounding& rounding);
/// Every statement that a plan of the work may hold, the strongest first.
std::vector<Rounding> statements(const Work& work);

}  // namespace shingle
