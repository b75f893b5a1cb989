// How this process was started: alone, or by mpirun as one of several.
#pragma once

namespace shingle::cli {

struct Launch {
  bool mpi = false;
  int rank = 0;
  int size = 1;
  int on_this_host = 1;  ///< of the processes, those that share this machine's memory

  bool speaks() const { return rank == 0; }
};

/// From the variables that Open MPI (OMPI_COMM_WORLD_*) and MPICH and its kin (PMI_*, MPI_LOCALNRANKS) set.
Launch find_launch();

}  // namespace shingle::cli
