// What the hooks cost: the GEMM of a `signal` plan (tile order, slots, a count a tile) beside one oneDNN call
// on the whole matrix, on one thread, in turn. The result of the complete plan is checked against the oracle
// first.
#include <CLI/CLI.hpp>

#include "api/workspace.hpp"
#include "report.hpp"
#include "shingle/planner/planner.hpp"

using namespace shingle;

namespace {

/// The GEMM step alone: what it notifies stays, what waits for it goes.
Plan gemm_only(Plan plan) {
  Lane& compute = plan.ranks[0].lanes[0];
  compute.steps.resize(1);
  plan.ranks[0].lanes.resize(1);
  plan.ranks[0].issue = {0};
  return plan;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The instrumented GEMM beside one oneDNN call");
  std::int64_t size = 2048;
  int repeat = 15, tile_rows = 256, tile_cols = 512;
  std::string dtype = "f32", json;
  app.add_option("--size", size, "M = N = K")->capture_default_str();
  app.add_option("--tile-rows", tile_rows)->capture_default_str();
  app.add_option("--tile-cols", tile_cols)->capture_default_str();
  app.add_option("--dtype", dtype)->capture_default_str();
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  WorldOptions options;
  options.backend = "host";
  options.workers_per_rank = 1;
  const auto world = make_world(1, options);
  Problem problem;
  problem.op = Op::gemm_allreduce;
  problem.m = problem.n = problem.k = size;
  problem.dtype = parse_dtype(dtype);
  const auto inputs = random_inputs(problem, 1);
  Workspace memory(*world, *inputs);

  Operator whole_plan(*world, problem, {.params = SignalParams{.tile = {tile_rows, tile_cols}}});
  memory.bind(whole_plan);
  memory.poison_outputs();
  whole_plan.run();
  const Check result = check(*inputs, memory.outputs());
  fmt::print("checked: {} (error {:.2e}, tolerance {:.2e})\n", result.passed ? "yes" : "NO: " + result.worst,
             result.max_error, result.tolerance);

  const auto bind = [&](Executable& executable) {
    for (const Role role : {Role::a, Role::b, Role::out})
      executable.bind(0, role, const_cast<void*>(memory.data(0, role)));
  };
  const auto hooked = world->compile(gemm_only(whole_plan.plan()));
  const auto single = world->compile(gemm_only(plan_sequential(problem, world->machine()).value()));
  bind(*hooked);
  bind(*single);

  bench::Samples on, off;
  for (int i = -1; i < repeat; ++i) {
    const double a = hooked->run().elapsed_us, b = single->run().elapsed_us;
    if (i < 0) continue;  // warm-up
    on.us.push_back(a);
    off.us.push_back(b);
  }
  const double flops =
      2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
  fmt::print("{0}x{0}x{0} {1}, tiles {2}x{3}, one thread, median of {4}\n", size, dtype, tile_rows, tile_cols,
             repeat);
  fmt::print("  one call      {:9.2f} ms  {:6.1f} GFLOP/s  spread {:.1f}%\n", off.median() * 1e-3,
             flops / off.median() * 1e-3, off.spread() * 100);
  fmt::print("  instrumented  {:9.2f} ms  {:6.1f} GFLOP/s  spread {:.1f}%\n", on.median() * 1e-3,
             flops / on.median() * 1e-3, on.spread() * 100);
  fmt::print("  ratio         {:9.3f}     (target 0.90)\n", off.median() / on.median());

  auto record = bench::record(argc, argv);
  record["rows"].push_back({{"size", size},
                            {"dtype", dtype},
                            {"verified", result.passed},
                            {"one_call", off.json()},
                            {"instrumented", on.json()},
                            {"ratio", off.median() / on.median()},
                            {"target", 0.9}});
  bench::write(record, json);
  return result.passed ? 0 : 1;
}
