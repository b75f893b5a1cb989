// How a search chooses what to measure next; noise, and what is known already, are not its business.
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

  /// What to measure next; nothing: it is over. judge() follows each proposal.
  virtual std::optional<std::vector<Config>> propose() = 0;
  /// Whether what was proposed is now the choice.
  virtual bool judge(const Measurement& measured) = 0;
};

std::unique_ptr<Strategy> make_library(int collectives);
std::unique_ptr<Strategy> make_alone(const Space& space, int collectives, double least_gain);
std::unique_ptr<Strategy> make_together(const Space& space, int collectives, double least_gain);
std::unique_ptr<Strategy> make_exhaustive(const Space& space, int collectives);

}  // namespace shingle::cotune
