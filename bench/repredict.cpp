// How well a machine profile predicts what was measured: the plans of records of bench_partitions or
// `shingle bench` are made and simulated anew, and each prediction is held against its time. For partitions
// it also says how good those are that the predictive search would choose now. No device is needed.
#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>

#include "base/statistics.hpp"
#include "partition_trial.hpp"
#include "records.hpp"
#include "shingle/bench/contenders.hpp"
#include "shingle/machine/profile.hpp"

using namespace shingle;
using bench::Groups, bench::RecordRow, bench::Samples;
using nlohmann::json;

namespace {

/// The problem of a row. Records do not say whether B is transposed; in bench/ it always is.
Problem problem_of(const RecordRow& row) {
  const auto size = [&](const char* column) { return static_cast<std::int64_t>(row.number(column)); };
  Problem problem{.op = parse_op(row.text("op")), .world = static_cast<int>(size("world"))};
  problem.m = size("m"), problem.n = size("n"), problem.k = size("k");
  problem.dtype = parse_dtype(row.text("dtype"));
  problem.transpose_b = true;
  return problem;
}

/// The routing of bench_partitions by default.
void route(Problem& problem) {
  const bench::Settings settings;
  problem.routing = std::make_shared<const Routing>(make_routing(
      settings.routing, problem.world,
      std::vector<std::int64_t>(static_cast<std::size_t>(problem.world), problem.m), settings.seed));
}

/// The plan of a row's mechanism and params; nothing if there is none for this machine.
std::optional<Plan> plan_of(const RecordRow& row, const Problem& problem, const Machine& machine) {
  const cli::Contender plan = cli::parse_contenders(row.text("plan")).at(0);
  auto made = make_plan(problem, machine, parse_params(plan.mechanism, plan.params));
  if (!made) return {};
  return std::move(made).value();
}

/// "h200x4/suite" of bench/results/h200x4/suite.csv.
std::string short_name(const std::string& path) {
  const std::filesystem::path file(path);
  return (file.parent_path().filename() / file.stem()).string();
}

/// What predictions amount to.
class Errors {
 public:
  void add(double error) {
    sizes_.us.push_back(std::abs(error));
    sum_ += error;
  }
  json summary() const {
    return {{"points", sizes_.us.size()},
            {"median_error", sizes_.median()},
            {"p90_error", sizes_.at(0.9)},
            {"largest_error", sizes_.at(1)},
            {"mean_error", sum_ / static_cast<double>(sizes_.us.size())}};
  }
  double median() const { return sizes_.median(); }

 private:
  Samples sizes_;
  double sum_ = 0;
};

/// The chosen partitions of all shapes, by what the record has of them.
struct Chosen {
  std::vector<double> of_best{};  ///< the fastest measured time over theirs
  int unknown = 0;                ///< that the record does not have

  json summary() const {
    json object{{"shapes", of_best.size()}, {"not_measured", unknown}};
    if (of_best.empty()) return object;
    object["of_best"] = geometric_mean(of_best);
    object["least"] = *std::ranges::min_element(of_best);
    return object;
  }
};

/// One record, by one profile.
class Repredicted {
 public:
  Repredicted(std::string name, const Machine& machine) : name_(std::move(name)), machine_(machine) {}

  /// A row of `shingle bench`.
  void add_run(const RecordRow& row) {
    if (row.text("median_us").empty()) return;
    const Problem problem = problem_of(row);
    if (problem.traits().routes() || problem.traits().chains() || problem.traits().attends) {
      ++left_out_;
      return;
    }
    const double error = error_of(row, problem);
    if (std::isnan(error)) return;
    errors_[fmt::format("{} {}", row.text("op"), row.text("plan").substr(0, row.text("plan").find(':')))].add(
        error);
    errors_["all"].add(error);
  }

  /// The rows of a shape of bench_partitions.
  void add_partitions(const std::vector<RecordRow>& rows) {
    Problem problem = problem_of(rows.at(0));
    if (problem.traits().routes()) route(problem);
    const std::string op(name(problem.op));
    std::map<Groups, double> measured;
    Groups simulated;
    double least_us = 0, best_us = 0;
    for (const RecordRow& row : rows) {
      const double us = row.number("median_us");
      if (row.text("names").ends_with("fastest")) best_us = us;
      const double error = error_of(row, problem);  // none if it has groups of other waves: a mistaken one
      if (std::isnan(error)) continue;
      const cli::Contender plan = cli::parse_contenders(row.text("plan")).at(0);
      const Params params = parse_params(plan.mechanism, plan.params);
      const auto* signal = std::get_if<SignalParams>(&params);
      const Groups groups = signal != nullptr ? signal->group_waves : Groups{};
      errors_[groups.empty() ? "sequential" : op].add(error);
      if (groups.empty()) continue;
      errors_["all by signal"].add(error);
      measured[groups] = us;
      const double predicted = us * (1 + error);
      if (least_us == 0 || predicted < least_us) least_us = predicted, simulated = groups;
    }
    const auto choose = [&](const std::string& by, const Groups& groups) {
      const auto known = measured.find(groups);
      Chosen& chosen = chosen_[by];
      if (known == measured.end())
        ++chosen.unknown;
      else
        chosen.of_best.push_back(std::min(best_us / known->second, 1.0));
    };
    if (const auto model = wave_model(problem, machine_)) choose("searched", search(*model).group_waves);
    choose("simulated", simulated);
  }

