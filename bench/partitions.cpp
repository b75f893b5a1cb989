// Which partition of a GEMM's waves into groups is fastest, on any backend (FlashOverlap §6.5): `signal` with
// all partitions of a shape, or a random sample of them, measured in turn, each result checked. Beside them
// stand the simulator's predictions (Fig. 15), the partition that the predictive search finds (claim C2), and
// the ablations of Fig. 14: groups of equal size, and waves taken to be some tiles larger than they are.
#include <CLI/CLI.hpp>

#include <cmath>

#include "base/statistics.hpp"
#include "partition_trial.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/tune/profile.hpp"

using namespace shingle;
using bench::Contender, bench::equal_sizes, bench::Settings, bench::Trial, bench::us_since;

namespace {

/// What all trials amount to.
class Summary {
 public:
  void add(const Trial& trial) {
    ++trials_;
    if (trial.exhaustive())
      exhaustive_.push_back(trial.best_us() / trial.us("searched"));
    else
      sampled_.push_back(trial.best_us() / trial.us("searched"));
    search_us_.us.push_back(trial.search_us());
    for (const Contender& one : trial.contenders()) {
      if (!one.overlaps()) continue;
      const double error = std::abs(one.predicted_us / one.us() - 1);
      errors_["all"].us.push_back(error);
      errors_[std::string(name(one.op->problem().op))].us.push_back(error);
    }
    for (const std::string& name : rivals())
      if (const double us = trial.us(name); us > 0) slower_[name].push_back(us / trial.us("searched"));
  }

  static std::vector<std::string> rivals() {
    std::vector<std::string> names{"sequential", "simulated"};
    for (const std::int64_t size : equal_sizes) names.push_back(fmt::format("equal {}", size));
    names.push_back("mistaken");
    return names;
  }

  void print() const {
    if (trials_ == 0) return;
    fmt::print("\n{:<20} {:>6} {:>8} {:>8} {:>8}", "error, relative", "points", "median", "p90", "largest");
    for (const double bound : bounds) fmt::print(" {:>5.0f}%", 100 * bound);
    for (const auto& [op, errors] : errors_) {
      fmt::print("\n{:<20} {:>6} {:>7.1f}% {:>7.1f}% {:>7.1f}%", op, errors.us.size(), 100 * errors.median(),
                 100 * errors.at(0.9), 100 * errors.at(1));
      for (const double bound : bounds) fmt::print(" {:>6.2f}", within(errors, bound));
    }
    fmt::print("\n\n");
    print("searched, of the fastest of all partitions", exhaustive_);
    print("searched, of the fastest of a random sample", sampled_);
    fmt::print("a search takes {:.0f} us, at most {:.0f} us (target 1000 us)\n", search_us_.median(),
               search_us_.at(1));
    for (const auto& [name, times] : slower_) print(name + ", time over that of searched", times);
  }

  nlohmann::json json() const {
    if (trials_ == 0) return {};
    nlohmann::json object{{"search_us", search_us_.median()}};
    for (const auto& [op, errors] : errors_)
      object["error"][op] = {{"points", errors.us.size()},
                             {"median", errors.median()},
                             {"p90", errors.at(0.9)},
                             {"largest", errors.at(1)}};
    if (!exhaustive_.empty()) object["searched_of_best"] = geometric_mean(exhaustive_);
    if (!sampled_.empty()) object["searched_of_best_sampled"] = geometric_mean(sampled_);
    for (const auto& [name, times] : slower_) object["over_searched"][name] = geometric_mean(times);
    return object;
  }

 private:
  static constexpr double bounds[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5};  // where the CDF is printed

  static double within(const bench::Samples& errors, double bound) {
    const auto count = std::ranges::count_if(errors.us, [&](double error) { return error <= bound; });
    return static_cast<double>(count) / static_cast<double>(errors.us.size());
  }
  static void print(const std::string& what, const std::vector<double>& ratios) {
    if (ratios.empty()) return;
    const auto [least, most] = std::ranges::minmax(ratios);
    fmt::print("{}: {:.3f}, from {:.3f} to {:.3f}, {} shapes\n", what, geometric_mean(ratios), least, most,
               ratios.size());
  }

