// Lagom's Alg. 1 and 2, as the paper intends them. docs/mechanisms/co-tuning.md says where its text is wrong.
//
// All collectives begin where the space says: with the least resources, as in the paper, or above. Alg. 1
// gives the next step to the collective whose communication gains most for the cost to computation, by the
// metric H. Alg. 2 takes a step over the grid. It ends, for a collective or for all, by the three conditions
// of §3.4:
//   1. communication is hidden: it adds nothing to the computation beside it;
//   2. more resources no longer make the collective faster;
//   3. more resources do, but cost the computation more: the makespan no longer falls.
// Then come steps that Alg. 1 does not have: other subspaces, what the computations beside a collective do
// for it, neighbours of the point found, and threads. Neighbours matter because Eq. 4 counts the waves that a
// slow collective lasts longer, so fewer resources may also cost more.
#include <algorithm>
#include <array>
#include <limits>

#include "climb.hpp"
#include "strategy.hpp"

namespace shingle::cotune {
namespace {

constexpr double first_priority = 0.01;  // Alg. 1, line 2
class Together final : public Strategy {
 public:
  explicit Together(const Task& task)
      : task_(task),
        points_(static_cast<std::size_t>(task.collectives), task.space.start),
        phases_{{{upward(), false},
                 {other_subspaces(task.space), false},
                 {other_neighbours(task.space), true},
                 {around(), true},
                 {other_threads(task.space), false}}} {
    enter(0);
  }

  std::optional<std::vector<Config>> propose() override;
  bool judge(const Measurement& measured) override;

 private:
  struct Phase {
    std::vector<Move> moves;
    bool again;
  };

  void enter(std::size_t phase);
  std::vector<Config> configs() const;
  bool helps(const Measurement& measured) const;
  double priority(const Measurement& measured) const;
  bool hidden() const {
    return now_.compute_us > 0 && now_.makespan_us <= now_.compute_us * (1 + task_.least_gain);
  }

  const Task task_;
  std::vector<Point> points_;
  std::array<Phase, 5> phases_;
  std::size_t phase_ = 0;
  std::vector<Climb> climbs_;
  std::vector<double> priority_;  // H; never: the collective is done
  std::size_t tuned_ = 0;         // the collective with the step being measured
  Point before_{};                // the point before that step
  Measurement library_, now_;     // of NCCL's own choice, and of points_
  int judged_ = 0;
};

void Together::enter(std::size_t phase) {
  phase_ = phase;
  if (phase == phases_.size()) return;
  climbs_.assign(points_.size(), Climb(phases_[phase].moves, phases_[phase].again));
  priority_.assign(points_.size(), first_priority);
}

std::vector<Config> Together::configs() const {
  std::vector<Config> all;
  for (const Point& point : points_) all.push_back(task_.space.at(point));
  return all;
}

std::optional<std::vector<Config>> Together::propose() {
  if (judged_ == 0) return std::vector<Config>(points_.size());
  if (judged_ == 1) return configs();
  for (; phase_ < phases_.size(); enter(phase_ + 1)) {
    while (phase_ > 0 || !hidden()) {
      const auto least = std::ranges::min_element(priority_);
      if (*least == never) break;
      tuned_ = static_cast<std::size_t>(least - priority_.begin());
      before_ = points_[tuned_];
      const auto may = [&](const Point& point) { return task_.may(tuned_, point); };
      if (const auto to = climbs_[tuned_].propose(task_.space, before_, may)) {
        points_[tuned_] = *to;
        return configs();
      }
      *least = never;
    }
  }
  return std::nullopt;
}

/// True if the makespan falls. If it is equal: if fewer resources are used, or if a collective is faster
/// while some communication is exposed. The step of the next collective may wait for it.
bool Together::helps(const Measurement& measured) const {
  if (measured.makespan_us < now_.makespan_us * (1 - task_.least_gain)) return true;
  if (measured.makespan_us > now_.makespan_us) return false;
  if (climbs_[tuned_].saves()) return true;
  if (phase_ > 0 || measured.communication_us.empty() || now_.communication_us.empty()) return false;
  return measured.communication_us[tuned_] < now_.communication_us[tuned_] * (1 - task_.least_gain);
}

/// H of Eq. 7: cost of a step to the computation, over its gain for the collective. If either is unknown: the
/// negative gain of the makespan.
double Together::priority(const Measurement& measured) const {
  if (measured.compute_us == 0 || measured.communication_us.empty() || now_.communication_us.empty())
    return (measured.makespan_us - now_.makespan_us) / measured.makespan_us;
  const double gained = now_.communication_us[tuned_] - measured.communication_us[tuned_];
  return gained > 0 ? (measured.compute_us - now_.compute_us) / gained : first_priority;
}

bool Together::judge(const Measurement& measured) {
  if (judged_++ == 0) {
    library_ = measured;
    return true;
  }
  if (judged_ > 2) {
    const bool helped = helps(measured);
    climbs_[tuned_].judge(helped, 1 - measured.makespan_us / now_.makespan_us);
    if (!helped) {
      points_[tuned_] = before_;
      return false;
    }
    if (now_.makespan_us < never) priority_[tuned_] = priority(measured);
  }
  now_ = measured;
  return now_.makespan_us <= library_.makespan_us;
}

}  // namespace

std::unique_ptr<Strategy> make_together(const Task& task) {
  return std::make_unique<Together>(task);
}

}  // namespace shingle::cotune
