// The simulator against the host backend: random shapes, operators, mechanisms, params and paced links, each
// simulated on the machine's own profile and measured, in one run. FlashOverlap's Fig. 15 with more to vary.
#include <CLI/CLI.hpp>

#include <cmath>
#include <random>

#include "api/workspace.hpp"
#include "report.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/sim/simulate.hpp"
#include "shingle/tune/profile.hpp"

using namespace shingle;

namespace {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : bits_(seed) {}
  std::int64_t size(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(most - least + 1));
  }
  /// A multiple of `unit`, as likely in every octave.
  std::int64_t extent(double least, double most, std::int64_t unit) {
    const double part = static_cast<double>(bits_() >> 11) * 0x1p-53;
    const double value = least * std::pow(most / least, part);
    return larger(static_cast<std::int64_t>(value / static_cast<double>(unit)) * unit, unit);
  }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + size(0, static_cast<std::int64_t>(values.size()) - 1));
  }

 private:
  std::mt19937_64 bits_;
};

struct Case {
  Problem problem;
  Params params;
  Link link;
};

Problem draw_problem(Draw& draw, int world) {
  Problem p;
  p.op = draw.one_of({Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm, Op::gemm_alltoall});
  p.world = world;
  p.m = draw.extent(256, 2048, 1);
  p.n = draw.extent(256, 2048, 8);
  p.k = draw.extent(256, 2048, 8);
  if (p.traits().routes()) {
    std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(world));
    for (auto& rows : dest)
      for (std::int64_t row = 0; row < p.m; ++row)
        rows.push_back(static_cast<std::int32_t>(draw.size(0, world - 1)));
    p.routing = std::make_shared<const Routing>(std::move(dest));
  }
  return p;
}

Params draw_params(Draw& draw) {
  const Mechanism mechanism = draw.one_of({Mechanism::sequential, Mechanism::chunked, Mechanism::signal,
                                           Mechanism::ring, Mechanism::fused, Mechanism::copy_engine});
  const auto chunks = static_cast<std::int32_t>(draw.size(2, 8));
  const auto slices = static_cast<std::int32_t>(draw.size(1, 6));
  TileParams tile;
  if (draw.size(0, 1)) {
    tile.rows = draw.one_of({64, 128, 256});
    tile.cols = draw.one_of({128, 256, 512});
  }
  switch (mechanism) {
    case Mechanism::sequential:
      return SequentialParams{};
    case Mechanism::chunked:
      return ChunkedParams{.chunks = chunks};
    case Mechanism::signal:
      return SignalParams{.tile = tile};
    case Mechanism::ring:
      return RingParams{.slices = slices};
    case Mechanism::fused:
      return FusedParams{.tile = tile};
    case Mechanism::copy_engine:
      return CopyEngineParams{.tile = tile};
    case Mechanism::low_latency:  // not drawn: its rows are few, and the link is not what takes the time
      return LowLatencyParams{};
  }
  return {};
}

Case draw_case(Draw& draw, int world, const Machine& machine) {
  for (;;) {
    Case at{draw_problem(draw, world), draw_params(draw), {}};
    // Communication takes between a third of the GEMM and three times as long.
    const double gemm = library_gemm_us(machine, at.problem.m, at.problem.n, at.problem.k, machine.workers);
    const double bytes = static_cast<double>(at.problem.m) * static_cast<double>(at.problem.n) * 4;
    at.link = {bytes / (gemm * draw.one_of({0.3, 0.5, 0.7, 1.0, 1.5, 3.0}) * 1e3), 10};
    if (make_plan(at.problem, machine, at.params)) return at;
  }
}

/// How fast each rank's cores are just now: a product whose time the profile tells, on all ranks at once.
/// Clocks of a shared machine wander, and predictions are told so (FlashOverlap §4.2.3).
class Pace {
 public:
  Pace(int ranks, const Machine& machine)
      : world_(make_world(ranks, {.backend = "host"})),
        inputs_(random_inputs(problem(ranks), 1)),
        memory_(*world_, *inputs_),
        op_(*world_, problem(ranks), {}) {
    memory_.bind(op_);
    expected_us_ = simulate(op_.plan(), machine).makespan_us;
    slowdown();
  }
  /// By rank: the median of three times.
  std::vector<double> slowdown() {
    std::vector<bench::Samples> ranks(static_cast<std::size_t>(world_->size()));
    for (int i = 0; i < 3; ++i)
      for (const Span& span : op_.run(1, true).spans)
        ranks[static_cast<std::size_t>(span.rank)].us.push_back((span.end_us - span.begin_us) / expected_us_);
    std::vector<double> medians;
    for (const bench::Samples& rank : ranks) medians.push_back(rank.median());
    return medians;
  }

