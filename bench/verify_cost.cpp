// What a proof costs: seconds of verify() by the number of tiles, for plans of 8 ranks, and how that grows
// beside n log n. The row of 128×256 tiles on 16384×8192 in 16 groups is the one that has a target.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>

#include "report.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/verify/verify.hpp"

using namespace shingle;

namespace {

double seconds(const Plan& plan, bool& proven) {
  const auto start = std::chrono::steady_clock::now();
  proven = verify(plan).ok && proven;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Every row to a rank of its own choice: what costs a proof most, as each row of each tile is a piece of its
/// own.
std::shared_ptr<const Routing> random_routing(int world, std::int64_t rows) {
  std::mt19937 bits(1);
  std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(world));
  for (auto& of_rank : dest)
    for (std::int64_t row = 0; row < rows; ++row)
      of_rank.push_back(static_cast<std::int32_t>(bits() % static_cast<std::uint32_t>(world)));
  return std::make_shared<const Routing>(std::move(dest));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Cost of a proof by the number of tiles");
  std::int64_t m = 16384, n = 8192;
  int world = 8, groups = 16, repeat = 3;
  std::string json;
  app.add_option("--m", m)->capture_default_str();
  app.add_option("--n", n)->capture_default_str();
  app.add_option("--world", world)->capture_default_str();
  app.add_option("--groups", groups)->capture_default_str();
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  auto record = bench::record(argc, argv);
  bool proven = true;
  fmt::print("{} ranks, {}x{}, {} groups, median of {}\n", world, m, n, groups, repeat);
  fmt::print("{:<20} {:>9} {:>8} {:>9} {:>12}\n", "operator", "tile", "tiles", "seconds", "ns/(t log t)");
  const auto routing = random_routing(world, m);
  for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::gemm_alltoall})
    for (const auto& [rows, cols] : {std::pair{512, 1024}, {256, 512}, {128, 256}, {64, 128}, {32, 128}}) {
      if (op == Op::gemm_alltoall && cols < 256) continue;  // its cost goes with rows × columns of tiles
      Problem problem;
      problem.op = op;
      if (op == Op::gemm_alltoall) problem.routing = routing;
      problem.world = world;
      problem.m = m;
      problem.n = n;
      problem.k = 3584;
      problem.dtype = DType::bf16;
      Machine machine;
      machine.workers = 128;
      SignalParams params{.tile = {rows, cols}};
      const std::int64_t tiles = ceil_div(m, rows) * ceil_div(n, cols),
                         waves = ceil_div(tiles, machine.workers);
      const std::int64_t parts = smaller(groups, waves);
      for (std::int64_t g = 0; g < parts; ++g)
        params.group_waves.push_back(waves * (g + 1) / parts - waves * g / parts);
      const Plan plan = plan_signal(problem, machine, params).value();
      bench::Samples samples;
      for (int i = 0; i < (op == Op::gemm_alltoall ? 1 : repeat); ++i)
        samples.us.push_back(seconds(plan, proven) * 1e6);
      const double all = static_cast<double>(tiles) * world;
      const double unit_ns = samples.median() * 1e3 / (all * std::log2(all));
      const bool target = rows == 128 && op != Op::gemm_alltoall;
      fmt::print("{:<20} {:>4}x{:<4} {:>8} {:>9.3f} {:>12.1f}{}\n", name(op), rows, cols, tiles,
                 samples.median() * 1e-6, unit_ns, target ? "  (target 0.5 s)" : "");
      record["rows"].push_back({{"op", name(op)},
                                {"tile_rows", rows},
                                {"tile_cols", cols},
                                {"tiles", tiles},
                                {"time", samples.json()},
                                {"ns_per_tile_log_tile", unit_ns}});
    }
  fmt::print("all proven: {}\n", proven ? "yes" : "NO");
  bench::write(record, json);
  return proven ? 0 : 1;
}
