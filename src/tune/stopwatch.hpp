// Times plans on a world.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "shingle/backend/backend.hpp"

namespace shingle::tuning {

/// A plan, compiled, with its matrices. Goes before its world.
class Timed {
 public:
  bool multiplies = false;  ///< and so changes the clocks that the next one finds

 private:
  friend class Stopwatch;
  std::list<DeviceBuffer> memory_;
  std::unique_ptr<Executable> executable_;
};

class Stopwatch {
 public:
  /// `most_spread`: as ProfileOptions has it.
  Stopwatch(World& world, int repeat, double timeout_us, double most_spread)
      : world_(world),
        timing_(world.capabilities().timing),
        repeat_(repeat),
        timeout_us_(timeout_us),
        most_spread_(most_spread) {}

  /// Runs a plan once. Inputs of what multiplies are random, as power and so clocks depend on them; others
  /// hold a number of order one. Throws Unsupported where the world cannot carry it out.
  Timed prepare(const Plan& plan);

  /// Median over the runs of a plan of the longest time of any rank, in microseconds.
  double us(Timed& timed);
  double us(const Plan& plan);
  /// The same of one lane of the plan beside its others: from the begin of its first step to the end of its
  /// last.
  double lane_us(const Plan& plan, int lane);
  /// Median over ranks, steps from `first` on, and then runs, of the time of a lane's step.
  double step_us(const Plan& plan, int lane, int first = 0);

  /// Of a plan of products on lane 0 and collectives on lane 1: medians over ranks, steps and runs of the
  /// time of those products that collectives are beside all the time, of collectives that products are beside
  /// all the time, and of collectives after all products; 0 where there are none.
  struct Beside {
    double product_us = 0, collective_us = 0, alone_us = 0;
  };
  Beside beside(const Plan& plan);

  const Timing& timing() const { return timing_; }
  /// Spreads of what was timed since the last call, one a plan; the same in all processes.
  std::vector<double> take_spreads() { return std::exchange(spreads_, {}); }

 private:
  void write_random(int rank, DType dtype, const DeviceBuffer& buffer);
  template <class Measure>
  double median(Timed& timed, bool trace, Measure measure);

  World& world_;
  Timing timing_;
  int repeat_;
  double timeout_us_;
  double most_spread_;
  std::vector<double> spreads_;
  std::map<DType, std::vector<std::byte>> random_;  // once made
};

}  // namespace shingle::tuning
