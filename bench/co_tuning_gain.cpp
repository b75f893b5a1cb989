// What co-tuning gains by the ratio of communication to computation, and by contention: a layer's products,
// attention and passes beside an all-gather whose size is chosen for the ratio (Lagom; the paper gives no
// sequence lengths, so no ratios). Predicted by the simulator.
#include <CLI/CLI.hpp>

#include "contended.hpp"
#include "report.hpp"
#include "shingle/machine/profile.hpp"
#include "tune/co_tuning.hpp"
#include "workload/overlap_patterns.hpp"

using namespace shingle;
using cotune::Method;

namespace {

/// NCCL's default slows a product so much while it runs beside it; the last is §1's most.
constexpr double slowdowns[] = {1.12, 1.15, 1.2, 1.25, 1.3, 1.35};
/// Time of communication alone over that of computation alone, with NCCL's default.
constexpr double ratios[] = {0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0};

/// The layer beside a gather that alone takes `ratio` of the layer's time alone.
Workload with_ratio(Workload layer, const Machine& machine, double ratio) {
  layer.collectives.resize(1);
  const double compute_us = simulate_overlap(layer, machine, {}, false).compute_us;
  std::int64_t low = 1, high = std::int64_t{1} << 34;
  while (high - low > high / 1000) {
    const std::int64_t bytes = (low + high) / 2;
    const double us = collective_us(machine, Traffic::allgather, layer.world, 0, static_cast<double>(bytes));
    (us < ratio * compute_us ? low : high) = bytes;
  }
  layer.collectives[0].bytes = low;
  return layer;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What co-tuning gains by the ratio of communication to computation, and by contention");
  std::string machine_name = "a40x8-nvlink", model = SHINGLE_TEST_SOURCE_DIR "/models/phi-2.json", json;
  std::int64_t tokens = 4096, sequence = 2048;
  app.add_option("--machine", machine_name)->capture_default_str();
  app.add_option("--model", model)->capture_default_str();
  app.add_option("--tokens", tokens, "of a rank")->capture_default_str();
  app.add_option("--sequence", sequence)->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  const Machine base = machine_from_spec(machine_name);
  const Workload layer =
      overlap_patterns(read_model_file(model), {.ranks = base.ranks, .tokens = tokens, .sequence = sequence})
          .front()
          .workload;
  auto record = bench::record(argc, argv);
  fmt::print("{} on {}, {} tokens: speed over NCCL's default (over the AutoCCL-like tuner)\n", model,
             base.name, tokens);
  fmt::print("{:>12}", "slowed by");
  for (const double ratio : ratios) fmt::print(" {:>14.2f}", ratio);
  for (const double slowdown : slowdowns) {
    const Machine machine = bench::contended(base, slowdown);
    fmt::print("\n{:>11.0f}%", 100 * (slowdown - 1));
    for (const double ratio : ratios) {
      const Workload workload = with_ratio(layer, machine, ratio);
      const auto us = [&](Method method) {
        return co_tune(workload, machine, method, resource_space(machine)).measured.makespan_us;
      };
      const double library = us(Method::library), alone = us(Method::alone), found = us(Method::together);
      fmt::print(" {:>6.3f} ({:.3f})", library / found, alone / found);
      record["rows"].push_back({{"slowed_by", slowdown},
                                {"over_computation", ratio},
                                {"us", found},
                                {"library_us", library},
                                {"autoccl_us", alone}});
    }
  }
  fmt::print("\n");
  bench::write(record, json);
}