  void print() const {
    fmt::print("{:<32} {:>6} {:>8} {:>8} {:>8} {:>8}\n", name_, "points", "median", "p90", "largest", "mean");
    for (const auto& [of, errors] : errors_) {
      const json all = errors.summary();
      fmt::print("{:<32} {:>6} {:>7.1f}% {:>7.1f}% {:>7.1f}% {:>+7.1f}%\n", of, all.at("points").get<int>(),
                 100 * all.at("median_error").get<double>(), 100 * all.at("p90_error").get<double>(),
                 100 * all.at("largest_error").get<double>(), 100 * all.at("mean_error").get<double>());
    }
    for (const auto& [by, chosen] : chosen_)
      if (!chosen.of_best.empty())
        fmt::print("{}, of the fastest that was measured: {:.3f}, from {:.3f}, {} shapes; not measured {}\n",
                   by, geometric_mean(chosen.of_best), *std::ranges::min_element(chosen.of_best),
                   chosen.of_best.size(), chosen.unknown);
    if (left_out_ > 0)
      fmt::print("left out, because the record does not say enough, or has groups of other waves: {}\n",
                 left_out_);
  }

  /// Whether plans of `signal` of each operator are predicted, and partitions chosen, as is asked for.
  bool on_target() const {
    constexpr double most_error = 0.05, least_of_best = 0.99;
    bool met = !chosen_.empty();
    for (const auto& [of, errors] : errors_)
      met = met && (of == "sequential" || errors.median() <= most_error);
    for (const auto& [by, chosen] : chosen_)
      met = met && !chosen.of_best.empty() && geometric_mean(chosen.of_best) >= least_of_best;
    return met;
  }

  void put(json& rows) const {
    const auto put_row = [&](const std::string& of, json row) {
      row["record"] = name_, row["of"] = of;
      rows.push_back(std::move(row));
    };
    for (const auto& [of, errors] : errors_) put_row(of, errors.summary());
    for (const auto& [by, chosen] : chosen_) put_row(by, chosen.summary());
  }

 private:
  /// Relative, of a plan's prediction; NaN, and counted, if there is no such plan.
  double error_of(const RecordRow& row, const Problem& problem) {
    const auto plan = plan_of(row, problem, machine_);
    if (plan) return simulate(*plan, machine_).makespan_us / row.number("median_us") - 1;
    ++left_out_;
    return std::nan("");
  }

  std::string name_;
  Machine machine_;
  std::map<std::string, Errors> errors_;
  std::map<std::string, Chosen> chosen_;
  int left_out_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Predictions of measured plans, made anew from their records by a machine profile");
  std::string machine_name = "h200x8", half = "all", path;
  std::vector<std::string> files;
  bool check = false;
  app.add_option("record", files, "CSV of bench_partitions or shingle bench")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--machine", machine_name)->capture_default_str();
  app.add_option("--shapes", half, "of the records: to fit a profile by some and try it on the others")
      ->check(CLI::IsMember({"all", "even", "odd"}))
      ->capture_default_str();
  app.add_option("--json", path, "file for the errors");
  app.add_flag(
      "--check", check,
      "fail unless the median error is at most 5%, of each operator, and the chosen partitions reach 99%");
  CLI11_PARSE(app, argc, argv);

  const Machine machine = machine_from_spec(machine_name);
  std::vector<std::string> shapes;  // operators of a shape are in one half
  bool on_target = true;
  json written = bench::record(argc, argv);
  for (const std::string& file : files) {
    Repredicted repredicted(short_name(file), machine);
    std::vector<RecordRow> partitions;
    const auto add_partitions = [&] {
      if (!partitions.empty()) repredicted.add_partitions(std::exchange(partitions, {}));
    };
    for (RecordRow& row : bench::read_record(file)) {
      const std::string shape = fmt::format("{}x{}x{}", row.text("m"), row.text("n"), row.text("k"));
      const auto at = std::ranges::find(shapes, shape) - shapes.begin();
      if (at == std::ssize(shapes)) shapes.push_back(shape);
      if (half != "all" && (at % 2 == 0) != (half == "even")) continue;
      if (row.has("contender")) {
        repredicted.add_run(row);
        continue;
      }
      if (!partitions.empty() && problem_of(partitions[0]) != problem_of(row)) add_partitions();
      partitions.push_back(std::move(row));
    }
    add_partitions();
    repredicted.print();
    repredicted.put(written["rows"]);
    on_target = on_target && repredicted.on_target();
  }
  bench::write(written, path);
  return check && !on_target ? 1 : 0;
} catch (const Error& error) {
  fmt::print(stderr, "bench_repredict: {}\n", error.what());
  return 1;
}
