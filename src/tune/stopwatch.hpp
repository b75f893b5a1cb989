// Times plans on a world.
#pragma once

#include "shingle/backend/backend.hpp"

namespace shingle::tune {

class Stopwatch {
 public:
  Stopwatch(World& world, int repeat) : world_(world), repeat_(repeat) {}

  int ranks() const { return world_.size(); }

  /// Median over the runs of a plan of the longest time of any rank, in microseconds. Inputs are numbers of
  /// order one.
  double us(const Plan& plan) const;
  /// The same of one lane of the plan beside its others: from the begin of its first step to the end of its
  /// last.
  double lane_us(const Plan& plan, int lane) const;
  /// Median over ranks, steps from `first` on, and then runs, of the time of a lane's step.
  double step_us(const Plan& plan, int lane, int first = 0) const;

 private:
  template <class Measure>
  double median(const Plan& plan, bool trace, Measure measure) const;

  World& world_;
  int repeat_;
};

}  // namespace shingle::tune
