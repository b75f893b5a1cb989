// How well a machine profile predicts what has been measured: the plans of a record of bench_partitions, or
// of `shingle bench`, are made and simulated anew, and each prediction is held against its time. Beside it
// stands what the predictive search would choose now, by the times that a record of partitions has. No device
// is needed.
#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdio>
#include <map>
#include <optional>

#include "base/statistics.hpp"
#include "partition_trial.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/plan/json.hpp"

using namespace shingle;
using bench::Groups, bench::Samples;
using nlohmann::json;

namespace {

/// Of a row's problem, as describe() has it; routings are bench_partitions' by default.
Problem problem_of(const std::string& text) {
  char op[64];
  Problem problem{.dtype = DType::bf16};
  if (std::sscanf(text.c_str(), "%63s %ldx%ldx%ld bf16, B transposed, %d ranks", op, &problem.m, &problem.n,
                  &problem.k, &problem.world) != 5)
    throw InvalidArgument(fmt::format("'{}' is no problem of a record of bench_partitions", text));
  problem.op = parse_op(op);
  problem.transpose_b = true;
  const bench::Settings settings;
  if (problem.routes())
    problem.routing = std::make_shared<const Routing>(make_routing(
        settings.routing, problem.world,
        std::vector<std::int64_t>(static_cast<std::size_t>(problem.world), problem.m), settings.seed));
  return problem;
}

/// Of a row of `shingle bench`; nothing where it does not say enough.
std::optional<Plan> plan_of(const json& row, const Machine& machine) {
  Problem problem{.op = parse_op(row.at("op").get<std::string>()), .world = row.at("world")};
  problem.m = row.at("m"), problem.n = row.at("n"), problem.k = row.at("k");
  problem.dtype = parse_dtype(row.at("dtype").get<std::string>());
  problem.transpose_b = true;
  if (problem.routes() || problem.chains() || problem.attends()) return {};
  auto plan = make_plan(problem, machine, parse_mechanism(row.at("mechanism").get<std::string>()),
                        params_from_json(row.at("params").dump()));
  if (!plan) return {};
  return std::move(plan).value();
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
            {"median", sizes_.median()},
            {"p90", sizes_.at(0.9)},
            {"largest", sizes_.at(1)},
            {"mean", sum_ / static_cast<double>(sizes_.us.size())}};
  }

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

class Repredicted {
 public:
  explicit Repredicted(Machine machine) : machine_(std::move(machine)) {}

  /// Of `shingle bench`.
  void add_run(const json& row) {
    if (!row.at("overlapped_us").is_number()) return;
    const auto plan = plan_of(row, machine_);
    if (!plan) {
      ++left_out_;
      return;
    }
    const double us = row.at("overlapped_us"), predicted = simulate(*plan, machine_).makespan_us;
    rows_.push_back(row);
    rows_.back()["predicted_us"] = predicted;
    errors_[fmt::format("{} {}", row.at("op").get<std::string>(), row.at("mechanism").get<std::string>())]
        .add(predicted / us - 1);
    errors_["all"].add(predicted / us - 1);
  }

  /// Of bench_partitions.
  void add_partitions(const json& row) {
    const Problem problem = problem_of(row.at("problem"));
    const std::string op(name(problem.op));
    json made{{"problem", row.at("problem")}, {"points", json::array()}};
    std::map<Groups, double> measured;
    Groups simulated;
    double least_us = 0;
    for (const json& point : row.at("points")) {
      const Groups groups = point.at("group_waves");
      const double us = point.at("time").at("median_us");
      const auto plan = groups.empty()
                            ? make_plan(problem, machine_, Mechanism::sequential)
                            : make_plan(problem, machine_, Mechanism::signal, {.group_waves = groups});
      if (!plan) {  // of other waves: a mistaken one
        ++left_out_;
        continue;
      }
      const double predicted = simulate(*plan, machine_).makespan_us;
      made["points"].push_back({{"group_waves", groups}, {"us", us}, {"predicted_us", predicted}});
      errors_[groups.empty() ? "sequential" : op].add(predicted / us - 1);
      if (groups.empty()) continue;
      errors_["all by signal"].add(predicted / us - 1);
      measured[groups] = us;
      if (least_us == 0 || predicted < least_us) least_us = predicted, simulated = groups;
    }
    const double best = row.at("best_us");
    const auto choose = [&](const std::string& by, const Groups& groups) {
      const auto known = measured.find(groups);
      Chosen& chosen = chosen_[by];
      made[by] = groups;
      if (known == measured.end())
        ++chosen.unknown;
      else
        chosen.of_best.push_back(std::min(best / known->second, 1.0));
    };
    if (const auto model = wave_model(problem, machine_)) choose("searched", search(*model).group_waves);
    choose("simulated", simulated);
    rows_.push_back(std::move(made));
  }

