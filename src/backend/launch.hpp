// How this process was started: alone, or as one of several by torchrun, mpirun or srun.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace shingle {

struct Launched {
  std::string_view by;      ///< "torchrun", "mpirun" or "srun"; empty: by none of them
  int rank = 0;             ///< of all processes
  int size = 1;             ///< processes there are
  int local_rank = 0;       ///< of those on this host
  int local_size = 1;       ///< processes on this host
  std::string master_host;  ///< rank 0's; empty: nobody said it, and there are several hosts
  int master_port = 29500;  ///< by which processes find each other

  bool several() const { return size > 1; }
};

/// The value of a variable of the environment, or null.
using Environment = std::function<const char*(const char* name)>;

/// The innermost launcher that has set its variables: torchrun (RANK, WORLD_SIZE, LOCAL_RANK), Open MPI and
/// MPICH (OMPI_COMM_WORLD_*, PMI_*), Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID; a batch script itself
/// is one process, though it has them too). Of all, MASTER_ADDR and MASTER_PORT say where rank 0 is; without,
/// processes of one host meet on it. Throws InvalidArgument that names a variable whose value makes no sense.
Launched find_launcher(const Environment& environment);
/// The same from this process's own environment.
Launched find_launcher();

}  // namespace shingle
