// What libshingle-mpi.so offers to libshingle.so. Both are of the same build: C++ types pass between them.
#pragma once

#include <memory>
#include <string>

#include "base/log.hpp"
#include "shingle/host/host.hpp"

namespace shingle {

struct MpiModule {
  const char* commit;
  std::unique_ptr<World> (*make_world)(const HostOptions& options);  ///< make_mpi_world()
  std::string (*library)();                                          ///< host::mpi_library()
  void (*set_log_sink)(LogSink sink);  ///< of the module, which has a log of its own
};

}  // namespace shingle

extern "C" const shingle::MpiModule shingle_mpi_module;
