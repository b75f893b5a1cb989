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

  /// Takes a step if one is left, and returns true if so; at() is then the new point.
  bool step(const Space& space) {
    for (before_ = at_; phase_ < climbs_.size(); ++phase_)
      if (const auto to = climbs_[phase_].propose(space, at_)) {
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
  AllAlone(const Space& space, int collectives, double least_gain)
      : space_(space), least_gain_(least_gain), all_(static_cast<std::size_t>(collectives), Alone(space)) {}

  std::optional<std::vector<Config>> propose() override {
    if (over_) return std::nullopt;
    if (judged_ == 0) return std::vector<Config>(all_.size());
    if (judged_ > 1) {
      bool more = false;
      for (Alone& one : all_) more = one.step(space_) || more;
      over_ = !more;  // one more measurement, of all final configurations together
    }
    std::vector<Config> configs;
    for (const Alone& one : all_) configs.push_back(one.config(space_));
    return configs;
  }
  bool judge(const Measurement& measured) override {
    std::vector<double> us = measured.communication_us;
    if (!(measured.makespan_us < never)) us.assign(all_.size(), never);
    if (judged_ == 0) library_us_ = us;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (judged_ == 1) all_[i].begin(library_us_[i], us[i]);
      if (judged_ > 1) all_[i].judge(us[i], least_gain_);
    }
    return judged_++ == 0 || over_;
  }

 private:
  const Space space_;
  const double least_gain_;
  std::vector<Alone> all_;
  std::vector<double> library_us_;
  int judged_ = 0;
  bool over_ = false;
};

class Exhaustive final : public Strategy {
 public:
  Exhaustive(const Space& space, int collectives)
      : space_(space), points_(static_cast<std::size_t>(collectives)) {}

  std::optional<std::vector<Config>> propose() override {
    if (over_) return std::nullopt;
    std::vector<Config> configs;
    for (const Point& point : points_) configs.push_back(space_.at(point));
    over_ = !advance();
    return configs;
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
        if (++place < space_.size(static_cast<Axis>(axis))) return true;
        place = 0;
      }
    return false;
  }

  const Space space_;
  std::vector<Point> points_;
  double least_us_ = never;
  bool over_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_library(int collectives) {
  return std::make_unique<Library>(collectives);
}
std::unique_ptr<Strategy> make_alone(const Space& space, int collectives, double least_gain) {
  return std::make_unique<AllAlone>(space, collectives, least_gain);
}
std::unique_ptr<Strategy> make_exhaustive(const Space& space, int collectives) {
  return std::make_unique<Exhaustive>(space, collectives);
}

}  // namespace shingle::cotune
