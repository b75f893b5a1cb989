// What concerns all processes of an MPI world: barriers, maxima, and the news that one of them has failed.
#pragma once

#ifdef SHINGLE_WITH_MPI
#include <functional>
#include <string>
#include <vector>

#include "host/executor/health.hpp"
#include "mpi_calls.hpp"
#include "shingle/backend/backend.hpp"

namespace shingle::host {

/// All calls but tell() are collective over the world, made by one thread at a time, and throw Timeout when
/// the others do not come within `timeout_us`: it names them.
class MpiControl {
 public:
  MpiControl(MpiProcess& process, Health& health) : process_(process), health_(health) {}

  void barrier(double timeout_us);
  std::vector<double> all_max(std::vector<double> values, double timeout_us);
  /// Everybody's spans, in order of rank.
  std::vector<Span> gather(const std::vector<Span>& own, double timeout_us);

  /// Takes note of a SIGTERM until released: mpirun ends the survivors with it when a process has died, and
  /// they should say what they were waiting for. Only the first one is held off, and only where nobody else
  /// handles it.
  static void hold_sigterm();
  static void release_sigterm();

  /// Fails the world where another process has failed or this one was told to end. `standing` says what this
  /// process waits for.
  void watch(const std::function<std::string()>& standing);
  /// Lets the others know that this process has failed. Never throws.
  void tell(const std::string& reason) noexcept;

 private:
  /// What each process gives, in order of rank: as many bytes as said.
  std::vector<std::string> meet(std::string own, const std::vector<std::size_t>& bytes, double timeout_us,
                                const char* what);
  void wait(Requests& requests, double timeout_us, const char* what);

  MpiProcess& process_;
  Health& health_;
};

}  // namespace shingle::host
#endif
