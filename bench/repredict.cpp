// How well a machine profile predicts what was measured: makes and simulates the plans of records of
// `shingle bench` anew, and compares each prediction with the measured time. Needs no device.
#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "base/statistics.hpp"
#include "records.hpp"
#include "report.hpp"
#include "shingle/api/registry.hpp"
#include "shingle/bench/contenders.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/sim/simulate.hpp"
#include "workload/routing_patterns.hpp"

using namespace shingle;
using bench::RecordRow, bench::Samples;
using nlohmann::json;

namespace {

// Largest errors of a record that --check accepts: of all plans, and the median of one operator by one
// mechanism.
constexpr double most_median = 0.05, most_p90 = 0.15, most_by_mechanism = 0.1;

/// The number behind an option of the record's command; nothing without the option.
std::optional<std::int64_t> option(const RecordRow& row, const std::string& name) {
  const std::string& command = row.text("command");
  const std::size_t at = command.find(name + " ");
  if (at == std::string::npos) return {};
  return std::stoll(command.substr(at + name.size() + 1));
}

/// The problem of a row. Records do not say whether B is transposed, that tokens of a causal ring are in a
/// zigzag, or that rows of an all-to-all are routed at random; in bench/ it is always so. Of experts with a
/// capacity, only the command says how many there are.
Problem problem_of(const RecordRow& row) {
  const auto size = [&](const char* column) { return static_cast<std::int64_t>(row.number(column)); };
  Problem problem{.op = parse_op(row.text("op")), .world = static_cast<int>(size("world"))};
  problem.m = size("m"), problem.n = size("n"), problem.k = size("k");
  problem.dtype = parse_dtype(row.text("dtype"));
  problem.transpose_b = problem.traits().products > 0;
  if (problem.traits().attends) {
    problem.attention = {.heads = size("heads"),
                         .kv_heads = size("kv_heads"),
                         .head_dim = size("head_dim"),
                         .causal = row.text("causal") == "yes"};
    if (problem.op == Op::allgather_attention && problem.attention.causal)
      problem.row_order = RowOrder::zigzag;
  }
  if (const auto capacity = option(row, "--capacity")) {
    problem.transpose_b = row.text("command").find("--transpose-b") != std::string::npos;
    problem.inner = size("inner");
    problem.experts = {static_cast<std::int32_t>(option(row, "--experts").value_or(0)),
                       static_cast<std::int32_t>(option(row, "--topk").value_or(0)),
                       static_cast<std::int32_t>(*capacity)};
    problem.routing = std::make_shared<Routing>(
        Routing::slots(problem.sources(), problem.experts.count, *capacity, problem.traits().expert_split()));
    return problem;
  }
  if (problem.traits().routes() && !problem.traits().grouped) {
    const std::vector<std::int64_t> rows(static_cast<std::size_t>(problem.world), problem.m);
    problem.routing = std::make_shared<Routing>(make_routing(RoutingPattern::random, problem.world, rows, 0));
  }
  return problem;
}

/// The params of a row's plan. Plans of fused sums name `sums` since there is a choice: before, a pass
/// summed.
Params params_of(const cli::Contender& plan, const Problem& problem) {
  Params params = parse_params(plan.mechanism, plan.params);
  if (auto* fused = std::get_if<FusedParams>(&params))
    if (problem.traits().reduces() && !problem.traits().grouped && fused->sums == SumsIn::automatic)
      fused->sums = SumsIn::pass;
  return params;
}

/// The plan of a row's mechanism and params; nothing if there is none for this machine.
std::optional<Plan> plan_of(const RecordRow& row, const Problem& problem, const Machine& machine) {
  const cli::Contender plan = cli::parse_contenders(row.text("plan")).at(0);
  auto made = make_plan(problem, machine, params_of(plan, problem));
  if (!made) return {};
  return std::move(made).value();
}

/// "h200x2/suite" of bench/results/h200x2/suite.csv.
std::string short_name(const std::string& path) {
  const std::filesystem::path file(path);
  return (file.parent_path().filename() / file.stem()).string();
}

/// Relative errors of predictions.
class Errors {
 public:
  void add(double error) {
    sizes_.us.push_back(std::abs(error));
    sum_ += error;
  }
  json summary() const {
    return {{"points", sizes_.us.size()},
            {"median_error", at(0.5)},
            {"p90_error", at(0.9)},
            {"largest_error", at(1)},
            {"mean_error", sum_ / static_cast<double>(sizes_.us.size())}};
  }
  /// A quantile of their sizes.
  double at(double fraction) const { return sizes_.at(fraction); }