  int trials_ = 0;
  std::map<std::string, bench::Samples> errors_;  ///< relative; by operator, and of all
  bench::Samples search_us_;
  std::vector<double> exhaustive_, sampled_;
  std::map<std::string, std::vector<double>> slower_;
};

Problem problem_of(Op op, const std::string& shape, const World& world, const Settings& settings) {
  Problem problem{.op = op, .world = world.size()};
  if (std::sscanf(shape.c_str(), "%ldx%ldx%ld", &problem.m, &problem.n, &problem.k) != 3)
    throw InvalidArgument(fmt::format("'{}' is no shape MxNxK", shape));
  problem.dtype = world.capabilities().native_dtypes.at(0);
  problem.transpose_b = true;
  if (problem.traits().routes())
    problem.routing = std::make_shared<const Routing>(make_routing(
        settings.routing, problem.world,
        std::vector<std::int64_t>(static_cast<std::size_t>(problem.world), problem.m), settings.seed));
  return problem;
}

/// Whether its results are right; a problem that cannot be tried says why.
bool try_all(World& world, const Problem& problem, const Machine& machine, const Settings& settings,
             Summary& summary, nlohmann::json& rows) {
  const auto model = wave_model(problem, machine, settings.params);
  if (!model || model->waves() < 2) {
    fmt::print("{:<64} {}\n", describe(problem), model ? "has one wave" : model.reason());
    return true;
  }
  try {
    Trial trial(world, problem, machine, settings, *model);
    const bool right = trial.run();
    summary.add(trial);
    rows.push_back(trial.json());
    fmt::print("{:<64} {:>5} {:>6}{} {:>9.1f} {:>9.1f}", describe(problem), trial.waves(),
               trial.contenders().size() - 1, trial.exhaustive() ? " all" : " some", trial.us("searched"),
               trial.best_us());
    for (const std::string& name : Summary::rivals()) fmt::print(" {:>10.1f}", trial.us(name));
    fmt::print("  {}\n", right ? "right" : "WRONG");
    return right;
  } catch (const Unsupported& reason) {
    fmt::print("{:<64} {}\n", describe(problem), reason.what());
    return true;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Partitions of waves into groups: predicted, searched, equal and mistaken ones, measured");
  Settings settings;
  std::string backend = "host", machine_name, link = "none", routing = "random", json;
  int ranks = 2;
  double budget_s = 0;
  std::vector<std::string> ops{"gemm+allreduce", "gemm+reducescatter", "gemm+alltoall"};
  // Three to six waves on an H200, so that all partitions can be tried, but for the last one.
  std::vector<std::string> shapes{"1024x8192x3584", "2048x8192x3584",  "2560x8192x3584", "1536x8192x3584",
                                  "4096x4096x4096", "2048x7168x2048",  "2048x5120x5120", "3072x6144x3072",
                                  "2048x8192x7168", "3072x4096x4096",  "5120x4096x2560", "2048x8192x1024",
                                  "2304x8192x5120", "3072x4096x11008", "1024x8192x7168", "2048x8192x2048",
                                  "1536x8192x2048", "2048x7168x8192",  "4096x4096x8192", "2048x5120x2560",
                                  "4096x8192x3584"};
  app.add_option("--backend", backend)->capture_default_str();
  app.add_option("--world", ranks, "0: all GPUs")->capture_default_str();
  app.add_option(
      "--machine", machine_name,
      "profile to plan, search and predict by; without one the backend's own, or it is measured first");
  app.add_option("--link", link, "of each rank, on the host")->capture_default_str();
  app.add_option("--ops", ops)->delimiter(',')->capture_default_str();
  app.add_option("--shape", shapes, "MxNxK; may be repeated")->delimiter(',')->capture_default_str();
  app.add_option("--routing", routing, "of gemm+alltoall")->capture_default_str();
  app.add_option("--tile-rows", settings.params.tile.rows, "0: the profile's");
  app.add_option("--tile-cols", settings.params.tile.cols, "0: the profile's");
  app.add_option("--comm-workers", settings.params.comm_workers, "0: the profile's");
  app.add_option("--partitions", settings.most,
                 "to try of a shape: all, if there are no more; else a random sample")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--wave-off", settings.off, "tiles by which a mistaken wave is larger")
      ->capture_default_str();
  app.add_option("--rounds", settings.rounds, "of all partitions")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--repeat", settings.repeat, "rounds of the fastest, once more")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--idle-ms", settings.idle_ms, "before each run")->capture_default_str();
  app.add_option("--seed", settings.seed)->capture_default_str();
  app.add_option("--budget", budget_s, "seconds after which no further shape begins; 0: no bound")
      ->capture_default_str();
  app.add_option("--json", json, "file for the record, written anew after each shape");
  CLI11_PARSE(app, argc, argv);

  const auto begin = bench::Clock::now();
  settings.routing = parse_routing_pattern(routing);
  const Link paced = parse_link(link);
  const int size = ranks > 0 ? ranks : find_backend(backend).ranks();
  Machine machine =
      !machine_name.empty() ? machine_from_spec(machine_name) : machine_of(size, {.backend = backend});
  if (machine.tiles.empty()) machine = profile(*make_world(size, {.backend = backend}));
  if (paced.paced()) machine.link = paced;
  const auto world = make_world(size, {.backend = backend, .link = paced});
  std::vector<Problem> problems;
  for (const std::string& shape : shapes)
    for (const std::string& op : ops) problems.push_back(problem_of(parse_op(op), shape, *world, settings));
  auto record = bench::record(argc, argv);
  record["profile"] = machine.name;
  fmt::print("{:<64} {:>5} {:>10} {:>9} {:>9}", "us", "waves", "partitions", "searched", "best");
  for (const std::string& name : Summary::rivals()) fmt::print(" {:>10}", name);
  fmt::print("\n");
  Summary summary;
  bool right = true;
  std::vector<std::string> left;
  std::string stopped;
  for (const Problem& problem : problems) {
    if (!stopped.empty() || (budget_s > 0 && world->all_max({us_since(begin) * 1e-6})[0] > budget_s)) {
      left.push_back(describe(problem));
      continue;
    }
    try {
      right = try_all(*world, problem, machine, settings, summary, record["rows"]) && right;
    } catch (const Error& failure) {  // the world may be broken
      stopped = fmt::format("{}: {}", describe(problem), failure.what());
    }
    std::fflush(stdout);
    record["summary"] = summary.json();
    bench::save(record, json);
  }
  summary.print();
  for (const std::string& problem : left) fmt::print("left: {}\n", problem);
  if (!stopped.empty()) fmt::print("stopped: {}\n", stopped);
  record["left"] = left, record["stopped"] = stopped;
  record["elapsed_s"] = us_since(begin) * 1e-6;
  bench::write(record, json);
  return right && stopped.empty() && !record["rows"].empty() ? 0 : 1;
} catch (const Error& error) {
  fmt::print(stderr, "bench_partitions: {}\n", error.what());
  return 1;
}
