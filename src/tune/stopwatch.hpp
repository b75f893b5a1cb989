// Times plans on a world.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "shingle/backend/backend.hpp"

namespace shingle::tuning {

/// A compiled plan with its matrices. Destroy it before its world.
class Timed {
 public:
  bool multiplies = false;  ///< it then changes the clocks for the next plan

 private:
  friend class Stopwatch;
  std::list<DeviceBuffer> memory_;
  std::unique_ptr<Executable> executable_;
};

class Stopwatch {
 public:
  /// `most_spread`: as in ProfileOptions.
  Stopwatch(World& world, int repeat, double timeout_us, double most_spread)
      : world_(world),
        timing_(world.capabilities().timing),
        repeat_(repeat),
        timeout_us_(timeout_us),
        most_spread_(most_spread) {}

  /// Runs a plan once. Plans that multiply get random inputs, because power and so clocks depend on the
  /// values. Other plans get a constant of order one. Throws Unsupported if the world cannot run the plan.
  Timed prepare(const Plan& plan);

  /// Median over the runs of a plan, of the max. time over ranks, in µs.
  double us(Timed& timed);
  double us(const Plan& plan);
  /// As us(), for one lane beside the plan's other lanes: from the begin of its first step to the end of its
  /// last.
  double lane_us(const Plan& plan, int lane);
  /// Median over ranks, steps from `first` on, and then runs, of the time of a lane's step.
  double step_us(const Plan& plan, int lane, int first = 0);

  /// Times of a plan with products on lane 0 and collectives on lane 1: medians over ranks, steps and runs.
  /// `product_us` is of products that collectives cover completely. `collective_us` is of collectives that
  /// products cover completely. `alone_us` is of collectives after all products. 0 if there are none.
  struct Beside {
    double product_us = 0, collective_us = 0, alone_us = 0;
  };
  Beside beside(const Plan& plan);

  const Timing& timing() const { return timing_; }
  /// Spreads of what was timed since the last call, one per plan. Equal on all processes.
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
  std::map<DType, std::vector<std::byte>> random_;  // filled on first use
};

}  // namespace shingle::tuning
