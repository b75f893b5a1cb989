// World-wide messages of MPI processes: barriers, maxima, and the notice that a process has failed.
#pragma once

#ifdef SHINGLE_WITH_MPI
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "calls.hpp"
#include "host/executor/health.hpp"
#include "shingle/backend/backend.hpp"

namespace shingle::host {

/// All calls but tell() are collective over the world, and one thread at a time makes them. They throw
/// Timeout with the late ranks if others do not come within `timeout_us`.
class MpiControl {
 public:
  MpiControl(MpiProcess& process, Health& health) : process_(process), health_(health) {}

  void barrier(double timeout_us);
  std::vector<double> all_max(std::vector<double> values, double timeout_us);
  /// The values of all processes, in order of rank. `what` names the wait in errors.
  template <class T>
  std::vector<T> gather_one(const T& own, double timeout_us, const char* what) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::string text(reinterpret_cast<const char*>(&own), sizeof own);
    const std::vector<std::size_t> sizes(static_cast<std::size_t>(process_.size()), sizeof own);
    std::vector<T> all;
    for (const std::string& letter : meet(text, sizes, timeout_us, what))
      std::memcpy(&all.emplace_back(), letter.data(), sizeof own);
    return all;
  }
  /// The spans of all processes, in order of rank.
  std::vector<Span> gather(const std::vector<Span>& own, double timeout_us);

  /// Defers a SIGTERM until released. mpirun ends the survivors with it after a process has died, and they
  /// should first report what they wait for. Only the first SIGTERM is deferred, and only if nothing else
  /// handles it.
  static void hold_sigterm();
  static void release_sigterm();

  /// Fails the world if another process has failed or this one was told to end. `standing` says what this
  /// process waits for.
  void watch(const std::function<std::string()>& standing);
  /// Tells the other processes that this one has failed. Never throws.
  void tell(const std::string& reason) noexcept;

 private:
  /// Gathers the data of all processes, in order of rank. `bytes` holds the size for each rank.
  std::vector<std::string> meet(std::string own, const std::vector<std::size_t>& bytes, double timeout_us,
                                const char* what);
  void wait(Requests& requests, double timeout_us, const char* what);

  MpiProcess& process_;
  Health& health_;
};

}  // namespace shingle::host
#endif
