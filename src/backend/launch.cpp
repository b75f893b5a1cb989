#include "launch.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <optional>

#include "shingle/base/error.hpp"

namespace shingle {
namespace {

struct Launcher {
  std::string_view name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  bool needs_local;  ///< recognised only if local_rank is set; other software sets the first two as well
};

constexpr Launcher launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", true},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", false},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", false},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", true},
};

/// A whole number in [least, most]; empty if the variable is not set. `by_node`: reads the first of several
/// numbers, because Slurm writes tasks by node ("4(x2)" or "4,3").
std::optional<int> number(const Environment& environment, const char* name, int least, int most,
                          bool by_node = false) {
  const char* set = environment(name);
  if (set == nullptr) return std::nullopt;
  const std::string_view text(set);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size() || (by_node && (*end == '(' || *end == ','));
  if (error != std::errc{} || !whole || value < least || value > most)
    throw InvalidArgument(fmt::format("{}={} is not a number in [{}, {}]", name, text, least, most));
  return value;
}

bool started(const Environment& environment, const Launcher& launcher) {
  if (launcher.name == "srun" && environment("SLURM_JOB_ID") && !environment("SLURM_STEP_ID")) return false;
  return environment(launcher.rank) && environment(launcher.size) &&
         (!launcher.needs_local || environment(launcher.local_rank));
}

}  // namespace

Launched find_launcher(const Environment& environment) {
  constexpr int most = 1 << 20, most_port = 65535;
  Launched launched;
  for (const Launcher& launcher : launchers) {
    if (!started(environment, launcher)) continue;
    launched.by = launcher.name;
    launched.size = *number(environment, launcher.size, 1, most);
    launched.rank = *number(environment, launcher.rank, 0, launched.size - 1);
    launched.local_rank =
        number(environment, launcher.local_rank, 0, launched.size - 1).value_or(launched.rank);
    launched.local_size = number(environment, launcher.local_size, 1, launched.size, launcher.name == "srun")
                              .value_or(launched.size);
    break;
  }
  launched.master_port = number(environment, "MASTER_PORT", 1, most_port).value_or(launched.master_port);
  if (const char* host = environment("MASTER_ADDR"); host != nullptr && *host != '\0') {
    launched.master_host = host;
  } else if (launched.local_size == launched.size) {
    launched.master_host = "127.0.0.1";
  }
  return launched;
}

Launched find_launcher() {
  return find_launcher([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
}

}  // namespace shingle