 private:
  static Problem problem(int ranks) {
    return {.op = Op::gemm, .world = ranks, .m = 512, .n = 512, .k = 1024};
  }

  std::unique_ptr<World> world_;
  std::unique_ptr<Inputs> inputs_;
  Workspace memory_;
  Operator op_;
  double expected_us_ = 0;
};

double measured_us(const Case& at, int repeat, double& spread) {
  const auto world = make_world(at.problem.world, {.backend = "host", .link = at.link});
  const auto inputs = random_inputs(at.problem, 3);
  Workspace memory(*world, *inputs);
  Operator op(*world, at.problem, {.params = at.params});
  memory.bind(op);
  op.run();
  bench::Samples samples;
  for (int i = 0; i < repeat; ++i) samples.us.push_back(op.run().elapsed_us);
  spread = samples.spread();
  return samples.median();
}

/// The mean of both, by rank; none where a rank changed its pace by more than a tenth between them.
std::vector<double> steady(const std::vector<double>& before, const std::vector<double>& after) {
  std::vector<double> mean;
  for (std::size_t rank = 0; rank < before.size(); ++rank) {
    if (std::max(before[rank], after[rank]) > 1.1 * std::min(before[rank], after[rank])) return {};
    mean.push_back((before[rank] + after[rank]) / 2);
  }
  return mean;
}

double quantile(std::vector<double> values, double fraction) {
  return bench::Samples{std::move(values)}.at(fraction);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The simulator's error against the host backend on paced links");
  int count = 200, world = 2, repeat = 7;
  std::uint64_t seed = 1;
  bool all = false;
  std::string json, profile_file;
  app.add_option("--count", count)->capture_default_str();
  app.add_option("--world", world)->capture_default_str();
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--seed", seed)->capture_default_str();
  app.add_option("--profile", profile_file, "of this machine; without one it is measured first");
  app.add_flag("--all", all, "print every case");
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  Machine machine;
  if (profile_file.empty()) {
    const auto bare = make_world(world, {.backend = "host"});
    machine = profile(*bare);
  } else {
    machine = read_machine(profile_file);
  }
  auto record = bench::record(argc, argv);
  Draw draw(seed);
  std::map<std::string, std::vector<double>> errors;
  Pace pace(world, machine);
  int unsteady = 0;
  for (int found = 0; found < count && unsteady < 3 * count;) {
    const Case at = draw_case(draw, world, machine);
    machine.link = at.link;
    const Plan plan = make_plan(at.problem, machine, at.params).value();
    double spread = 0;
    const std::vector<double> before = pace.slowdown();
    const double measured = measured_us(at, repeat, spread);
    const SimOptions now{.slowdown = steady(before, pace.slowdown())};
    // Where the machine changed its pace meanwhile, nobody knows which one was measured.
    if (now.slowdown.empty()) {
      ++unsteady;
      continue;
    }
    const double predicted = simulate(plan, machine, now).makespan_us;
    const double error = std::abs(predicted - measured) / measured;
    ++found;
    errors["all"].push_back(error);
    errors[std::string(name(mechanism_of(at.params)))].push_back(error);
    if (all || error > 0.2)
      fmt::print("{:<42} {:<12} measured {:>9.2f} ms ({:4.1f}%) predicted {:>9.2f} ms  error {:+.1f}%\n",
                 describe(at.problem), name(mechanism_of(at.params)), measured / 1e3, spread * 100,
                 predicted / 1e3, (predicted / measured - 1) * 100);
    std::fflush(stdout);
    record["rows"].push_back({{"problem", describe(at.problem)},
                              {"mechanism", name(mechanism_of(at.params))},
                              {"link_gbps", at.link.gbps},
                              {"measured_us", measured},
                              {"spread", spread},
                              {"slowdown", now.slowdown},
                              {"predicted_us", predicted}});
  }
  fmt::print("{:<12} {:>6} {:>8} {:>8} {:>8}\n", "mechanism", "cases", "median", "p90", "largest");
  for (const auto& [mechanism, found] : errors)
    fmt::print("{:<12} {:>6} {:>7.1f}% {:>7.1f}% {:>7.1f}%\n", mechanism, found.size(),
               100 * quantile(found, 0.5), 100 * quantile(found, 0.9), 100 * quantile(found, 1));
  fmt::print("{} more were measured while the machine changed its pace, and left out\n", unsteady);
  record["unsteady"] = unsteady;
  const double median = quantile(errors["all"], 0.5), p90 = quantile(errors["all"], 0.9);
  record["median_error"] = median, record["p90_error"] = p90;
  bench::write(record, json);
  return median <= 0.05 && p90 <= 0.12 ? 0 : 1;
}
