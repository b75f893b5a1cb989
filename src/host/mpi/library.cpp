#include "library.hpp"

#ifdef SHINGLE_WITH_MPI
#include <mpi.h>
#endif

namespace shingle {

std::string host::mpi_library() {
#ifdef SHINGLE_WITH_MPI
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);  // allowed before MPI_Init
  const std::string all(text, static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
#else
  return {};
#endif
}

}  // namespace shingle
