// The other processes of this job on this host, as /proc shows them: a missing rank may be stopped.
#pragma once

#include <string>
#include <vector>

namespace shingle {

struct Neighbour {
  int rank = 0;
  int process = 0;       ///< process id
  bool stopped = false;  ///< by a signal (SIGSTOP, SIGTSTP), not by a debugger
};

/// Processes that the same launcher started in the same job, without this one, as far as /proc shows them. A
/// rank may have several processes, for example if a shell started it.
std::vector<Neighbour> neighbours();

/// Returns "; rank 1 is stopped (process 4711)", to append to a message. Empty if no process is stopped.
std::string stopped_neighbours();

}  // namespace shingle
