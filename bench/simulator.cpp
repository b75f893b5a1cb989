// How fast the simulator itself is, on one core: events a second, the time of a plan, and how that grows with
// tiles and ranks: of rings that are planned in full with their square, of those in which the ranks of a node
// stand for all in proportion.
#include <CLI/CLI.hpp>

#include <chrono>

#include "report.hpp"
#include "shingle/api/registry.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"

using namespace shingle;

namespace {

struct Speed {
  double us = 0;
  std::int64_t events = 0;
};

Speed speed_of(const Plan& plan, const Machine& machine, int repeat) {
  bench::Samples samples;
  Speed speed;
  for (int i = 0; i < repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    speed.events = simulate(plan, machine).events;
    samples.us.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  speed.us = samples.median();
  return speed;
}

/// A ring of so many ranks, eight a node: planned and simulated, in full or by the ranks of a node.
nlohmann::json ring(int world, bool symmetric) {
  const Machine nodes = machine_from_spec("h200x8 * 1024, 8x400Gb/s");
  const Problem problem{
      .op = Op::gemm_reducescatter, .world = world, .m = 65536, .n = 8192, .k = 3584, .dtype = DType::bf16};
  const auto start = std::chrono::steady_clock::now();
  const Plan plan = plan_ring(problem, nodes, {.slices = 1, .symmetric = symmetric}).value();
  const auto planned = std::chrono::steady_clock::now();
  const Simulated run = simulate(plan, nodes);
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - start,
                                      sim = all - (planned - start);
  fmt::print("{:>6} {:>8} {:>10} {:>9.3f} {:>9.3f} {:>14.1f}\n", world, plan.ranks.size(), run.events,
             all.count(), sim.count(), run.makespan_us);
  return {{"ranks", world},
          {"planned", plan.ranks.size()},
          {"events", run.events},
          {"seconds", all.count()},
          {"makespan_us", run.makespan_us}};
}

/// Whether the largest ring that is promised is done in time.
bool rings(nlohmann::json& record) {
  constexpr int promised_ranks = 4096;
  constexpr double most_seconds = 10;
  bool kept = true;
  fmt::print("\n{:>6} {:>8} {:>10} {:>9} {:>9} {:>14}\n", "ranks", "planned", "events", "seconds", "of these",
             "simulated us");
  for (int world = 8; world <= max_world; world *= 2) record["rings"].push_back(ring(world, false));
  for (int world = 8; world <= 2 * promised_ranks; world *= 2) {
    record["rings"].push_back(ring(world, true));
    kept =
        kept && (world > promised_ranks || record["rings"].back()["seconds"].get<double>() <= most_seconds);
  }
  return kept;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Speed of the simulator");
  int repeat = 7;
  std::string json;
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);
  const Machine machine = machine_from_spec("h200x8");
  auto record = bench::record(argc, argv);
  bool kept = true;
  double fastest = 0;
  fmt::print("{:<46} {:<12} {:>6} {:>10} {:>9} {:>9}\n", "problem", "mechanism", "ranks", "events", "ms",
             "M/s");
  const auto row = [&](const Problem& problem, const Machine& on, const Params& params, double most_ms) {
    const Mechanism mechanism = mechanism_of(params);
    const Speed speed = speed_of(make_plan(problem, on, params).value(), on, repeat);
    const double rate = static_cast<double>(speed.events) / speed.us;
    if (speed.events > 10000) fastest = std::max(fastest, rate);
    const bool late = most_ms > 0 && speed.us > most_ms * 1e3;
    kept = kept && !late;
    fmt::print("{:<46} {:<12} {:>6} {:>10} {:>9.2f} {:>9.2f}{}\n", describe(problem), name(mechanism),
               problem.world, speed.events, speed.us / 1e3, rate, late ? "  too slow" : "");
    record["rows"].push_back({{"problem", describe(problem)},
                              {"mechanism", name(mechanism)},
                              {"events", speed.events},
                              {"us", speed.us}});
  };
  const Problem layer{
      .op = Op::gemm_allreduce, .world = 8, .m = 8192, .n = 8192, .k = 3584, .dtype = DType::bf16};
  row(layer, machine, SignalParams{}, 20);
  for (const Mechanism mechanism :
       {Mechanism::sequential, Mechanism::chunked, Mechanism::ring, Mechanism::fused, Mechanism::copy_engine})
    row(layer, machine, default_params(mechanism), 0);
  // One worker a rank: every tile is an event.
  Machine small = machine;
  small.workers = 2, small.collective_workers = 1;
  Problem tiles = layer;
  for (const std::int64_t m : {8192, 32768, 131072}) {
    tiles.m = m;
    row(tiles, small, SignalParams{.tile = {128, 128}}, 0);
  }
  kept = rings(record) && kept;
  fmt::print("fastest {:.2f} million events a second\n", fastest);
  record["events_per_us"] = fastest;
  bench::write(record, json);
  return kept && fastest >= 1 ? 0 : 1;
}
