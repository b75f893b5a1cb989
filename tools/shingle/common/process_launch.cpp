#include "shingle/common/process_launch.hpp"

#include "backend/launch.hpp"

namespace shingle::cli {

ProcessLaunch find_process_launch() {
  const Launched launched = find_launcher();
  return {.mpi = launched.by == "mpirun",
          .rank = launched.rank,
          .size = launched.size,
          .on_this_host = launched.local_size};
}

}  // namespace shingle::cli
