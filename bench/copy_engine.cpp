// Collectives by copy engines, variant by variant and size by size, on engines whose phases cost what they do
// on a real machine (DMA collectives, Tables 1 and 2): back-to-back copies are soonest where there are few
// bytes, then broadcasts or exchanges in place, then parallel copies. Real copies, real threads; time runs
// `--scale` times slower than on the machine, so that what threads of this host cost does not count.
#include <CLI/CLI.hpp>

#include <algorithm>

#include "report.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/api/workspace.hpp"

using namespace shingle;

namespace {

/// Rows for every pair of ranks, alike.
std::shared_ptr<const Routing> even_routing(int world) {
  std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(world));
  for (auto& rows : dest)
    for (int d = 0; d < world; ++d) rows.push_back(d);
  return std::make_shared<const Routing>(std::move(dest));
}

/// `bytes` is what a rank has in the end, as the paper counts sizes.
Problem problem_of(Op op, int world, std::int64_t bytes) {
  Problem problem{.op = op, .world = world, .m = world};
  problem.n = problem.k = larger(bytes / world / static_cast<std::int64_t>(sizeof(float)), 1);
  if (problem.routes()) problem.routing = even_routing(world);
  return problem;
}

EnginePhases scaled(EnginePhases phases, double by) {
  for (double* us :
       {&phases.control_us, &phases.schedule_us, &phases.copy_us, &phases.sync_us, &phases.fetch_us,
        &phases.queued_us, &phases.poll_us, &phases.broadcast_us, &phases.swap_us})
    *us *= by;
  phases.gbps /= by;
  return phases;
}

struct Setting {
  int world = 8;
  int repeat = 3;
  double scale = 500;
  EnginePhases phases = parse_engine("control=0.4us,schedule=1.8us,copy=2.5us,sync=1.8us,rate=60GB/s");
};

/// Median of the time on the machine that phases were scaled from; negative where the result is wrong.
double time_us(const Setting& at, Op op, std::int64_t bytes, const Params& params, bench::Samples& samples) {
  const Problem problem = problem_of(op, at.world, bytes);
  WorldOptions options;
  options.backend = "host";
  options.engine = scaled(at.phases, at.scale);
  options.workers_per_rank = 1;
  const auto world = make_world(at.world, options);
  const auto inputs = random_inputs(problem, 5);
  Workspace memory(*world, *inputs);
  Operator transfer(*world, problem, {.mechanism = Mechanism::copy_engine, .params = params, .verify = true});
  memory.bind(transfer);
  memory.poison_outputs();
  transfer.executable().poison();
  transfer.run();
  if (!check(*inputs, memory.outputs()).passed) return -1;
  for (int i = 0; i < at.repeat; ++i) samples.us.push_back(transfer.run().elapsed_us / at.scale);
  return samples.median();
}

/// The variants in the order in which the tables have them, by growing size.
std::vector<Variant> variants_of(Op op) {
  return {Variant::b2b, op == Op::allgather ? Variant::bcst : Variant::swap, Variant::pcpy};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Collectives by copy engines on the host, by variant and size");
  Setting at;
  std::int64_t least = 4 << 10, most = 64 << 20;
  bool ring = false;
  std::string json, phases;
  app.add_option("--world", at.world)->capture_default_str();
  app.add_option("--repeat", at.repeat)->capture_default_str();
  app.add_option("--scale", at.scale, "how many times slower than the machine")->capture_default_str();
  app.add_option("--engine", phases, "phases of the machine's engines");
  app.add_option("--least", least, "bytes")->capture_default_str();
  app.add_option("--most", most, "bytes")->capture_default_str();
  app.add_flag("--ring", ring, "allgather around a ring beside them");
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);
  if (!phases.empty()) at.phases = parse_engine(phases);

  auto record = bench::record(argc, argv);
  bool correct = true, in_order = true;
  for (const Op op : {Op::allgather, Op::alltoall})
    for (const bool prelaunch : {false, true}) {
      auto variants = variants_of(op);
      if (ring && op == Op::allgather) variants.push_back(Variant::ring);
      fmt::print("{}{}, {} ranks, us\n{:>10}", name(op), prelaunch ? ", prelaunched" : "", at.world, "bytes");
      for (const Variant variant : variants) fmt::print(" {:>8}", name(variant));
      fmt::print("  fastest\n");
      std::size_t last = 0;
      for (std::int64_t bytes = least; bytes <= most; bytes *= 4) {
        fmt::print("{:>10}", format_bytes(static_cast<double>(bytes)));
        std::vector<double> times;
        for (const Variant variant : variants) {
          Params params;
          params.variant = variant, params.prelaunch = prelaunch;
          bench::Samples samples;
          times.push_back(time_us(at, op, bytes, params, samples));
          correct = correct && times.back() > 0;
          fmt::print(" {:>8.1f}", times.back());
          nlohmann::json row = samples.json();
          row["op"] = name(op), row["variant"] = name(variant), row["prelaunch"] = prelaunch;
          row["bytes"] = bytes, row["world"] = at.world, row["scale"] = at.scale;
          record["rows"].push_back(std::move(row));
        }
        const auto best =
            static_cast<std::size_t>(std::min_element(times.begin(), times.begin() + 3) - times.begin());
        in_order = in_order && best >= last;
        last = best;
        fmt::print("  {}\n", name(variants[best]));
        std::fflush(stdout);
      }
    }
  fmt::print("results {}; with size the fastest goes from b2b over bcst or swap to pcpy: {}\n",
             correct ? "checked" : "WRONG", in_order ? "yes" : "no");
  record["in_order"] = in_order;
  bench::write(record, json);
  return correct && in_order ? 0 : 1;
}
