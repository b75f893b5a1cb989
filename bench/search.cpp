// What a search of wave groups costs by the number of waves, on curves as measured, and what it finds beside
// equal groups and, while they are few enough to be tried, all partitions. The row of eight waves has a
// target.
#include <CLI/CLI.hpp>
#include <chrono>

#include "report.hpp"
#include "shingle/machine/profile.hpp"
#include "tune/predict.hpp"
#include "tune/search.hpp"

using namespace shingle;

namespace {

constexpr double target_us = 1000;  // eight waves
constexpr std::int64_t most_tried = 16;

double time_us(const auto& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

/// gemm+allreduce with so many waves: rows of tiles by the workers that are left, in whole waves.
Problem problem_of(const Machine& machine, std::int64_t waves, std::int64_t k, int world) {
  Problem problem;
  problem.op = Op::gemm_allreduce;
  problem.world = world;
  problem.m = machine.tile_rows * waves;
  problem.n = static_cast<std::int64_t>(machine.tile_cols) * (machine.workers - machine.collective_workers);
  problem.k = k;
  problem.dtype = DType::bf16;
  return problem;
}

std::string text(const std::vector<std::int64_t>& groups) {
  constexpr std::size_t most = 12;
  if (groups.size() > most) return fmt::format("{} groups", groups.size());
  return fmt::format("{}", fmt::join(groups, ","));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Cost of a search by the number of waves");
  std::int64_t k = 3584, most = 512;
  int world = 8, repeat = 21;
  std::string machine_file = SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json", json;
  app.add_option("--machine", machine_file)->capture_default_str();
  app.add_option("--k", k)->capture_default_str();
  app.add_option("--world", world)->capture_default_str();
  app.add_option("--waves", most, "the most")->capture_default_str();
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  const Machine machine = read_machine(machine_file);
  auto record = bench::record(argc, argv);
  bool kept = true;
  fmt::print("gemm+allreduce on {}, {} ranks, K {}, median of {}\n", machine.name, world, k, repeat);
  fmt::print("{:>6} {:>12} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10}  {}\n", "waves", "search us", "all us",
             "predicted", "one wave", "two waves", "sequential", "bound", "groups");
  for (std::int64_t waves = 4; waves <= most; waves *= 2) {
    const Problem problem = problem_of(machine, waves, k, world);
    const WaveModel model = wave_model(problem, machine).value(),
                    lone = lone_wave_model(problem, machine).value();
    Partition found;
    bench::Samples search_us;
    for (int i = 0; i < repeat; ++i)
      search_us.us.push_back(time_us([&] { found = search(wave_model(problem, machine).value()); }));
    double all_us = 0;
    if (model.waves() <= most_tried) {
      Partition best;
      all_us = time_us([&] { best = search_exhaustively(model); });
      kept = kept && best.us == found.us;
    }
    if (waves == 8) kept = kept && search_us.median() < target_us;
    const double ones = predict_us(model, equal_groups(model.waves(), 1));
    const double twos = predict_us(model, equal_groups(model.waves(), 2));
    fmt::print("{:>6} {:>12.1f} {:>12.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f}  {}{}\n",
               model.waves(), search_us.median(), all_us, found.us, ones, twos, sequential_us(lone),
               bound_us(lone), text(found.group_waves), waves == 8 ? "  (target 1000 us)" : "");
    record["rows"].push_back({{"waves", model.waves()},
                              {"search", search_us.json()},
                              {"exhaustive_us", all_us},
                              {"predicted_us", found.us},
                              {"one_wave_us", ones},
                              {"two_waves_us", twos},
                              {"sequential_us", sequential_us(lone)},
                              {"bound_us", bound_us(lone)},
                              {"group_waves", found.group_waves}});
  }
  fmt::print("target met, nothing faster found by trying all: {}\n", kept ? "yes" : "NO");
  bench::write(record, json);
  return kept ? 0 : 1;
}
