#include "shingle/run/memory.hpp"

#include <fmt/format.h>

#include <fstream>
#include <limits>
#include <string>

namespace shingle::cli {
namespace {

/// The number in a file that holds only a number; "max" is not one.
double number_in(const char* path) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? value : std::numeric_limits<double>::infinity();
}

double matrix_bytes(double rows, double cols, DType dtype) {
  return rows * cols * static_cast<double>(size_bytes(dtype));
}

template <class Count>
double over_local_ranks(int world, const ProcessLaunch& launch, Count count) {
  if (launch.processes()) return count(launch.rank < world ? launch.rank : 0);
  double sum = 0;
  for (int rank = 0; rank < world; ++rank) sum += count(rank);
  return sum;
}

}  // namespace

double available_bytes() {
  double available = std::numeric_limits<double>::infinity();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, unit; meminfo >> key;) {
    double kib = 0;
    meminfo >> kib;
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") available = kib * 1024;
  }
  const double group = number_in("/sys/fs/cgroup/memory.max") - number_in("/sys/fs/cgroup/memory.current");
  return group < available
             ? group
             : available;  // without a limit the difference is NaN, and this branch is taken too
}

double user_matrix_bytes(const Problem& problem, const ProcessLaunch& launch) {
  return over_local_ranks(problem.world, launch, [&](int rank) {
    double bytes = 0;
    for (const Role role : roles_of(problem)) {
      const shingle::Shape shape = shape_of(problem, role, rank);
      bytes += matrix_bytes(static_cast<double>(shape.rows), static_cast<double>(shape.cols),
                            dtype_of(problem, role));
    }
    return bytes;
  });
}

double internal_bytes(const Plan& plan, const ProcessLaunch& launch) {
  return over_local_ranks(plan.world(), launch, [&](int rank) {
    double bytes = 0;
    for (const Buffer& buffer : plan.buffers)
      if (buffer.role == Role::internal)
        bytes += matrix_bytes(static_cast<double>(buffer.rows[static_cast<std::size_t>(rank)]) * buffer.depth,
                              static_cast<double>(buffer.cols), buffer.dtype);
    return bytes;
  });
}

void require_memory(double bytes, const std::string& what, const ProcessLaunch& launch) {
  const double available = available_bytes(), needed = bytes * launch.on_this_host;
  if (needed > available)
    throw InvalidArgument(fmt::format("{} needs {} of memory, but {} are available", what,
                                      format_bytes(needed), format_bytes(available)));
}

}  // namespace shingle::cli
