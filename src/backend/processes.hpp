// The processes of a world, seen by the host: what they tell each other beside the data that plans move.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/backend/launch.hpp"

namespace shingle {

/// Calls are collective over the processes and made by one thread at a time, but for tell(). They throw
/// Timeout, with who is missing, where another process has failed, is gone or does not come in time.
class Processes {
 public:
  virtual ~Processes() = default;

  /// What each process gives, in order of rank.
  virtual std::vector<std::string> all_gather(std::string_view own, double timeout_us) = 0;
  /// Lets the others know that this process has failed.
  virtual void tell(std::string_view reason) noexcept = 0;
  /// Throws Timeout where another process is known to have failed or to be gone. Not collective, returns at
  /// once.
  virtual void watch() = 0;

  void barrier(double timeout_us) { all_gather({}, timeout_us); }
  /// Maximum over all processes of each value.
  std::vector<double> all_max(std::vector<double> values, double timeout_us);
  /// What rank 0 gives.
  std::string from_first(std::string_view own, double timeout_us) { return all_gather(own, timeout_us)[0]; }
};

/// This process, which holds all ranks.
std::unique_ptr<Processes> alone();

/// The processes that a launcher has started, each connected to rank 0 by TCP: it listens on the port after
/// MASTER_PORT, which is torchrun's own. Throws Timeout with the ranks that have not come in time,
/// InvalidArgument where nobody says where rank 0 is.
std::unique_ptr<Processes> connect(const Launched& launched, double timeout_us);

}  // namespace shingle
