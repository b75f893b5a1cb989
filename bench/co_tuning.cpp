// What a search of configurations costs by the number of collectives: N layers, of which each gathers its
// weights beside the one before. Configurations that are measured, and what they gain in the simulator.
#include <CLI/CLI.hpp>
#include <chrono>

#include "report.hpp"
#include "shingle/machine/profile.hpp"
#include "tune/co_tuning.hpp"
#include "workload/overlap_patterns.hpp"

using namespace shingle;
using cotune::Method;

namespace {

/// A layer's products, so many times; gather i is beside layer i, and what layer i + 1 awaits.
Workload layers_of(const OverlapPattern& layer, int count) {
  Workload list{.world = layer.workload.world, .dtype = layer.workload.dtype};
  for (std::int32_t i = 0; i < count; ++i) {
    Workload::Collective gather = layer.workload.collectives.front();
    if (i > 1) gather.after = {static_cast<std::int32_t>(list.computations.size()) - 1};
    const std::size_t first = list.computations.size();
    for (const Workload::Computation& item : layer.workload.computations) list.computations.push_back(item);
    if (i > 0) list.computations[first].after = {i - 1};
    list.collectives.push_back(std::move(gather));
  }
  return list;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Cost of co-tuning by the number of collectives");
  std::string machine_name = "a40x8-nvlink", model = SHINGLE_TEST_SOURCE_DIR "/models/llama-3-8b.json", json;
  std::int64_t tokens = 2048;
  int most = 16;
  app.add_option("--machine", machine_name)->capture_default_str();
  app.add_option("--model", model)->capture_default_str();
  app.add_option("--tokens", tokens)->capture_default_str();
  app.add_option("--collectives", most, "the most")->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  const Machine machine = machine_from_spec(machine_name);
  const auto patterns = overlap_patterns(read_model_file(model),
                                         {.ranks = machine.ranks, .tokens = tokens, .sequence = tokens});
  const cotune::Space space = config_space(machine);
  auto record = bench::record(argc, argv);
  const auto subspaces = std::ranges::count_if(space.subspaces, [](const cotune::Subspace& at) {
    return serves(CollectiveKind::allgather, {.algorithm = at.algorithm, .protocol = at.protocol});
  });
  const double configurations =
      space.size(1) / static_cast<double>(space.subspaces.size()) * double(subspaces);
  fmt::print("{} on {}, {} tokens, {:.0f} configurations of a collective\n", model, machine.name, tokens,
             configurations);
  fmt::print("{:>12} {:>12} {:>14} {:>8} {:>12} {:>12} {:>10}\n", "collectives", "evaluations",
             "a collective", "autoccl", "over nccl", "over autoccl", "search ms");
  for (int count = 1; count <= most; ++count) {
    const Workload workload = layers_of(patterns[0], count);
    const CoTuned library = co_tune(workload, machine, Method::library, space);
    const CoTuned alone = co_tune(workload, machine, Method::alone, space);
    const auto start = std::chrono::steady_clock::now();
    const CoTuned together = co_tune(workload, machine, Method::together, space);
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    const double us = together.measured.makespan_us;
    fmt::print("{:>12} {:>12} {:>14.1f} {:>8} {:>11.3f}x {:>11.3f}x {:>10.1f}\n", count, together.evaluations,
               static_cast<double>(together.evaluations) / count, alone.evaluations,
               library.measured.makespan_us / us, alone.measured.makespan_us / us, ms);
    record["rows"].push_back({{"collectives", count},
                              {"configurations", configurations},
                              {"evaluations", together.evaluations},
                              {"autoccl_evaluations", alone.evaluations},
                              {"us", us},
                              {"library_us", library.measured.makespan_us},
                              {"autoccl_us", alone.measured.makespan_us}});
  }
  bench::write(record, json);
}
