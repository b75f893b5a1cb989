#include "choose.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"
#include "tune/reuse.hpp"

namespace shingle {
namespace {

/// A mechanism with the best known params.
struct Runner {
  Plan plan;
  double us = 0;
  double measured_us = 0;
};

class Contest {
 public:
  Contest(const Problem& problem, const Machine& machine, const ChooseOptions& options)
      : problem_(problem), machine_(machine), options_(options) {}

  Result<Chosen> go() && {
    for (const PlannerEntry& entry : planners()) {
      const bool baseline = entry.mechanism == Mechanism::sequential;
      if (!baseline && !wanted(entry.mechanism)) continue;
      Result<Tuned> found = tuned(entry);
      if (!found) {
        if (baseline) return Reason{found.reason()};
        chosen_.considered.push_back({.params = default_params(entry.mechanism), .reason = found.reason()});
        continue;
      }
      chosen_.considered.push_back(
          {.params = params_of(found->plan), .us = found->us, .tried = found->tried, .known = known_});
      runners_.push_back({std::move(found->plan), found->us, 0});
    }
    // The baseline stays first, so that it wins ties.
    std::ranges::stable_sort(runners_.begin() + 1, runners_.end(), {}, &Runner::us);
    if (options_.measure) {
      confirm();
    } else {
      predict();
    }
    return std::move(chosen_);
  }

 private:
  bool wanted(Mechanism mechanism) const {
    return options_.mechanisms.empty() ||
           std::ranges::find(options_.mechanisms, mechanism) != options_.mechanisms.end();
  }

  bool refused(const Plan& plan) const {
    return options_.tune.refuses && !options_.tune.refuses(plan).empty();
  }

  /// Params from the cache, from a neighbouring entry, or by search.
  Result<Tuned> tuned(const PlannerEntry& entry) {
    known_ = false;
    TuneCache* cache = options_.tune.params.empty() ? options_.cache : nullptr;
    std::optional<Params> known;
    double measured = 0;
    if (cache) {
      if (const auto found = cache->find(problem_, entry.mechanism))
        known = found->params, measured = found->measured_us;
      if (!known && options_.nearest && entry.mechanism == Mechanism::signal)
        known = reuse(cache->entries(), problem_, machine_);
    }
    if (known)
      if (Result<Plan> plan = plan_with(problem_, machine_, *known); plan && !refused(*plan)) {
        if (measured > 0 && (!fastest_ || measured < fastest_->us)) fastest_ = {entry.mechanism, measured};
        const double us = simulate(*plan, machine_, options_.tune.simulate).makespan_us;
        known_ = true;
        return Tuned{std::move(plan).value(), us, 1};
      }
    Result<Tuned> found = tune(problem_, machine_, entry.mechanism, options_.tune);
    if (found && cache)
      store({.problem = problem_, .params = params_of(found->plan), .predicted_us = found->us});
    return found;
  }

  /// Stores an entry. A cache that cannot be written only ends storing.
  void store(TuneEntry entry) {
    if (!options_.keep || unkept_) return;
    try {
      options_.cache->store(std::move(entry));
    } catch (const IoError& error) {
      unkept_ = true;
      options_.cache->warn(fmt::format("{}; results are not kept", error.what()));
    }
  }

  void take(Runner& runner, double us, double sequential_us, std::string reason) {
    chosen_.plan = std::move(runner.plan);
    chosen_.us = us;
    chosen_.sequential_us = sequential_us;
    chosen_.reason = std::move(reason);
    for (const Considered& at : chosen_.considered)
      if (at.known && at.params == params_of(chosen_.plan))
        chosen_.reason += "; its params were tuned before";
  }

  void predict() {
    Runner& sequential = runners_.front();
    for (Runner& runner : runners_)
      if (fastest_ && runner.plan.mechanism == fastest_->mechanism)
        return take(runner, runner.us, sequential.us,
                    fmt::format("{} was measured to be the fastest, with {}", name(fastest_->mechanism),
                                format_us(fastest_->us)));
    Runner& best = runners_.size() > 1 && runners_[1].us < sequential.us ? runners_[1] : sequential;
    const double gain = 1 - best.us / sequential.us;
    const double base = sequential.us;
    if (&best == &sequential)
      return take(sequential, base, base, "nothing is predicted to be faster than sequential");
    if (gain <= options_.margin)
      return take(
          sequential, base, base,
          fmt::format("{} is predicted to gain {:.1f}%, which is within the prediction error of {:.1f}%",
                      name(best.plan.mechanism), 100 * gain, 100 * options_.margin));
    take(best, best.us, base,
         fmt::format("{} is predicted to take {}, sequential {}: {:.2f} times as fast",
                     name(best.plan.mechanism), format_us(best.us), format_us(base), base / best.us));
  }

  /// Measures the plan with the params found and with the planner's own, and keeps the faster one.
  void measure(Runner& runner) {
    runner.measured_us = options_.measure(runner.plan);
    if (std::optional<Plan> untuned = untuned_plan(runner.plan, machine_, options_.tune))
      if (const double us = options_.measure(*untuned); us < runner.measured_us) {
        const double predicted = simulate(*untuned, machine_, options_.tune.simulate).makespan_us;
        runner = {std::move(*untuned), predicted, us};
      }
    for (Considered& considered : chosen_.considered)
      if (mechanism_of(considered.params) == runner.plan.mechanism) {
        considered.us = runner.us;
        considered.measured_us = runner.measured_us;
        considered.params = params_of(runner.plan);
      }
  }

  void confirm() {
    const auto count = std::min(runners_.size(), static_cast<std::size_t>(options_.confirmed) + 1);
    Runner* best = nullptr;
    for (std::size_t i = 0; i < count; ++i) {
      Runner& runner = runners_[i];
      measure(runner);
      if (!best || runner.measured_us < best->measured_us) best = &runner;
    }
    chosen_.confirmed = true;
    const double base = runners_.front().measured_us, us = best->measured_us;
    if (options_.cache && options_.tune.params.empty())
      store({.problem = problem_,
             .params = params_of(best->plan),
             .predicted_us = best->us,
             .measured_us = us});
    take(*best, us, base,
         fmt::format("{} took {}, sequential {}: {:.2f} times as fast, measured", name(best->plan.mechanism),
                     format_us(us), format_us(base), base / us));
  }

  const Problem& problem_;
  const Machine& machine_;
  const ChooseOptions& options_;
  struct Known {
    Mechanism mechanism;
    double us;
  };
  std::optional<Known> fastest_{};  ///< fastest plan among earlier measurements in the cache
  bool known_ = false;              // the last tuned() took its params from the cache
  bool unkept_ = false;             // the cache could not be written
  std::vector<Runner> runners_;
  Chosen chosen_;
};

}  // namespace

std::optional<Plan> untuned_plan(const Plan& found, const Machine& machine, const TuneOptions& options) {
  const Params asked = parse_accepted(found.mechanism, options.params);
  Result<Plan> plan = plan_with(found.problem(), machine, asked);
  if (!plan || plan->params == found.params) return std::nullopt;
  if (options.refuses && !options.refuses(*plan).empty()) return std::nullopt;
  return std::move(plan).value();
}

Result<Chosen> choose(const Problem& problem, const Machine& machine, const ChooseOptions& options) {
  return Contest(problem, machine, options).go();
}

}  // namespace shingle
