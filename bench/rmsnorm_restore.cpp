// What it costs RMSNorm to take its rows from the slots of a `signal` plan instead of from a matrix: the same
// pass on the same thread, each timed inside its whole plan, in turn.
#include <CLI/CLI.hpp>

#include "api/workspace.hpp"
#include "report.hpp"

using namespace shingle;

namespace {

/// Time of the finishing pass, the last step of the compute lane, in one traced run.
double pass_us(Operator& op) {
  const auto last = static_cast<std::int32_t>(op.plan().ranks[0].lanes[0].steps.size()) - 1;
  double begin = 0, end = 0;
  for (const Span& span : op.run(1, true).spans) {
    if (span.lane != 0 || span.step != last) continue;
    begin = end == 0 ? span.begin_us : std::min(begin, span.begin_us);
    end = std::max(end, span.end_us);
  }
  return end - begin;
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
  fmt::print("RMSNorm of {} rows of {} {}{}, one thread, median of {}\n", rows, hidden, dtype,
             residual ? ", residual" : "", repeat);

  const auto prepare = [&](const Params& params) {
    Operator op(*world, problem, {.params = params});
    memory.bind(op);
    memory.poison_outputs();
    op.run();
    const Check result = check(*inputs, memory.outputs());
    all_passed = all_passed && result.passed;
    return op;
  };
  Operator plain = prepare(SequentialParams{});
  for (const auto& [tile_rows, tile_cols] : {std::pair{64, 256}, {128, 256}, {256, 512}}) {
    Operator fused = prepare(SignalParams{.tile = {tile_rows, tile_cols, {.swizzle = 4}}});
    bench::Samples with, without;
    for (int i = 0; i < repeat; ++i) {
      with.us.push_back(pass_us(fused));
      without.us.push_back(pass_us(plain));
    }
    const double cost = with.median() / without.median() - 1;
    fmt::print(
        "  tiles {:>3}x{:<3}  plain {:8.2f} ms  fused {:8.2f} ms  cost {:+6.1f}% (target 15%)  checked: {}\n",
        tile_rows, tile_cols, without.median() * 1e-3, with.median() * 1e-3, cost * 100,
        all_passed ? "yes" : "NO");
    record["rows"].push_back({{"rows", rows},
                              {"hidden", hidden},
                              {"dtype", dtype},
                              {"residual", residual},
                              {"tile_rows", tile_rows},
                              {"tile_cols", tile_cols},
                              {"plain", without.json()},
                              {"fused", with.json()},
                              {"cost", cost},
                              {"target", 0.15},
                              {"verified", all_passed}});
  }
  bench::write(record, json);
  return all_passed ? 0 : 1;
}
