// The one symbol of libshingle-mpi.so.
#include "mpi_module.hpp"

#include "host/mpi/library.hpp"
#include "shingle/version.hpp"

const shingle::MpiModule shingle_mpi_module = {
    shingle::commit(),
    shingle::make_mpi_world,
    shingle::host::mpi_library,
    shingle::set_log_sink,
};