 private:
  Samples sizes_;
  double sum_ = 0;
};

/// One record, by one profile.
class Repredicted {
 public:
  Repredicted(std::string name, const Machine& machine) : name_(std::move(name)), machine_(machine) {}

  void add(const RecordRow& row) {
    if (row.text("median_us").empty()) return;
    const Problem problem = problem_of(row);
    const bool incomplete = (problem.traits().grouped || problem.traits().chains()) && !problem.has_slots();
    const std::optional<Plan> plan = incomplete ? std::nullopt : plan_of(row, problem, machine_);
    if (!plan) {
      ++left_out_;
      return;
    }
    const double error = simulate(*plan, machine_).makespan_us / row.number("median_us") - 1;
    errors_[fmt::format("{} {}", row.text("op"), name(plan->mechanism))].add(error);
    errors_["all"].add(error);
  }

  void print() const {
    fmt::print("{:<32} {:>6} {:>8} {:>8} {:>8} {:>8}\n", name_, "points", "median", "p90", "largest", "mean");
    for (const auto& [of, errors] : errors_) {
      const json all = errors.summary();
      fmt::print("{:<32} {:>6} {:>7.1f}% {:>7.1f}% {:>7.1f}% {:>+7.1f}%\n", of, all.at("points").get<int>(),
                 100 * all.at("median_error").get<double>(), 100 * all.at("p90_error").get<double>(),
                 100 * all.at("largest_error").get<double>(), 100 * all.at("mean_error").get<double>());
    }
    if (left_out_ > 0)
      fmt::print("left out, because the record lacks sizes or experts, or the machine has no such plan: {}\n",
                 left_out_);
  }

  /// Whether the errors are small. False too if a row has no plan, so that none is lost unnoticed.
  bool on_target() const {
    if (left_out_ > 0 || errors_.empty()) return false;
    const Errors& all = errors_.at("all");
    return all.at(0.5) <= most_median && all.at(0.9) <= most_p90 &&
           std::ranges::all_of(errors_,
                               [](const auto& of) { return of.second.at(0.5) <= most_by_mechanism; });
  }

  void put(json& rows) const {
    for (const auto& [of, errors] : errors_) {
      json row = errors.summary();
      row["record"] = name_, row["of"] = of;
      rows.push_back(std::move(row));
    }
  }

 private:
  std::string name_;
  Machine machine_;
  std::map<std::string, Errors> errors_;
  int left_out_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Predictions of measured plans, made anew from their records by a machine profile");
  std::string machine_name = "h200x8", half = "all", path;
  std::vector<std::string> files;
  bool check = false;
  app.add_option("record", files, "CSV of shingle bench")->required()->check(CLI::ExistingFile);
  app.add_option("--machine", machine_name)->capture_default_str();
  app.add_option("--shapes", half, "of the records: to fit a profile by some and try it on the others")
      ->check(CLI::IsMember({"all", "even", "odd"}))
      ->capture_default_str();
  app.add_option("--json", path, "file for the errors");
  app.add_flag(
      "--check", check,
      fmt::format(
          "fail if a row has no plan, or if a record's error exceeds {:.0f}% (median), {:.0f}% (p90), "
          "or {:.0f}% (median of an operator by a mechanism)",
          100 * most_median, 100 * most_p90, 100 * most_by_mechanism));
  CLI11_PARSE(app, argc, argv);

  const Machine machine = machine_from_spec(machine_name);
  std::vector<std::string> shapes;  // operators of a shape are in one half
  bool on_target = true;
  json written = bench::record(argc, argv);
  for (const std::string& file : files) {
    Repredicted repredicted(short_name(file), machine);
    for (const RecordRow& row : bench::read_record(file)) {
      const std::string shape = fmt::format("{}x{}x{}", row.text("m"), row.text("n"), row.text("k"));
      const auto at = std::ranges::find(shapes, shape) - shapes.begin();
      if (at == std::ssize(shapes)) shapes.push_back(shape);
      if (half != "all" && (at % 2 == 0) != (half == "even")) continue;
      repredicted.add(row);
    }
    repredicted.print();
    repredicted.put(written["rows"]);
    if (check && !repredicted.on_target()) {
      fmt::print(stderr, "{}: errors exceed what --check accepts (--help), or a row has no plan\n", file);
      on_target = false;
    }
  }
  bench::write(written, path);
  return on_target ? 0 : 1;
} catch (const Error& error) {
  fmt::print(stderr, "bench_repredict: {}\n", error.what());
  return 1;
}
