// Compares fused operators with sequential ones (cuBLASLt and NCCL) on GPUs with peer access, over the params
// of a tuner. Single runs with idle time between them, in rounds over all candidates. Every result is
// checked.
#include <CLI/CLI.hpp>
#include <chrono>
#include <optional>
#include <thread>

#include "../report.hpp"
#include "api/measure.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"
#include "shingle/plan/json.hpp"

using namespace shingle;

namespace {

/// Parses params of `fused`, as flags of `shingle run` without dashes: "tile=128x256,helpers=4,pull".
/// "default" leaves all of them to the planner.
Params parse_fused(const std::string& text) {
  if (text == "default") return FusedParams{};
  ParamList params;
  for (const std::string& part : split(text, ',')) {
    const std::size_t equals = std::min(part.find('='), part.size());
    params.push_back({part.substr(0, equals), part.substr(std::min(equals + 1, part.size()))});
  }
  return parse_params(Mechanism::fused, params, false);
}

struct Settings {
  int repeat = 15;
  double idle_ms = 40;
  std::vector<std::string> variants{"default"};
};

struct Candidate {
  std::string name;
  std::optional<Operator> op;  ///< none if no kernel serves it
  std::string note;
  bench::Samples samples;
};

/// One problem by `sequential` and by all variants of `fused`.
class Comparison {
 public:
  Comparison(World& world, const Problem& problem, const Settings& settings)
      : world_(world),
        settings_(settings),
        inputs_(random_inputs(problem, 7)),
        memory_(world, *inputs_),
        gemm_(world, *inputs_, memory_) {
    add("sequential", {.params = SequentialParams{}});
    for (const std::string& variant : settings.variants)
      add("fused " + variant, {.params = parse_fused(variant)});
  }

  /// True if all results are right.
  bool run() {
    for (Candidate& candidate : candidates_)
      if (candidate.op) check_runs(candidate);
    constexpr int warm_up = 2;
    for (int round = -warm_up; round < settings_.repeat; ++round) {
      time(gemm_.products().front(), round, alone_);
      for (Candidate& candidate : candidates_)
        if (candidate.op) time(*candidate.op, round, candidate.samples);
    }
    return right_;
  }

  void print() const {
    const double gemm = alone_.median(), sequential = candidates_[0].samples.median();
    fmt::print("{}: GEMM {:.1f} us\n", describe(inputs_->problem()), gemm);
    for (const Candidate& candidate : candidates_) {
      if (!candidate.op) {
        fmt::print("  {:<44} {}\n", candidate.name, candidate.note);
        continue;
      }
      const double us = candidate.samples.median();
      fmt::print("  {:<44} {:>9.1f} us  {:>5.2f}x  E {:>6.3f}  spread {:>4.1f}%  {}\n", candidate.name, us,
                 sequential / us, 1 - (us - gemm) / (sequential - gemm), 100 * candidate.samples.spread(),
                 candidate.note);
    }
    std::fflush(stdout);
  }

  void add_to(nlohmann::json& rows) const {
    for (const Candidate& candidate : candidates_)
      if (candidate.op)
        rows.push_back({{"problem", nlohmann::json::parse(to_json(inputs_->problem()))},
                        {"candidate", candidate.name},
                        {"params", nlohmann::json::parse(to_json(candidate.op->plan().params))},
                        {"note", candidate.note},
                        {"gemm_us", alone_.median()},
                        {"time", candidate.samples.json()}});
  }

 private:
  void add(std::string name, const Options& options) {
    Candidate& candidate = candidates_.emplace_back(Candidate{std::move(name), {}, {}, {}});
    try {
      candidate.op.emplace(world_, inputs_->problem(), options);
    } catch (const Unsupported& reason) {
      candidate.note = reason.what();
    }
  }

  /// Checks three runs: the first run, the first run of the graph, and a replay.
  void check_runs(Candidate& candidate) {
    memory_.bind(*candidate.op);
    for (int run = 0; run < 3; ++run) {
      memory_.poison_outputs();
      candidate.op->executable().poison();
      candidate.op->run();
      const Check result = check(*inputs_, memory_.outputs());
      if (result.passed) continue;
      candidate.note = fmt::format("WRONG: error {:.1e} in {}", result.max_error, result.worst);
      right_ = false;
      return;
    }
  }

  void time(Operator& op, int round, bench::Samples& samples) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(settings_.idle_ms));
    const double us = world_.all_max({op.run().elapsed_us})[0];
    if (round >= 0) samples.us.push_back(us);
  }

  World& world_;
  const Settings& settings_;
  std::unique_ptr<Inputs> inputs_;
  Workspace memory_;
  GemmAlone gemm_;
  std::vector<Candidate> candidates_;
  bench::Samples alone_;
  bool right_ = true;
};

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Fused operators on GPUs, beside sequential");
  Settings settings;
  int ranks = 0;
  std::int64_t n = 8192;
  std::vector<std::int64_t> ms{2048, 8192}, ks{1024, 3584};
  std::vector<std::string> ops{"gemm+reducescatter", "gemm+allreduce", "allgather+gemm"};
  std::string json;
  app.add_option("--world", ranks, "ranks; 0: all GPUs")->capture_default_str();
  app.add_option("--ops", ops)->delimiter(',')->capture_default_str();
  app.add_option("--m", ms)->delimiter(',')->capture_default_str();
  app.add_option("--n", n)->capture_default_str();
  app.add_option("--k", ks)->delimiter(',')->capture_default_str();
  app.add_option(
         "--params", settings.variants,
         "each as default, or tile=128x256,raster=m,swizzle=8,cluster=2x1,helpers=4,stage-fp32,one-shot,"
         "comm-rows=256,pull,mover=store,comm-order=reverse")
      ->capture_default_str();
  app.add_option("--repeat", settings.repeat)->capture_default_str();
  app.add_option("--idle-ms", settings.idle_ms, "before each run")->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  const auto world = make_world(ranks == 0 ? find_backend("cuda").ranks() : ranks, {.backend = "cuda"});
  const bool speaks = world->local_ranks().front() == 0;
  auto record = bench::record(argc, argv);
  bool right = true;
  for (const std::string& op : ops)
    for (const std::int64_t m : ms)
      for (const std::int64_t k : ks) {
        Problem problem{.op = parse_op(op), .world = world->size(), .m = m, .n = n, .k = k};
        problem.dtype = DType::bf16, problem.transpose_b = true;
        Comparison comparison(*world, problem, settings);
        right = comparison.run() && right;
        if (speaks) comparison.print();
        comparison.add_to(record["rows"]);
      }
  if (speaks) bench::write(record, json);
  return right ? 0 : 1;
} catch (const Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
