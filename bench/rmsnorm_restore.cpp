// What it costs RMSNorm to take its rows from the slots of a `signal` plan instead of from a matrix: the same pass, the same
// thread, in turn.
#include <CLI/CLI.hpp>

#include "report.hpp"
#include "shingle/api/workspace.hpp"
#include "shingle/planner/planner.hpp"

using namespace shingle;

namespace {

/// The finishing pass of a plan, alone.
Plan last_step_only(Plan plan) {
  Lane& compute = plan.ranks[0].lanes[0];
  compute.steps = {compute.steps.back()};
  plan.ranks[0].lanes.resize(1);
  plan.ranks[0].issue = {0};
  return plan;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("RMSNorm fused with the restore beside plain RMSNorm");
  std::int64_t rows = 2048, hidden = 8192;
  int repeat = 21;
  bool residual = false;
  std::string dtype = "f32", json;
  app.add_option("--rows", rows)->capture_default_str();
  app.add_option("--hidden", hidden)->capture_default_str();
  app.add_option("--dtype", dtype)->capture_default_str();
  app.add_flag("--residual", residual, "with a residual and a second output");
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  const auto world = make_world(1, {.backend = "host", .workers_per_rank = 1});
  Problem problem;
  problem.op = Op::gemm_allreduce;
  problem.m = rows;
  problem.n = hidden;
  problem.k = 64;
  problem.dtype = parse_dtype(dtype);
  problem.norm = {true, residual, 1e-5f};
  const auto inputs = random_inputs(problem, 3);
  Workspace memory(*world, *inputs);
  auto record = bench::record(argc, argv);
  bool all_passed = true;
  fmt::print("RMSNorm of {} rows of {} {}{}, one thread, median of {}\n", rows, hidden, dtype, residual ? ", residual" : "", repeat);

  // Both passes read what the GEMM of their plan left, so that no denormal or NaN slows either.
  const auto prepare = [&](Mechanism mechanism, const Params& params) {
    Operator whole(*world, problem, {.mechanism = mechanism, .params = params});
    memory.bind(whole);
    memory.poison_outputs();
    whole.run();
    const Check result = check(*inputs, memory.outputs());
    all_passed = all_passed && result.passed;
    return whole.plan();
  };
  const auto compile = [&](const Plan& plan) {
    auto executable = world->compile(last_step_only(plan));
    for (const Buffer& buffer : plan.buffers)
      if (buffer.role != Role::internal) executable->bind(0, buffer.role, const_cast<void*>(memory.data(0, buffer.role)));
    return executable;
  };
  const auto plain = compile(prepare(Mechanism::sequential, {}));
  for (const auto& [tile_rows, tile_cols] : {std::pair{64, 256}, {128, 256}, {256, 512}}) {
    Params params;
    params.tile_rows = tile_rows;
    params.tile_cols = tile_cols;
    params.order.swizzle = 4;
    const auto fused = compile(prepare(Mechanism::signal, params));
    bench::Samples with, without;
    for (int i = -2; i < repeat; ++i) {
      const double a = fused->run().elapsed_us, b = plain->run().elapsed_us;
      if (i < 0) continue;
      with.us.push_back(a);
      without.us.push_back(b);
    }
    const double cost = with.median() / without.median() - 1;
    fmt::print("  tiles {:>3}x{:<3}  plain {:8.2f} ms  fused {:8.2f} ms  cost {:+6.1f}% (target 15%)  checked: {}\n", tile_rows, tile_cols,
               without.median() * 1e-3, with.median() * 1e-3, cost * 100, all_passed ? "yes" : "NO");
    record["rows"].push_back({{"rows", rows}, {"hidden", hidden}, {"dtype", dtype}, {"residual", residual}, {"tile_rows", tile_rows},
                              {"tile_cols", tile_cols}, {"plain", without.json()}, {"fused", with.json()}, {"cost", cost},
                              {"target", 0.15}, {"verified", all_passed}});
  }
  bench::write(record, json);
  return all_passed ? 0 : 1;
}
