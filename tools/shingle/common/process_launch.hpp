// How this process was started: alone, or as one of several.
#pragma once

namespace shingle::cli {

struct ProcessLaunch {
  bool mpi = false;  ///< started by mpirun
  int rank = 0;
  int size = 1;
  int on_this_host = 1;  ///< number of processes that share this machine's memory

  /// True if a launcher started this process, even if it is mpirun's only one.
  bool processes() const { return mpi || size > 1; }
  bool speaks() const { return rank == 0; }
};

/// Result of find_launcher(). Throws InvalidArgument.
ProcessLaunch find_process_launch();

}  // namespace shingle::cli
