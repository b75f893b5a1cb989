// A shape whose waves are grouped in many ways, each planned, predicted, checked and measured in turn.
#pragma once

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "api/workspace.hpp"
#include "report.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/base/error.hpp"
#include "shingle/sim/simulate.hpp"
#include "tune/search.hpp"
#include "workload/routing_patterns.hpp"

namespace shingle::bench {

using Clock = std::chrono::steady_clock;
using Groups = std::vector<std::int64_t>;

constexpr int finalists = 4;  // of those that were tried, beside the ones with a name
constexpr double timeout_us = 10e6;
constexpr std::int64_t equal_sizes[] = {1, 2, 4};

inline double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

struct Settings {
  SignalParams params{};
  int most = 32;          ///< partitions to try
  int rounds = 3;         ///< of all partitions
  int repeat = 9;         ///< rounds of the finalists
  double idle_ms = 0;     ///< before each run
  std::int32_t off = 20;  ///< tiles by which a wave is mistaken
  std::uint64_t seed = 1;
  RoutingPattern routing = RoutingPattern::random;
};

/// Waves in each group, as bit w - 1 says whether a group ends behind wave w.
inline Groups groups_of(std::uint64_t bits, std::int64_t waves) {
  Groups groups{1};
  for (std::int64_t w = 1; w < waves; ++w) {
    if ((bits >> (w - 1) & 1) != 0)
      groups.push_back(1);
    else
      ++groups.back();
  }
  return groups;
}

/// All partitions, where there are at most so many; else as many at random, each once.
inline std::vector<Groups> partitions(std::int64_t waves, int most, std::uint64_t seed) {
  std::vector<Groups> found;
  if (waves < 63 && std::uint64_t{1} << (waves - 1) <= static_cast<std::uint64_t>(most)) {
    for (std::uint64_t bits = 0; bits < std::uint64_t{1} << (waves - 1); ++bits)
      found.push_back(groups_of(bits, waves));
    return found;
  }
  std::mt19937_64 random(seed);
  while (found.size() < static_cast<std::size_t>(most)) {
    // As likely with few groups as with many: each boundary with odds that are drawn first.
    const auto odds = random();
    Groups groups{1};
    for (std::int64_t w = 1; w < waves; ++w) {
      if (random() < odds)
        groups.push_back(1);
      else
        ++groups.back();
    }
    if (std::ranges::find(found, groups) == found.end()) found.push_back(std::move(groups));
  }
  return found;
}

/// The plan that is searched and made for waves `off` tiles larger than those that run.
inline Result<Plan> mistaken(const Problem& problem, const Machine& machine, SignalParams params,
                             std::int32_t off) {
  Machine wrong = machine;
  wrong.workers += off;
  const auto model = wave_model(problem, wrong, params);
  if (!model) return Reason{model.reason()};
  params.group_waves = search(*model).group_waves;
  Result<Plan> plan = make_plan(problem, wrong, params);
  if (!plan) return plan;
  plan->workers = machine.workers;
  for (RankPlan& rank : plan->ranks)
    for (Lane& lane : rank.lanes)
      for (Step& step : lane.steps) {
        if (auto* gemm = std::get_if<Gemm>(&step)) gemm->resources.most -= off;
        if (auto* pass = std::get_if<Elementwise>(&step)) pass->resources.most -= off;
      }
  return plan;
}

/// The groups of a plan of `signal`; none of another mechanism.
inline Groups groups_in(const Plan& plan) {
  return plan.mechanism == Mechanism::signal ? std::get<SignalParams>(params_of(plan)).group_waves : Groups{};
}

/// A plan that is measured, under all the names that it goes by.
struct Contender {
  std::vector<std::string> names;  ///< none: one of many
  std::unique_ptr<Operator> op;
  double predicted_us = 0;  ///< by the simulator
  Samples samples{};
  bool right = false;

