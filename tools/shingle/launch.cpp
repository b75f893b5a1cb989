#include "shingle/launch.hpp"

#include <cstdlib>
#include <initializer_list>
#include <string>

namespace shingle::cli {
namespace {

int number(std::initializer_list<const char*> variables, int otherwise) {
  for (const char* variable : variables)
    if (const char* text = std::getenv(variable)) return std::atoi(text);
  return otherwise;
}

}  // namespace

Launch find_launch() {
  Launch launch;
  launch.size = number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 0);
  launch.mpi = launch.size > 0;
  if (!launch.mpi) return {};
  launch.rank = number({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0);
  launch.on_this_host = number({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}, launch.size);
  return launch;
}

}  // namespace shingle::cli
