// Description of the host machine.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "host/mpi/library.hpp"
#include "host_world.hpp"

namespace shingle {
namespace host {

std::vector<DType> native_dtypes() {
  std::vector<DType> types;
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    if (multiplies_natively(type)) types.push_back(type);
  return types;
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "unknown processor";
}

}  // namespace
}  // namespace host

bool launched_by_mpi() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"})
    if (std::getenv(variable) != nullptr) return true;
  return false;
}

Machine host_machine(int ranks, const Link& link, const EnginePhases& engine) {
  Machine machine;
  machine.name = host::cpu_name();
  machine.workers = std::max(1, host::usable_cores() / std::max(ranks, 1));
  machine.link = link;
  machine.topology.serial = true;
  machine.engine = engine;
  return machine;
}

HostInfo host_info() {
  return {.cpu = host::cpu_name(),
          .cores = host::usable_cores(),
          .onednn = host::onednn_version(),
          .native_dtypes = host::native_dtypes(),
          .mpi = host::mpi_library()};
}

std::string describe(const HostInfo& info) {
  std::vector<std::string_view> types;
  for (const DType type : info.native_dtypes) types.push_back(name(type));
  return fmt::format("cpu: {}\ncores: {}\noneDNN: {}\nnative types: {}\nMPI: {}\n", info.cpu, info.cores,
                     info.onednn, fmt::join(types, ", "), info.mpi.empty() ? "none" : info.mpi);
}

}  // namespace shingle
