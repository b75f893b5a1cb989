// How processes that no launcher started find each other: through the host program.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace shingle {

/// One rank's view of a group of processes, which may be a part of the program's processes.
struct Bootstrap {
  int rank = 0;    ///< in the group
  int size = 1;    ///< of the group
  int device = 0;  ///< CUDA: the device of this rank
  /// Gathers `own` of all ranks of the group, in order of rank, over the program's store or process group.
  /// Collective: all ranks pass the same number of bytes. Used only while a world is made; afterwards the
  /// processes have connections of their own. Throws if a rank is missing.
  std::function<std::string(std::string_view own)> allgather{};
};

}  // namespace shingle
