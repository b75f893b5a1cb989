// The processes of a world on the host side: what they exchange besides the data that plans move.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launch.hpp"
#include "net/token.hpp"
#include "shingle/backend/bootstrap.hpp"

namespace shingle {

/// All calls but tell() are collective over the processes unless stated, and one thread at a time makes them.
/// They throw Timeout with the missing ranks if another process has failed, is gone, is late or sends invalid
/// data.
class Processes {
 public:
  virtual ~Processes() = default;

  /// Default limit of the bytes that one process gives.
  static constexpr std::size_t most_given = std::size_t{16} << 20;

  /// Gathers the data of each process, in order of rank. `most_bytes` must be the same on all. Throws
  /// InvalidArgument if this process gives more than that.
  std::vector<std::string> all_gather(std::string_view own, double timeout_us,
                                      std::size_t most_bytes = most_given);
  /// Tells the other processes that this one has failed.
  virtual void tell(std::string_view reason) noexcept = 0;
  /// Roll call after a wait elsewhere, such as on a device, has passed its deadline for `reason`. Sends a
  /// summons. Other processes answer it from watch() or from the collective call they are in.
  ///
  /// Rank 0 asks all processes, and returns the ranks that do not answer within `timeout_us`. Any other rank
  /// asks rank 0. It throws Timeout with rank 0's result, or returns rank 0 if no result comes.
  ///
  /// Not collective. Afterwards only tell() may be called.
  virtual std::vector<int> silent([[maybe_unused]] std::string_view reason,
                                  [[maybe_unused]] double timeout_us) {
    return {};
  }
  /// From now on this process only leaves. If a collective call of it fails, the others do not fail: they may
  /// leave later. Not collective.
  virtual void part() {}
  /// Throws Timeout if another process is known to have failed or to be gone, unless it said goodbye. Answers
  /// a summons. Not collective; returns at once.
  virtual void watch() = 0;
  /// As watch(), but consumes nothing and answers no summons: for a process whose program is not in a call of
  /// the world.
  virtual void peek() = 0;

  void barrier(double timeout_us) { all_gather({}, timeout_us); }
  /// Maximum over all processes of each value.
  std::vector<double> all_max(std::vector<double> values, double timeout_us);
  /// Returns the data of rank 0.
  std::string from_first(std::string_view own, double timeout_us) { return all_gather(own, timeout_us)[0]; }

 private:
  virtual std::vector<std::string> gather(std::string_view own, double timeout_us,
                                          std::size_t most_bytes) = 0;
};

/// How long a process may take to answer a summons.
inline constexpr double roll_call_us = 5e5;
/// Returns "; ranks 1, 2 do not answer", to append to a reason. Empty for no ranks.
std::string who_are_silent(const std::vector<int>& ranks);

/// A world of this process only, which holds all ranks.
std::unique_ptr<Processes> alone();

/// Connects the processes that a launcher has started, each to rank 0 by TCP. Rank 0 listens on the port
/// after MASTER_PORT, because torchrun uses MASTER_PORT itself. Only processes with the same token meet.
///
/// Throws Timeout with the late ranks, or with the reason that rank 0 cannot be reached. Throws
/// InvalidArgument if rank 0's host is unknown, or if processes disagree about ranks or their number.
std::unique_ptr<Processes> connect(const Launched& launched, double timeout_us, const net::Token& token);
/// As above, with the environment's token, which is read only if there are several processes.
std::unique_ptr<Processes> connect(const Launched& launched, double timeout_us);
/// Connects the processes of a group through the host program's all-gather. Throws InvalidArgument if the
/// all-gather's result is not one of this group, Timeout as above, and whatever the all-gather throws.
std::unique_ptr<Processes> connect(const Bootstrap& bootstrap, double timeout_us);

}  // namespace shingle
