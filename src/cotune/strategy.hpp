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

/// What a strategy searches.
struct Task {
  Space space;
  int collectives = 1;
  double least_gain = 0;
  Serves serves;  ///< never empty

  /// serves() for a place of the space.
  bool may(std::size_t collective, const Point& point) const {
    return serves(static_cast<int>(collective), space.at(point));
  }
};

std::unique_ptr<Strategy> make_library(const Task& task);
std::unique_ptr<Strategy> make_alone(const Task& task);
std::unique_ptr<Strategy> make_together(const Task& task);
std::unique_ptr<Strategy> make_exhaustive(const Task& task);

}  // namespace shingle::cotune
