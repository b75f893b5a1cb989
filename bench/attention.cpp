// Attention, with the link paced so that communication alone takes a given fraction of the computation.
// attention+reducescatter: everything one after the other, only the projection split (row-parallel), and
// attention and projection split (query-split). ulysses-attention and allgather+attention: one after the
// other, and by slices of heads and queries, or of keys. Measured round by round in one run, every result
// checked.
#include <CLI/CLI.hpp>

#include "api/measure.hpp"
#include "api/workspace.hpp"
#include "report.hpp"

using namespace shingle;

namespace {

struct Candidate {
  const char* name;
  Params params;
};

std::vector<Candidate> candidates_of(Op op, int slices) {
  const Candidate sequential{"sequential", SequentialParams{}};
  if (traits(op).shards_tokens()) return {sequential, {"ring", RingParams{.slices = slices}}};
  return {sequential,
          {"row-parallel", RingParams{.slices = slices, .row_parallel = true}},
          {"query-split", RingParams{.slices = slices}}};
}

/// What a rank sends: of a sum all rows but its shard; its part of Q, K, V and a result like Q; or K and V.
double sent_bytes(const Problem& p) {
  const double all = !p.traits().shards_tokens() ? static_cast<double>(p.n)
                     : p.traits().splits_heads() ? static_cast<double>(2 * (p.k + p.kv_cols())) / p.world
                                                 : static_cast<double>(2 * p.kv_cols());
  return static_cast<double>(p.m) * all * static_cast<double>(size_bytes(p.dtype)) * (p.world - 1) / p.world;
}

/// Attention and projection, in a world of its own.
class Computation {
 public:
  Computation(const Problem& problem, const Inputs& inputs)
      : world_(make_world(problem.world, {.backend = "host"})),
        memory_(*world_, inputs),
        alone_(*world_, inputs, memory_) {}

  double run_us() { return alone_.products()[0].run().elapsed_us; }
  double median_us(int repeat) {
    bench::Samples samples;
    for (int i = 0; i <= repeat; ++i)
      if (const double us = run_us(); i > 0) samples.us.push_back(us);
    return samples.median();
  }

 private:
  std::unique_ptr<World> world_;
  Workspace memory_;
  GemmAlone alone_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Attention and its communication on the host, by how they are overlapped");
  Problem problem;
  problem.op = Op::attention_reducescatter;
  problem.world = 2;
  problem.m = 2048, problem.n = 2048;
  problem.attention = {.heads = 32, .kv_heads = 8, .head_dim = 64, .causal = true};
  double fraction = 0.7;
  int repeat = 7, slices = 0;
  std::string json, op_name = "attention+reducescatter";
  app.add_option("--op", op_name, "attention+reducescatter, ulysses-attention or allgather+attention")
      ->capture_default_str();
  app.add_option("--world", problem.world)->capture_default_str();
  app.add_option("--tokens", problem.m)->capture_default_str();
  app.add_option("--n", problem.n, "columns of the projection")->capture_default_str();
  app.add_option("--heads", problem.attention.heads)->capture_default_str();
  app.add_option("--kv-heads", problem.attention.kv_heads)->capture_default_str();
  app.add_option("--head-dim", problem.attention.head_dim)->capture_default_str();
  app.add_flag("!--full", problem.attention.causal, "not causal");
  app.add_option("--fraction", fraction, "communication alone over computation alone")->capture_default_str();
  app.add_option("--slices", slices, "of each rank's queries; 0: the planner's")->capture_default_str();
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);
  problem.op = parse_op(op_name);
  problem.k = problem.attention.heads / (problem.traits().shards_tokens() ? 1 : problem.world) *
              problem.attention.head_dim;
  if (!problem.traits().multiplies()) problem.n = problem.k;

  const auto inputs = random_inputs(problem, 11);
  Computation computation(problem, *inputs);
  const double paced_for_us = computation.median_us(repeat);
  WorldOptions options;
  options.backend = "host";
  options.link = {sent_bytes(problem) / (fraction * paced_for_us * 1e3), 10};
  const auto world = make_world(problem.world, options);
  Workspace memory(*world, *inputs);
  const std::vector<Candidate> candidates = candidates_of(problem.op, slices);
  std::vector<Operator> operators;
  bool all_passed = true;
  for (const Candidate& candidate : candidates) {
    Operator& op =
        operators.emplace_back(*world, problem, Options{.params = candidate.params, .verify = true});
    memory.bind(op);
    memory.poison_outputs();
    op.executable().poison();
    op.run();
    all_passed = all_passed && check(*inputs, memory.outputs()).passed;
  }
  std::vector<bench::Samples> samples(operators.size());
  bench::Samples alone;
  for (int i = 0; i < repeat; ++i) {
    alone.us.push_back(computation.run_us());
    for (std::size_t c = 0; c < operators.size(); ++c) samples[c].us.push_back(operators[c].run().elapsed_us);
  }
  const double alone_us = alone.median();

  auto record = bench::record(argc, argv);
  fmt::print(
      "{}\n{} ranks, computation alone {:.1f} ms, communication {:.2f} of it, median of {}, results {}\n",
      describe(problem), problem.world, alone_us * 1e-3, fraction, repeat, all_passed ? "checked" : "WRONG");
  const double sequential_us = samples[0].median();
  for (std::size_t c = 0; c < operators.size(); ++c) {
    const double us = samples[c].median(), exposed = (us - alone_us) / (sequential_us - alone_us);
    fmt::print("{:<13} {:>8.1f} ms  {:>5.2f}x  efficiency {:>6.3f}  spread {:>4.1f}%\n", candidates[c].name,
               us * 1e-3, sequential_us / us, 1 - exposed, samples[c].spread() * 100);
    nlohmann::json row = samples[c].json();
    row["form"] = candidates[c].name;
    row["computation_us"] = alone_us;
    row["comm_over_computation"] = fraction;
    row["overlap_efficiency"] = 1 - exposed;
    row["verified"] = all_passed;
    record["rows"].push_back(std::move(row));
  }
  bench::write(record, json);
  return all_passed ? 0 : 1;
}
