// The other processes of this job on this host, as the system sees them: whoever does not come may be
// stopped.
#pragma once

#include <string>
#include <vector>

namespace shingle {

struct Neighbour {
  int rank = 0;
  int process = 0;       ///< its id
  bool stopped = false;  ///< by a signal (SIGSTOP, SIGTSTP); not by a debugger
};

/// Processes that the same launcher has started in the same job, as far as /proc shows them: without this
/// one. A rank may have several, as where a shell has started it.
std::vector<Neighbour> neighbours();

/// "; rank 1 is stopped (process 4711)", to be put behind a message; empty where nobody is.
std::string stopped_neighbours();

}  // namespace shingle
