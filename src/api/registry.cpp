#include "shingle/api/registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>

#include "backend/launch.hpp"
#include "shingle/base/error.hpp"
#include "shingle/host/host.hpp"
#include "tune/searched.hpp"
#ifdef SHINGLE_WITH_CUDA
#include "shingle/cuda/cuda.hpp"
#endif

namespace shingle {
namespace {

constexpr PlannerEntry planner_table[] = {
    {Mechanism::sequential, "one GEMM, then the collective: the baseline"},
    {Mechanism::low_latency, "few rows: one kernel sums what ranks store into each other's flagged memory"},
    {Mechanism::chunked, "data slicing: the collective of one slice beside the GEMM of the next"},
    {Mechanism::ring,
     "messages around a ring; a rank's own shard is computed last (or first), so that nothing waits at the "
     "end"},
    {Mechanism::signal, "one GEMM that counts finished tiles; each group of waves is sent when complete"},
    {Mechanism::copy_engine, "copy engines carry out the collective, with no worker but those that sum"},
    {Mechanism::fused, "one GEMM whose tiles go to, or come from, other ranks' memory directly"},
};

HostOptions host_options(const WorldOptions& options) {
  HostOptions host;
  host.link = options.link;
  host.engine = options.engine;
  host.workers_per_rank = options.workers_per_rank;
  host.timeout_us = options.timeout_us;
  return host;
}

std::unique_ptr<World> make_threads(int ranks, const WorldOptions& options) {
  return make_thread_world(ranks, host_options(options));
}

std::unique_ptr<World> make_mpi(int ranks, const WorldOptions& options) {
  auto world = make_mpi_world(host_options(options));
  if (ranks != 0 && ranks != world->size())
    throw InvalidArgument(fmt::format("{} ranks, but mpirun started {} processes", ranks, world->size()));
  return world;
}

Machine machine(int ranks, const WorldOptions& options) {
  Machine machine = host_machine(ranks, options.link, options.engine);
  if (options.workers_per_rank > 0) machine.workers = options.workers_per_rank;
  return machine;
}

Machine mpi_machine(int ranks, const WorldOptions& options) {
  Machine processes = machine(ranks, options);
  processes.peer_memory = false;
  return processes;
}

int thread_ranks() {
  return 4;
}

int process_ranks() {
  return find_launcher().size;
}

#ifdef SHINGLE_WITH_CUDA
CudaOptions cuda_options(const WorldOptions& options) {
  if (options.link.paced() || options.engine.paced() || options.workers_per_rank > 0)
    throw InvalidArgument("cuda emulates no links, copy engines or workers; only the host backends do");
  return {.timeout_us = options.timeout_us};
}

std::unique_ptr<World> make_cuda(int ranks, const WorldOptions& options) {
  const CudaOptions cuda = cuda_options(options);
  auto world = options.bootstrap                ? make_cuda_world(*options.bootstrap, cuda)
               : !options.communicators.empty() ? make_cuda_world(options.communicators, cuda)
                                                : make_cuda_world(ranks, cuda);
  if (ranks != 0 && ranks != world->size())
    throw InvalidArgument(fmt::format("{} ranks, but the group has {}", ranks, world->size()));
  return world;
}

Machine gpus(int ranks, const WorldOptions& options) {
  return cuda_machine(ranks, cuda_options(options));
}

std::vector<TileShape> gpu_tiles(const WorldOptions& options) {
  return cuda_tiles(cuda_options(options));
}
#endif

constexpr BackendEntry backend_table[] = {
    {"host", "ranks as threads of this process", make_threads, machine, thread_ranks},
    {"mpi", "ranks as processes started by mpirun", make_mpi, mpi_machine, process_ranks},
#ifdef SHINGLE_WITH_CUDA
    {"cuda", "ranks as GPUs: of this process, or one each of those that torchrun, mpirun or srun started",
     make_cuda, gpus, default_cuda_ranks, gpu_tiles, cuda_refuses},
#endif
};

}  // namespace

std::string_view backend_name(const WorldOptions& options) {
  if (!options.backend.empty()) return options.backend;
  return launched_by_mpi() ? "mpi" : "host";
}

std::span<const PlannerEntry> planners() {
  return planner_table;
}
std::span<const BackendEntry> backends() {
  return backend_table;
}

Result<Plan> make_plan(const Problem& problem, const Machine& machine, const Params& params) {
  problem.validate();
  if (const auto reason = why_refused(mechanism_of(params), list_of(params)))
    throw InvalidArgument(reason->text);
  if (const auto* signal = std::get_if<SignalParams>(&params))
    if (const auto searched = searched_groups(problem, machine, *signal))
      if (Result<Plan> plan = plan_signal(problem, machine, *searched)) return plan;
  return plan_with(problem, machine, params);
}

Result<Plan> make_plan(const Workload& workload, const Machine& machine, const Params& params) {
  return plan_with(workload, machine, params);
}

Result<Plan> make_best_plan(const Problem& problem, const Machine& machine, const ParamList& params) {
  problem.validate();
  Result<Plan> plan = Reason{"no mechanism takes all of these params"};
  bool taken = false;
  for (const PlannerEntry& entry : planners() | std::views::reverse) {
    if (why_refused(entry.mechanism, params)) continue;
    taken = true;
    plan = make_plan(problem, machine, parse_params(entry.mechanism, params));
    if (plan) return plan;
    // Params that the user gave must not be dropped for a mechanism that does not take them.
    if (!params.empty() && make_plan(problem, machine, default_params(entry.mechanism)))
      return Reason{fmt::format("{}: {}", name(entry.mechanism), plan.reason())};
  }
  if (!taken) throw InvalidArgument(plan.reason());
  const Mechanism baseline = planners().front().mechanism;
  if (const auto reason = why_refused(baseline, params);
      reason && make_plan(problem, machine, default_params(baseline)))
    throw InvalidArgument(reason->text);  // only the baseline would serve the problem
  return plan;
}

const BackendEntry& find_backend(std::string_view name) {
  std::string known;
  for (const BackendEntry& entry : backends()) {
    if (entry.name == name) return entry;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
  }
  if (name == "cuda") throw Unsupported("this build has no CUDA backend: configure the cuda preset");
  throw InvalidArgument(fmt::format("unknown backend '{}' (one of {})", name, known));
}

std::unique_ptr<World> make_world(int ranks, const WorldOptions& options) {
  if (options.bootstrap && !options.communicators.empty())
    throw InvalidArgument("a world is made from an allgather or from communicators, not from both");
  const std::string_view name = backend_name(options);
  if (name != "cuda" && (options.bootstrap || !options.communicators.empty()))
    throw InvalidArgument(
        fmt::format("backend '{}' takes no allgather and no communicators; only 'cuda' does", name));
  return find_backend(backend_name(options)).make(ranks, options);
}

Machine machine_of(int ranks, const WorldOptions& options) {
  return find_backend(backend_name(options)).machine(ranks, options);
}

std::function<std::string(const Plan&)> refusals(const WorldOptions& options) {
  return find_backend(backend_name(options)).refuses;
}

std::vector<TileShape> served_tiles(const WorldOptions& options) {
  const BackendEntry& backend = find_backend(backend_name(options));
  return backend.tiles != nullptr ? backend.tiles(options) : std::vector<TileShape>{};
}

}  // namespace shingle