  void print() const {
    fmt::print("{:<28} {:>6} {:>8} {:>8} {:>8} {:>8}\n", "error, relative", "points", "median", "p90",
               "largest", "mean");
    for (const auto& [op, errors] : errors_) {
      const json all = errors.summary();
      fmt::print("{:<28} {:>6} {:>7.1f}% {:>7.1f}% {:>7.1f}% {:>+7.1f}%\n", op, all.at("points").get<int>(),
                 100 * all.at("median").get<double>(), 100 * all.at("p90").get<double>(),
                 100 * all.at("largest").get<double>(), 100 * all.at("mean").get<double>());
    }
    for (const auto& [by, chosen] : chosen_)
      if (!chosen.of_best.empty())
        fmt::print("{}, of the fastest that was measured: {:.3f}, from {:.3f}, {} shapes; not measured {}\n",
                   by, geometric_mean(chosen.of_best), *std::ranges::min_element(chosen.of_best),
                   chosen.of_best.size(), chosen.unknown);
    if (left_out_ > 0)
      fmt::print("left out, as the record does not say enough, or has groups of other waves: {}\n",
                 left_out_);
  }

  /// Whether plans of `signal` of each operator are predicted, and partitions chosen, as is asked for.
  bool on_target() const {
    constexpr double most_error = 0.05, least_of_best = 0.99;
    bool met = !chosen_.empty();
    for (const auto& [op, errors] : errors_)
      met = met && (op == "sequential" || errors.summary().at("median").get<double>() <= most_error);
    for (const auto& [by, chosen] : chosen_)
      met = met && !chosen.of_best.empty() && geometric_mean(chosen.of_best) >= least_of_best;
    return met;
  }

  void put(json& record) const {
    record["rows"] = rows_;
    for (const auto& [op, errors] : errors_) record["summary"]["error"][op] = errors.summary();
    for (const auto& [by, chosen] : chosen_) record["summary"][by] = chosen.summary();
    record["summary"]["left_out"] = left_out_;
  }

 private:
  Machine machine_;
  std::map<std::string, Errors> errors_;
  std::map<std::string, Chosen> chosen_;
  json rows_ = json::array();
  int left_out_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Predictions of measured partitions, made anew from their record by a machine profile");
  std::string machine = "h200x8", half = "all", path;
  std::vector<std::string> records;
  bool check = false;
  app.add_option("record", records, "of bench_partitions or shingle bench")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--machine", machine)->capture_default_str();
  app.add_option("--shapes", half, "of the record: to fit a profile by some and try it on the others")
      ->check(CLI::IsMember({"all", "even", "odd"}))
      ->capture_default_str();
  app.add_option("--json", path, "file for what was predicted");
  app.add_flag(
      "--check", check,
      "fail unless the median error is at most 5%, of each operator, and the chosen partitions reach 99%");
  CLI11_PARSE(app, argc, argv);

  Repredicted repredicted(machine_from_spec(machine));
  std::vector<std::string> shapes;  // operators of a shape are in one half
  for (const std::string& file : records) {
    const json record = json::parse(read_file(file, 1 << 26), nullptr, false);
    if (!record.is_object() || !record.contains("rows"))
      throw InvalidArgument(fmt::format("{} is no record", file));
    for (const json& row : record.at("rows")) {
      const bool run = row.contains("mechanism");
      const std::string problem = run ? fmt::format("x {}x{}x{}", row.at("m").get<int>(),
                                                    row.at("n").get<int>(), row.at("k").get<int>())
                                      : row.at("problem").get<std::string>();
      const std::string shape = problem.substr(problem.find(' '));
      const auto at = std::ranges::find(shapes, shape) - shapes.begin();
      if (at == std::ssize(shapes)) shapes.push_back(shape);
      if (half != "all" && (at % 2 == 0) != (half == "even")) continue;
      run ? repredicted.add_run(row) : repredicted.add_partitions(row);
    }
  }
  repredicted.print();
  json written = bench::record(argc, argv);
  repredicted.put(written);
  bench::write(written, path);
  return check && !repredicted.on_target() ? 1 : 0;
} catch (const Error& error) {
  fmt::print(stderr, "bench_repredict: {}\n", error.what());
  return 1;
} catch (const json::exception& error) {
  fmt::print(stderr, "bench_repredict: a record of another form: {}\n", error.what());
  return 1;
}
