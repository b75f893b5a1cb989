// The processes of a world, seen by the host: what they tell each other beside the data that plans move.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launch.hpp"
#include "net/token.hpp"

namespace shingle {

/// Calls are collective over the processes and made by one thread at a time, but for tell(). They throw
/// Timeout, with who is missing, where another process has failed, is gone, does not come in time or sends
/// what makes no sense.
class Processes {
 public:
  virtual ~Processes() = default;

  /// Bytes that one process gives, at most, unless a call says otherwise.
  static constexpr std::size_t most_given = std::size_t{16} << 20;

  /// What each process gives, in order of rank. Throws InvalidArgument where this one gives more than
  /// `most_bytes`, which is the same on all.
  std::vector<std::string> all_gather(std::string_view own, double timeout_us,
                                      std::size_t most_bytes = most_given);
  /// Lets the others know that this process has failed.
  virtual void tell(std::string_view reason) noexcept = 0;
  /// Roll call after a wait elsewhere, such as on a device, has passed its deadline for `reason`. Sends a
  /// summons; other processes answer it from watch() or from the collective call they are in.
  /// Rank 0 asks all processes, and returns the ranks that do not answer within `timeout_us`. Any other rank
  /// asks rank 0: it throws Timeout with rank 0's result, or returns rank 0 if no result comes.
  /// Not collective. Afterwards only tell() may be called.
  virtual std::vector<int> silent([[maybe_unused]] std::string_view reason,
                                  [[maybe_unused]] double timeout_us) {
    return {};
  }
  /// Throws Timeout where another process is known to have failed or to be gone. Not collective, returns at
  /// once.
  virtual void watch() = 0;

  void barrier(double timeout_us) { all_gather({}, timeout_us); }
  /// Maximum over all processes of each value.
  std::vector<double> all_max(std::vector<double> values, double timeout_us);
  /// What rank 0 gives.
  std::string from_first(std::string_view own, double timeout_us) { return all_gather(own, timeout_us)[0]; }

 private:
  virtual std::vector<std::string> gather(std::string_view own, double timeout_us,
                                          std::size_t most_bytes) = 0;
};

/// How long a process may take to answer a summons.
inline constexpr double roll_call_us = 1e6;
/// "; ranks 1, 2 do not answer", to append to a reason; empty for no ranks.
std::string who_are_silent(const std::vector<int>& ranks);

/// This process, which holds all ranks.
std::unique_ptr<Processes> alone();

/// The processes that a launcher has started, each connected to rank 0 by TCP: it listens on the port after
/// MASTER_PORT, which is torchrun's own. Only processes with the same token meet. Throws Timeout with the
/// ranks that have not come in time, or why rank 0 cannot be reached; InvalidArgument where nobody says where
/// rank 0 is, or two processes do not agree on who they are.
std::unique_ptr<Processes> connect(const Launched& launched, double timeout_us, const net::Token& token);
/// With the token of the environment, which is only looked for where there are several processes.
std::unique_ptr<Processes> connect(const Launched& launched, double timeout_us);

}  // namespace shingle
