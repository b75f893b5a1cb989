// What the rest of the backend may know of MPI, in builds with or without MPI.
#pragma once

#include <string>

namespace shingle::host {

/// Name and version of the MPI library; empty without MPI.
std::string mpi_library();

}  // namespace shingle::host
