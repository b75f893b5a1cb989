// How this process was started: alone, or as one of several by torchrun, mpirun or srun.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace shingle {

struct Launched {
  std::string_view by;      ///< "torchrun", "mpirun" or "srun"; empty: none of them
  int rank = 0;             ///< among all processes
  int size = 1;             ///< number of processes
  int local_rank = 0;       ///< among the processes of this host
  int local_size = 1;       ///< number of processes on this host
  std::string master_host;  ///< host of rank 0; empty: unknown, and there are several hosts
  int master_port = 29500;  ///< port at which processes find each other

  bool several() const { return size > 1; }
};

/// Value of an environment variable, or null.
using Environment = std::function<const char*(const char* name)>;

/// Finds the innermost launcher that has set its variables. These are torchrun (RANK, WORLD_SIZE,
/// LOCAL_RANK), Open MPI and MPICH (OMPI_COMM_WORLD_*, PMI_*), and Slurm (SLURM_PROCID, SLURM_NTASKS,
/// SLURM_LOCALID). A Slurm batch script has these variables too, but counts as one process. With every
/// launcher, MASTER_ADDR and MASTER_PORT locate rank 0. Without them, processes of one host meet on that
/// host. Throws InvalidArgument that names a variable with an invalid value.
Launched find_launcher(const Environment& environment);
/// As above, from this process's environment.
Launched find_launcher();

}  // namespace shingle
