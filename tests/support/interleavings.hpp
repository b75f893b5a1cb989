// All interleavings of a plan that only notifies and awaits: the exact answer to what the verifier's order
// says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle::test {

/// Explores every state that a plan of `Await` and `Notify` steps can reach, any number of epochs long. A
/// state is how far each lane has come; it is reduced by the epochs that all lanes have finished, after which
/// all counts are as they were at the beginning.
class Interleavings {
 public:
  struct Place {
    int rank = 0, lane = 0, step = 0;
  };

  /// Empty if lanes may be more than `most_ahead` epochs apart, or if there are more than `most_states`.
  static std::optional<Interleavings> explore(const Plan& plan, int most_ahead, std::size_t most_states) {
    Interleavings all(plan);
    std::vector<State> open{State(all.lanes_.size(), 0)};
    std::set<State> seen(open.begin(), open.end());
    while (!open.empty()) {
      const State state = std::move(open.back());
      open.pop_back();
      for (std::size_t lane = 0; lane < all.lanes_.size(); ++lane) {
        if (!all.may_go(state, lane)) continue;
        all.note(state, lane);
        State next = state;
        ++next[lane];
        all.reduce(next);
        if (all.epoch(next, lane) > most_ahead) return std::nullopt;
        if (seen.insert(next).second) open.push_back(std::move(next));
        if (seen.size() > most_states) return std::nullopt;
      }
    }
    return all;
  }

  const std::vector<Place>& places() const { return places_; }
  /// The least d such that whenever place x starts in an epoch e, place y has finished epoch e - d.
  int lag(std::size_t x, std::size_t y) const { return lag_[x][y]; }

 private:
  using State = std::vector<std::int16_t>;  ///< steps that each lane has done

  struct LaneOf {
    int rank, lane;
    std::size_t first_place, steps;
  };

  explicit Interleavings(const Plan& plan) : plan_(plan) {
    for (int r = 0; r < plan.world(); ++r)
      for (int l = 0; l < static_cast<int>(plan.ranks[r].lanes.size()); ++l) {
        const auto& steps = plan.ranks[r].lanes[l].steps;
        lanes_.push_back({r, l, places_.size(), steps.size()});
        for (int s = 0; s < static_cast<int>(steps.size()); ++s) places_.push_back({r, l, s});
      }
    lag_.assign(places_.size(), std::vector<int>(places_.size(), 0));
  }

  int epoch(const State& state, std::size_t lane) const {
    return static_cast<int>(state[lane] / static_cast<std::int64_t>(lanes_[lane].steps));
  }
  const Step& next_step(const State& state, std::size_t lane) const {
    const LaneOf& at = lanes_[lane];
    return plan_.ranks[at.rank].lanes[at.lane].steps[state[lane] % at.steps];
  }

  std::int64_t value(const State& state, const CounterRef& counter) const {
    const bool set = plan_.counters[counter.counter].kind == CounterKind::set;
    const std::int64_t growth = plan_.counters[counter.counter].growth[counter.rank][counter.entry];
    std::int64_t value = 0;
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      const auto& steps = plan_.ranks[lanes_[lane].rank].lanes[lanes_[lane].lane].steps;
      for (std::size_t s = 0; s < steps.size(); ++s) {
        const auto* notify = std::get_if<Notify>(&steps[s]);
        if (!notify || !(notify->counter == counter)) continue;
        const std::int64_t times = epoch(state, lane) + (s < state[lane] % steps.size() ? 1 : 0);
        if (set)
          value = times == 0 ? value : std::max(value, (times - 1) * growth + notify->value);
        else
          value += times * notify->value;
      }
    }
    return value;
  }

  bool may_go(const State& state, std::size_t lane) const {
    // The rank's other lanes have finished the epochs before.
    for (std::size_t other = 0; other < lanes_.size(); ++other)
      if (lanes_[other].rank == lanes_[lane].rank && epoch(state, other) < epoch(state, lane)) return false;
    const auto* await = std::get_if<Await>(&next_step(state, lane));
    if (!await) return true;
    const std::int64_t growth =
        plan_.counters[await->counter.counter].growth[await->counter.rank][await->counter.entry];
    return value(state, await->counter) >= epoch(state, lane) * growth + await->target;
  }

  /// What has been done when a lane's next step starts.
  void note(const State& state, std::size_t lane) {
    const std::size_t x = lanes_[lane].first_place + state[lane] % lanes_[lane].steps;
    for (std::size_t other = 0; other < lanes_.size(); ++other)
      for (std::size_t s = 0; s < lanes_[other].steps; ++s) {
        const int done = epoch(state, other) - (s < state[other] % lanes_[other].steps ? 0 : 1);
        int& lag = lag_[x][lanes_[other].first_place + s];
        lag = std::max(lag, epoch(state, lane) - done);
      }
  }

  void reduce(State& state) const {
    int least = epoch(state, 0);
    for (std::size_t lane = 1; lane < lanes_.size(); ++lane) least = std::min(least, epoch(state, lane));
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
      state[lane] = static_cast<std::int16_t>(state[lane] - least * static_cast<int>(lanes_[lane].steps));
  }

  Plan plan_;
  std::vector<Place> places_;
  std::vector<LaneOf> lanes_;
  std::vector<std::vector<int>> lag_;
};

}  // namespace shingle::test
