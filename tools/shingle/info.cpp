// shingle info: shows what this machine and this build support.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "check/oracle.hpp"
#include "shingle/commands.hpp"
#include "shingle/common/surroundings.hpp"
#include "shingle/host/host.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/run/memory.hpp"
#include "shingle/workload/model.hpp"

namespace shingle::cli {
namespace {

void print_json(const HostInfo& host, const Machine& machine, int ranks) {
  nlohmann::ordered_json info;
  info["version"] = SHINGLE_VERSION;
  info["commit"] = commit();
  info["cpu"] = host.cpu;
  info["cores"] = host.cores;
  info["memory_available_bytes"] = available_bytes();
  info["machine"] = {{"ranks", ranks},
                     {"workers", machine.workers},
                     {"tile_rows", machine.tile_rows},
                     {"tile_cols", machine.tile_cols}};
  for (const DType type : host.native_dtypes) info["native_dtypes"].push_back(name(type));
  info["libraries"] = {{"onednn", host.onednn},
                       {"blas", oracle_library()},
                       {"mpi", host.mpi.empty() ? nlohmann::json() : nlohmann::json(host.mpi)}};
  if (const auto gpus = gpus_json(); !gpus.is_null()) info["cuda"] = gpus;
  for (const BackendEntry& entry : backends())
    if (entry.name != "mpi" || !host.mpi.empty()) info["backends"].push_back(entry.name);
  for (const PlannerEntry& entry : planners()) info["mechanisms"].push_back(name(entry.mechanism));
  info["machines"] = machine_names();
  info["models"] = model_names();
  fmt::print("{}\n", info.dump(1));
}

void print_text(const HostInfo& host, const Machine& machine, int ranks) {
  fmt::print("shingle {} ({})\n\n{}{}memory available: {}\noracle: {}\n\n", SHINGLE_VERSION, commit(),
             describe(host), gpus_text(), format_bytes(available_bytes()), oracle_library());
  fmt::print("machine of {} ranks: {} worker{} a rank, tiles of {}x{}\n\nbackends\n", ranks, machine.workers,
             machine.workers == 1 ? "" : "s", machine.tile_rows, machine.tile_cols);
  for (const BackendEntry& entry : backends())
    fmt::print("  {:<12}{}\n", entry.name,
               entry.name == "mpi" && host.mpi.empty() ? "not in this build" : entry.summary);
  fmt::print("mechanisms\n");
  for (const PlannerEntry& entry : planners())
    fmt::print("  {:<12}{}\n", name(entry.mechanism), entry.summary);
  fmt::print("profiles of machines: {}\nmodels: {}\n", fmt::join(machine_names(), ", "),
             fmt::join(model_names(), ", "));
}

}  // namespace

int info(Format format, const WorldFlags& where, const ProcessLaunch& launch) {
  if (!launch.speaks()) return 0;
  const int ranks = where.ranks(launch);
  const Machine machine = machine_of(ranks, where.options(launch));
  if (format == Format::json) {
    print_json(host_info(), machine, ranks);
  } else {
    print_text(host_info(), machine, ranks);
  }
  return 0;
}

}  // namespace shingle::cli
