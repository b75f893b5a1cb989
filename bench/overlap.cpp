// How much of the communication the mechanisms hide on the host, with the link paced so that
// communication alone takes a given fraction of the GEMM: everything is measured in one run, round by round,
// and every result is checked.
#include <CLI/CLI.hpp>

#include "api/measure.hpp"
#include "report.hpp"
#include "shingle/plan/json.hpp"

using namespace shingle;

namespace {

/// Bytes that a rank sends over its link.
double wire_bytes(const Problem& p) {
  const std::int64_t cols = p.op == Op::allgather_gemm ? p.k : p.n;
  const double all =
      static_cast<double>(p.m) * static_cast<double>(cols) * static_cast<double>(size_bytes(p.dtype));
  const double part = static_cast<double>(p.world - 1) / p.world;
  return (p.op == Op::gemm_allreduce ? 2 : 1) * part * all;
}

double gemm_us(World& world, const Inputs& inputs, Workspace& memory) {
  GemmAlone gemm(world, inputs, memory);
  bench::Samples samples;
  for (int i = 0; i < 6; ++i) samples.us.push_back(gemm.products().front().run().elapsed_us);
  return samples.median();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Overlap efficiency on the host, by mechanism and by how much there is to hide");
  std::int64_t m = 2048, n = 2048, k = 2048;
  int ranks = 2, repeat = 7, slices = 0;
  std::vector<double> fractions{0.7, 0.85, 1.0};
  std::vector<std::string> ops{"gemm+allreduce", "gemm+reducescatter"};
  std::vector<std::string> mechanisms{"signal", "ring", "chunked"};
  std::string json;
  app.add_option("--ops", ops)->delimiter(',')->capture_default_str();
  app.add_option("--mechanisms", mechanisms)->delimiter(',')->capture_default_str();
  app.add_option("--slices", slices, "of ring; 0: its default")->capture_default_str();
  app.add_option("--m", m)->capture_default_str();
  app.add_option("--n", n)->capture_default_str();
  app.add_option("--k", k)->capture_default_str();
  app.add_option("--world", ranks)->capture_default_str();
  app.add_option("--fractions", fractions, "communication alone over GEMM alone")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  auto record = bench::record(argc, argv);
  bool all_passed = true;
  fmt::print("{} ranks, {}x{}x{} f32, median of {}\n", ranks, m, n, k, repeat);
  fmt::print("{:<20} {:>8} {:<9} {:>10} {:>10} {:>10} {:>8} {:>10} {:>9} {:>8}\n", "operator", "comm/gemm",
             "mechanism", "gemm ms", "sequential", "overlapped", "speedup", "efficiency", "spread",
             "checked");
  for (const std::string& op : ops) {
    Problem problem;
    problem.op = parse_op(op);
    problem.world = ranks;
    problem.m = m;
    problem.n = n;
    problem.k = k;
    const auto inputs = random_inputs(problem, 7);
    double alone_us = 0;
    {
      const auto world = make_world(ranks, {.backend = "host"});
      Workspace memory(*world, *inputs);
      alone_us = gemm_us(*world, *inputs, memory);
    }
    for (const double fraction : fractions) {
      WorldOptions options;
      options.backend = "host";
      options.link = {wire_bytes(problem) / (fraction * alone_us * 1e3), 10};
      const auto world = make_world(ranks, options);
      Workspace memory(*world, *inputs);
      GemmAlone gemm(*world, *inputs, memory);
      Operator sequential(*world, problem, {.params = SequentialParams{}});
      memory.bind(sequential);
      for (const std::string& mechanism : mechanisms) {
        Params params = default_params(parse_mechanism(mechanism));
        if (auto* ring = std::get_if<RingParams>(&params)) ring->slices = slices;
        if (!make_plan(problem, world->machine(), params)) continue;
        Operator overlapped(*world, problem, {.params = params, .verify = true});
        memory.bind(overlapped);
        memory.poison_outputs();
        overlapped.executable().poison();
        overlapped.run();
        const Check result = check(*inputs, memory.outputs());
        all_passed = all_passed && result.passed;
        const Measurement found =
            measure(*world, gemm.products(), sequential, overlapped, {.repeat = repeat});
        fmt::print("{:<20} {:>8.2f} {:<9} {:>10.1f} {:>10.1f} {:>10.1f} {:>8.2f} {:>10.3f} {:>8.1f}% {:>8}\n",
                   op, fraction, mechanism, found.gemm_us * 1e-3, found.sequential_us * 1e-3,
                   found.overlapped_us * 1e-3, found.speedup(), found.overlap_efficiency(),
                   found.spread * 100, result.passed ? "yes" : "NO");
        record["rows"].push_back({{"op", op},
                                  {"world", ranks},
                                  {"m", m},
                                  {"n", n},
                                  {"k", k},
                                  {"mechanism", mechanism},
                                  {"params", nlohmann::json::parse(to_json(overlapped.plan().params))},
                                  {"comm_over_gemm", fraction},
                                  {"link_gbps", options.link.gbps},
                                  {"gemm_us", found.gemm_us},
                                  {"sequential_us", found.sequential_us},
                                  {"overlapped_us", found.overlapped_us},
                                  {"speedup", found.speedup()},
                                  {"overlap_efficiency", found.overlap_efficiency()},
                                  {"spread", found.spread},
                                  {"rounds", found.rounds},
                                  {"verified", result.passed}});
      }
    }
  }
  bench::write(record, json);
  return all_passed ? 0 : 1;
}
