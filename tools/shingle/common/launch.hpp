// How this process was started: alone, or as one of several.
#pragma once

namespace shingle::cli {

struct Launch {
  bool mpi = false;  ///< by mpirun
  int rank = 0;
  int size = 1;
  int on_this_host = 1;  ///< of the processes, those that share this machine's memory

  /// Whether it is one of those that a launcher started, be it the only one of mpirun's.
  bool processes() const { return mpi || size > 1; }
  bool speaks() const { return rank == 0; }
};

/// As find_launcher() says. Throws InvalidArgument.
Launch find_launch();

}  // namespace shingle::cli
