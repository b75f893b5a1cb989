// Baselines for a co-tuner.
#include <algorithm>
#include <array>
#include <limits>

#include "climb.hpp"
#include "strategy.hpp"

namespace shingle::cotune {
namespace {

class Library final : public Strategy {
 public:
  explicit Library(int collectives) : configs_(static_cast<std::size_t>(collectives)) {}

  std::optional<std::vector<Config>> propose() override {
    return judged_ ? std::nullopt : std::optional(configs_);
  }
  bool judge(const Measurement&) override { return judged_ = true; }

 private:
  std::vector<Config> configs_;
  bool judged_ = false;
};

/// One collective of AutoCCL. It reduces its own time within a subspace, then over other subspaces, then with
/// threads. NCCL's own choice stays unless another configuration is faster.
class Alone {
 public:
  explicit Alone(const Space& space)
      : climbs_{{{around(), true},
                 {other_subspaces(space), false},
                 {around(), true},
                 {other_threads(space), false}}},
        at_(space.start) {}

  /// Takes a step if one is left, and returns true if so; at() is then the new point. `may`: as
  /// Climb::propose().
  template <class May>
  bool step(const Space& space, May may) {
    for (before_ = at_; phase_ < climbs_.size(); ++phase_)
      if (const auto to = climbs_[phase_].propose(space, at_, may)) {
        at_ = *to;
        return true;
      }
    return false;
  }
  void judge(double us, double least_gain) {
    if (phase_ == climbs_.size()) return;
    const bool helped = us < us_ * (1 - least_gain);
    climbs_[phase_].judge(helped, 1 - us / us_);
    if (helped) {
      us_ = us;
    } else {
      at_ = before_;
    }
  }
  void begin(double library_us, double us) {
    library_us_ = library_us;
    us_ = us;
  }
  Config config(const Space& space) const {
    const bool over = phase_ == climbs_.size();
    return over && library_us_ <= us_ ? Config{} : space.at(at_);
  }

 private:
  std::array<Climb, 4> climbs_;
  std::size_t phase_ = 0;
  Point at_, before_{};
  double library_us_ = never, us_ = never;
};

/// All collectives take a step at once, because each only looks at its own time.
class AllAlone final : public Strategy {
 public:
  explicit AllAlone(const Task& task)
      : task_(task), all_(static_cast<std::size_t>(task.collectives), Alone(task.space)) {}

  std::optional<std::vector<Config>> propose() override {
    if (over_) return std::nullopt;
    if (judged_ == 0) return std::vector<Config>(all_.size());
    if (judged_ > 1) {
      bool more = false;
      for (std::size_t i = 0; i < all_.size(); ++i) {
        const auto may = [&](const Point& point) { return task_.may(i, point); };
        more = all_[i].step(task_.space, may) || more;
      }
      over_ = !more;  // one more measurement, of all final configurations together
    }
    std::vector<Config> configs;
    for (const Alone& one : all_) configs.push_back(one.config(task_.space));
    return configs;
  }
  bool judge(const Measurement& measured) override {
    std::vector<double> us = measured.communication_us;
    if (!(measured.makespan_us < never)) us.assign(all_.size(), never);
    if (judged_ == 0) library_us_ = us;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (judged_ == 1) all_[i].begin(library_us_[i], us[i]);
      if (judged_ > 1) all_[i].judge(us[i], task_.least_gain);
    }
    return judged_++ == 0 || over_;
  }

 private:
  const Task task_;
  std::vector<Alone> all_;
  std::vector<double> library_us_;
  int judged_ = 0;
  bool over_ = false;
};

class Exhaustive final : public Strategy {
 public:
  explicit Exhaustive(const Task& task) : task_(task), points_(static_cast<std::size_t>(task.collectives)) {}

  std::optional<std::vector<Config>> propose() override {
    while (!over_) {
      std::vector<Config> configs;
      bool may = true;
      for (std::size_t i = 0; i < points_.size(); ++i) {
        configs.push_back(task_.space.at(points_[i]));
        may = may && task_.may(i, points_[i]);
      }
      over_ = !advance();
      if (may) return configs;
    }
    return std::nullopt;
  }
  bool judge(const Measurement& measured) override {
    const bool better = measured.makespan_us < least_us_;
    least_us_ = std::min(least_us_, measured.makespan_us);
    return better;
  }

 private:
  /// Advances to the next point, like an odometer; false after the last.
  bool advance() {
    for (Point& point : points_)
      for (int axis = 0; axis < axes; ++axis) {
        auto& place = point[static_cast<std::size_t>(axis)];
        if (++place < task_.space.size(static_cast<Axis>(axis))) return true;
        place = 0;
      }
    return false;
  }

  const Task task_;
  std::vector<Point> points_;
  double least_us_ = never;
  bool over_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_library(const Task& task) {
  return std::make_unique<Library>(task.collectives);
}
std::unique_ptr<Strategy> make_alone(const Task& task) {
  return std::make_unique<AllAlone>(task);
}
std::unique_ptr<Strategy> make_exhaustive(const Task& task) {
  return std::make_unique<Exhaustive>(task);
}

}  // namespace shingle::cotune
