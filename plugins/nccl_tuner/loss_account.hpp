// What tuning may cost a program: a share of its time.
#pragma once

#include <algorithm>

namespace shingle::nccl_tuner {

/// Bounds of an experiment.
struct Limits {
  double loss = 0.01;  ///< share of the program's time that trials may cost, in (0, 1]
  double time_us = 0;  ///< time of experiments after which nothing more is tried; 0: no limit
};

/// Keeps account of the time that trials cost, relative to NCCL's choice. Trials that are faster earn time.
class LossAccount {
 public:
  explicit LossAccount(double share) : share_(share) {}

  /// An iteration with an agreed choice, which costs nothing.
  void rest(double us) { elapsed_us_ += us; }
  /// An iteration of a trial. A pause of the program counts as at most `longest` iterations.
  void trial(double us, double default_us) {
    constexpr double longest = 16;
    elapsed_us_ += us;
    lost_us_ += std::min(us, longest * default_us) - default_us;
  }
  /// Time that trials may still cost; negative if they cost too much.
  double left_us() const { return share_ * elapsed_us_ - lost_us_; }

 private:
  double share_;
  double elapsed_us_ = 0, lost_us_ = 0;
};

}  // namespace shingle::nccl_tuner
