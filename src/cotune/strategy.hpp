// Chooses the next configuration of a search. Search itself handles noise and configurations that are already
// measured.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "search.hpp"

namespace shingle::cotune {

inline constexpr double never = std::numeric_limits<double>::infinity();

class Strategy {
 public:
  virtual ~Strategy() = default;

  /// The configurations to measure next; nothing: the strategy is over. judge() follows each proposal.
  virtual std::optional<std::vector<Config>> propose() = 0;
  /// Returns true if the last proposal is now the choice.
  virtual bool judge(const Measurement& measured) = 0;
};

std::unique_ptr<Strategy> make_library(int collectives);
std::unique_ptr<Strategy> make_alone(const Space& space, int collectives, double least_gain);
std::unique_ptr<Strategy> make_together(const Space& space, int collectives, double least_gain);
std::unique_ptr<Strategy> make_exhaustive(const Space& space, int collectives);

}  // namespace shingle::cotune
