// Collectives by copy engines, variant by variant and size by size (DMA collectives, Tables 1 and 2), plain
// and prelaunched, every result checked.
//
// On GPUs: this machine's own tables, beside NCCL's collectives; with --energy what a collective takes by the
// boards' counters (Fig. 15), with --beside what it and a GEMM take from each other.
//
// On the host: engines whose phases cost what they do on a real machine. Back-to-back copies are soonest
// where there are few bytes, then broadcasts or exchanges in place, then parallel copies. Real copies, real
// threads; time runs `--scale` times slower than on the machine, so that what threads of this host cost does
// not count.
#include <CLI/CLI.hpp>

#include "copy_engine_sweep.hpp"

using namespace shingle;

namespace {

EnginePhases scaled(EnginePhases phases, double by) {
  for (double* us :
       {&phases.control_us, &phases.schedule_us, &phases.copy_us, &phases.sync_us, &phases.fetch_us,
        &phases.queued_us, &phases.poll_us, &phases.broadcast_us, &phases.swap_us})
    *us *= by;
  phases.gbps /= by;
  return phases;
}

std::vector<std::int64_t> sizes_of(const std::string& least, const std::string& most, std::int64_t factor) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t bytes = parse_size(least); bytes <= parse_size(most); bytes *= factor)
    sizes.push_back(bytes);
  return sizes;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Collectives by copy engines, by variant and size");
  bench::SweepSettings settings;
  std::string backend = "host", least, most, json, trigger;
  std::string phases = "control=0.4us,schedule=1.8us,copy=2.5us,sync=1.8us,rate=60GB/s";
  std::vector<std::string> sizes;
  int ranks = 0;
  double scale = 500, time_ms = 50, idle_ms = 40;
  std::int64_t factor = 4;
  app.add_option("--backend", backend, "host or cuda")->capture_default_str();
  app.add_option("--world", ranks, "0: all GPUs; on the host 8");
  app.add_option("--ops", settings.ops,
                 "allgather,alltoall,reducescatter,allreduce; on the host the first two")
      ->delimiter(',');
  app.add_option("--variants", settings.variants, "of b2b,bcst,swap,pcpy,ring: those alone")->delimiter(',');
  app.add_option("--trigger", trigger, "host or direct: on GPUs direct, else host");
  app.add_option("--sizes", sizes, "of what a rank has in the end, in place of --least to --most")
      ->delimiter(',');
  app.add_option("--least", least, "bytes: on GPUs 1K, else 4K");
  app.add_option("--most", most, "bytes: on GPUs 4G, else 64M");
  app.add_option("--factor", factor, "from size to size")->check(CLI::Range(2, 64))->capture_default_str();
  app.add_option("--repeat", settings.repeat, "runs of each, at most: on GPUs 20, else 3");
  app.add_option("--time-ms", time_ms, "of the runs of each: there are fewer of long ones")
      ->capture_default_str();
  app.add_option("--budget", settings.budget_s, "seconds after which no further size begins; 0: no bound");
  app.add_flag("--ring", settings.ring, "ring beside the paper's variants; on GPUs always");
  app.add_option("--beside", settings.product,
                 "MxNxK: a product, and what it and the best variant or NCCL take from each other");
  app.add_option("--idle-ms", idle_ms, "before each run beside products")->capture_default_str();
  app.add_option("--energy", settings.energy_s,
                 "seconds of sustained runs of the best variant and of NCCL, for their energy: 2 or more");
  app.add_option("--engine", phases, "on the host: phases of the machine's engines")->capture_default_str();
  app.add_option("--scale", scale, "on the host: how many times slower")->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  const bool gpus = backend == "cuda";
  WorldOptions options;
  options.backend = backend;
  settings.library = gpus;
  settings.time_us = 1e3 * time_ms, settings.idle_us = 1e3 * idle_ms;
  settings.ring = settings.ring || gpus;
  if (settings.repeat == 0) settings.repeat = gpus ? 20 : 3;
  if (settings.ops.empty() && gpus) settings.ops = {"allgather", "alltoall", "reducescatter", "allreduce"};
  if (settings.ops.empty()) settings.ops = {"allgather", "alltoall"};
  settings.trigger = parse_engine_trigger(!trigger.empty() ? trigger : gpus ? "direct" : "host");
  if (least.empty()) least = gpus ? "1K" : "4K";
  if (most.empty()) most = gpus ? "4G" : "64M";
  for (const std::string& size : sizes) settings.sizes.push_back(parse_size(size));
  if (sizes.empty()) settings.sizes = sizes_of(least, most, factor);
  if (!gpus) {
    settings.scale = scale;
    options.engine = scaled(parse_engine(phases), scale);
    options.workers_per_rank = 1;
  }
  if (ranks == 0) ranks = gpus ? find_backend("cuda").ranks() : 8;
  const auto world = make_world(ranks, options);
  auto record = bench::record(argc, argv);
  bench::Sweep sweep(*world, settings, record);
  for (const std::string& op : settings.ops) {
    sweep.run(parse_op(op));
    bench::save(record, json);
  }
  if (world->local_ranks().front() == 0) {
    fmt::print("results {}\n", sweep.right() ? "checked" : "WRONG");
    if (!gpus)
      fmt::print("with size the fastest goes from b2b over bcst or swap to pcpy: {}\n",
                 sweep.in_order() ? "yes" : "no");
    record["in_order"] = sweep.in_order();
    bench::write(record, json);
  }
  return sweep.right() && (gpus || sweep.in_order()) ? 0 : 1;
} catch (const Error& error) {
  fmt::print(stderr, "bench_copy_engine: {}\n", error.what());
  return 1;
}
