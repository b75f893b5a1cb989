// The plan that `auto` chooses, beside the fastest that can be measured: every mechanism with the params that
// were found for it, and variants of these, on the host backend's paced links, all in turn.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <random>

#include "api/choose.hpp"
#include "api/workspace.hpp"
#include "report.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/tune/profile.hpp"

using namespace shingle;

namespace {

struct Case {
  Problem problem;
  Link link;
};

/// GEMMs of some ten milliseconds, and links on which communication takes a third to all of that.
Case draw(std::mt19937_64& bits, int world, const Machine& machine) {
  const auto one_of = [&](auto... values) {
    const std::array list{values...};
    return list[bits() % list.size()];
  };
  Case at;
  at.problem.op = one_of(Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm);
  at.problem.world = world;
  at.problem.m = one_of(512, 768, 1024, 1536, 2048);
  at.problem.n = one_of(512, 1024, 1536, 2048);
  at.problem.k = one_of(512, 1024, 2048);
  const double gemm_us = library_gemm_us(machine, at.problem.m, at.problem.n, at.problem.k, machine.workers);
  const double bytes = static_cast<double>(at.problem.m) * static_cast<double>(at.problem.n) * 4;
  at.link = {bytes / (gemm_us * one_of(0.3, 0.5, 1.0) * 1e3), 10};
  return at;
}

/// Plans, ready to be measured in turn.
class Field {
 public:
  Field(const Case& at, int world)
      : world_(make_world(world, {.backend = "host", .link = at.link})),
        inputs_(random_inputs(at.problem, 3)),
        memory_(*world_, *inputs_) {}

  std::size_t add(const Plan& plan) {
    for (std::size_t i = 0; i < plans_.size(); ++i)
      if (plans_[i] == plan) return i;
    plans_.push_back(plan);
    operators_.push_back(std::make_unique<Operator>(*world_, plan, 30e6));
    memory_.bind(*operators_.back());
    operators_.back()->run();
    samples_.emplace_back();
    return plans_.size() - 1;
  }
  void measure(int rounds) {
    for (int round = 0; round < rounds; ++round)
      for (std::size_t i = 0; i < operators_.size(); ++i)
        samples_[i].us.push_back(operators_[i]->run().elapsed_us);
  }
  double us(std::size_t i) const { return samples_[i].median(); }
  const Plan& plan(std::size_t i) const { return plans_[i]; }
  std::size_t fastest() const {
    std::size_t best = 0;
    for (std::size_t i = 1; i < plans_.size(); ++i)
      if (us(i) < us(best)) best = i;
    return best;
  }
  std::size_t size() const { return plans_.size(); }

 private:
  std::unique_ptr<World> world_;
  std::unique_ptr<Inputs> inputs_;
  Workspace memory_;
  std::vector<Plan> plans_;
  std::vector<std::unique_ptr<Operator>> operators_;
  std::vector<bench::Samples> samples_;
};

/// The params found for a mechanism, and each of its choices one value further.
std::vector<Plan> variants(const Problem& problem, const Machine& machine, const Considered& considered) {
  std::vector<Plan> plans;
  const auto add = [&](const Params& params) {
    if (auto plan = make_plan(problem, machine, params)) plans.push_back(std::move(plan).value());
  };
  add(considered.params);
  const Params open = default_params(mechanism_of(considered.params));
  for (const Choice& choice : choices(problem, machine, considered.params, open))
    if (!choice.values.empty()) add(choice.values[choice.values.size() / 2]);
  return plans;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The plan that auto chooses beside the fastest measured one, on the host backend");
  int count = 12, world = 2, rounds = 7;
  std::uint64_t seed = 1;
  std::string json, profile_file;
  app.add_option("--count", count)->capture_default_str();
  app.add_option("--world", world)->capture_default_str();
  app.add_option("--rounds", rounds)->capture_default_str();
  app.add_option("--seed", seed)->capture_default_str();
  app.add_option("--profile", profile_file, "of this machine; without one it is measured first");
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  Machine machine =
      profile_file.empty() ? profile(*make_world(world, {.backend = "host"})) : read_machine(profile_file);
  auto record = bench::record(argc, argv);
  std::mt19937_64 bits(seed);
  bench::Samples predicted_losses, confirmed_losses;
  for (int i = 0; i < count; ++i) {
    const Case at = draw(bits, world, machine);
    machine.link = at.link;
    const Chosen chosen = choose(at.problem, machine).value();
    Field field(at, world);
    const std::size_t own = field.add(chosen.plan);
    std::vector<std::pair<double, std::size_t>>
        best_few;  // what `--confirm` would measure, by predicted time
    for (const Considered& considered : chosen.considered) {
      if (considered.us <= 0) continue;
      const auto plans = variants(at.problem, machine, considered);
      for (std::size_t p = 0; p < plans.size(); ++p) {
        const std::size_t index = field.add(plans[p]);
        if (p == 0) best_few.emplace_back(considered.us, index);
      }
    }
    field.measure(rounds);
    std::sort(best_few.begin(), best_few.end());
    if (best_few.size() > 3) best_few.resize(3);
    const double best = field.us(field.fastest());
    double confirmed = field.us(own);
    for (const auto& [predicted, index] : best_few) confirmed = std::min(confirmed, field.us(index));
    predicted_losses.us.push_back(field.us(own) / best - 1);
    confirmed_losses.us.push_back(confirmed / best - 1);
    fmt::print(
        "{:<42} {:>2} plans  chosen {:<11} {:>8.2f} ms  confirmed {:>8.2f} ms  fastest {:<11} {:>8.2f} ms  "
        "loss {:+.1f}%, {:+.1f}%\n",
        describe(at.problem), field.size(), name(chosen.plan.mechanism), field.us(own) / 1e3, confirmed / 1e3,
        name(field.plan(field.fastest()).mechanism), best / 1e3, 100 * predicted_losses.us.back(),
        100 * confirmed_losses.us.back());
    std::fflush(stdout);
    record["rows"].push_back({{"problem", describe(at.problem)},
                              {"link_gbps", at.link.gbps},
                              {"plans", field.size()},
                              {"chosen", name(chosen.plan.mechanism)},
                              {"params", nlohmann::json::parse(to_json(chosen.plan.params))},
                              {"predicted_us", chosen.us},
                              {"chosen_us", field.us(own)},
                              {"confirmed_us", confirmed},
                              {"fastest", name(field.plan(field.fastest()).mechanism)},
                              {"fastest_us", best}});
  }
  fmt::print(
      "slower than the fastest measured plan, median over {} problems: auto {:.1f}%, auto --confirm {:.1f}% "
      "(target 3%)\n",
      count, 100 * predicted_losses.median(), 100 * confirmed_losses.median());
  record["median_loss"] = predicted_losses.median();
  record["median_loss_confirmed"] = confirmed_losses.median();
  bench::write(record, json);
  return predicted_losses.median() <= 0.03 ? 0 : 1;
}