  double us() const { return samples.median(); }
  bool is(std::string_view name) const { return std::ranges::find(names, name) != names.end(); }
  bool overlaps() const { return op->plan().mechanism == Mechanism::signal; }
};

/// A problem by all the partitions that are tried.
class Trial {
 public:
  /// Throws Unsupported where the backend cannot run one of the plans.
  Trial(World& world, const Problem& problem, const Machine& machine, const Settings& settings,
        const WaveModel& model)
      : world_(world),
        machine_(machine),
        settings_(settings),
        inputs_(random_inputs(problem, settings.seed)),
        memory_(world, *inputs_),
        sample_(*inputs_, world.local_ranks()),
        waves_(model.waves()) {
    Samples search_us;
    Groups found;
    for (int i = 0; i < 21; ++i) {
      const auto begin = Clock::now();
      found = search(wave_model(problem, machine, settings.params).value()).group_waves;
      search_us.us.push_back(us_since(begin));
    }
    search_us_ = search_us.median();
    add("sequential", make_plan(problem, machine, SequentialParams{}));
    add("searched", grouped(found));
    for (const std::int64_t size : equal_sizes)
      if (size < waves_) add(fmt::format("equal {}", size), grouped(equal_groups(waves_, size)));
    add("mistaken", mistaken(problem, machine, settings.params, settings.off));
    const std::vector<Groups> tried = partitions(waves_, settings.most, settings.seed);
    exhaustive_ = waves_ < 63 && tried.size() == std::size_t{1} << (waves_ - 1);
    for (const Groups& groups : tried) add("", grouped(groups));
    // What `tune` would take, had it simulated all of them.
    Contender* best = nullptr;
    for (Contender& one : contenders_)
      if (one.overlaps() && !one.is("mistaken") && (best == nullptr || one.predicted_us < best->predicted_us))
        best = &one;
    best->names.push_back("simulated");
  }

  /// Whether all results are right.
  bool run() {
    for (Contender& one : contenders_) check(one);
    for (int round = 0; round < settings_.rounds; ++round)
      for (Contender& one : contenders_) time(one);
    // The fastest of many is so by luck as well: who comes that far is measured anew.
    std::vector<Contender*> last;
    for (Contender& one : contenders_) last.push_back(&one);
    std::ranges::stable_sort(last, {}, &Contender::us);
    int nameless = 0;
    std::erase_if(last, [&](const Contender* one) { return one->names.empty() && ++nameless > finalists; });
    for (Contender* one : last) one->samples.us.clear();
    for (int round = 0; round < settings_.repeat; ++round)
      for (Contender* one : last) time(*one);
    for (const Contender* one : last)
      if (one->overlaps() && (best_us_ == 0 || one->us() < best_us_)) best_us_ = one->us();
    return std::ranges::all_of(contenders_, &Contender::right);
  }

  std::int64_t waves() const { return waves_; }
  bool exhaustive() const { return exhaustive_; }
  double search_us() const { return search_us_; }
  double best_us() const { return best_us_; }
  const std::vector<Contender>& contenders() const { return contenders_; }
  /// The time of one with a name; 0: there is none.
  double us(std::string_view name) const {
    for (const Contender& one : contenders_)
      if (one.is(name)) return one.us();
    return 0;
  }

  nlohmann::json json() const {
    nlohmann::json row{{"problem", describe(inputs_->problem())},
                       {"waves", waves_},
                       {"exhaustive", exhaustive_},
                       {"search_us", search_us_},
                       {"best_us", best_us_},
                       {"points", nlohmann::json::array()}};
    for (const Contender& one : contenders_)
      row["points"].push_back({{"names", one.names},
                               {"group_waves", groups_in(one.op->plan())},
                               {"time", one.samples.json()},
                               {"predicted_us", one.predicted_us},
                               {"verified", one.right}});
    return row;
  }

 private:
  Result<Plan> grouped(const Groups& groups) const {
    SignalParams params = settings_.params;
    params.group_waves = groups;
    return make_plan(inputs_->problem(), machine_, params);
  }
  void add(const std::string& name, Result<Plan> plan) {
    if (!plan) throw Unsupported(plan.reason());
    auto at =
        std::ranges::find_if(contenders_, [&](const Contender& one) { return one.op->plan() == *plan; });
    if (at == contenders_.end()) {
      Contender one;
      one.predicted_us = simulate(*plan, machine_).makespan_us;
      one.op = std::make_unique<Operator>(world_, std::move(plan).value(), timeout_us);
      memory_.bind(*one.op);
      at = contenders_.insert(at, std::move(one));
    }
    if (!name.empty()) at->names.push_back(name);
  }

  /// Also the run that warms up.
  void check(Contender& one) {
    memory_.poison_outputs();
    one.op->executable().poison();
    world_.barrier();
    one.op->run();
    one.right = world_.all_max({memory_.check(sample_).passed ? 0.0 : 1.0})[0] == 0;
  }
  void time(Contender& one) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(settings_.idle_ms));
    one.samples.us.push_back(world_.all_max({one.op->run().elapsed_us})[0]);
  }

  World& world_;
  const Machine& machine_;
  const Settings& settings_;
  std::unique_ptr<Inputs> inputs_;
  Workspace memory_;
  RowSample sample_;
  std::int64_t waves_;
  std::vector<Contender> contenders_;
  bool exhaustive_ = false;
  double search_us_ = 0, best_us_ = 0;
};

}  // namespace shingle::bench
