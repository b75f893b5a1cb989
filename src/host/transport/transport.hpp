// How ranks meet: collectives and exchanges, in one process or between several.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "host/executor/memory.hpp"
#include "host/executor/progress.hpp"
#include "shingle/backend/backend.hpp"

namespace shingle::host {

class Transport {
 public:
  virtual ~Transport() = default;

  /// Returns when the rank's part is done and its slices may be reused. Throws Timeout with the missing
  /// ranks, InvalidArgument if the ranks' calls disagree, or Stopped.
  virtual void collective(const Caller& caller, const Collective& step, const View& send,
                          const View& recv) = 0;
  virtual void exchange(const Caller& caller, const Exchange& step, std::span<const View> sends,
                        std::span<const View> receives) = 0;

  /// Ranks that have not reached the rendezvous at which `rank` waits in a communicator, as far as this
  /// process knows.
  virtual std::vector<int> missing(std::int32_t communicator, int rank) = 0;

  /// This process is about to run. end_run() follows the run and completes the report with those of other
  /// processes.
  virtual void begin_run() {}
  virtual void end_run(RunReport&) {}
  /// Enqueued epochs are about to run, or are done.
  virtual void begin_calls() {}
  /// Throws InvalidArgument that names the first rank of another process whose next call is another one.
  virtual void require_same_call(const CallTag&) {}
  virtual void end_calls() {}
  /// Called periodically during a run: checks whether another process has failed.
  virtual void watch() {}
  /// Tells the other processes that this one has failed.
  virtual void abandon(const std::string&) {}
};

/// Bytes that the busiest link carries in one direction with a bandwidth-optimal algorithm. For alltoall: on
/// this rank's link.
double wire_bytes(const Collective& step, int index, int ranks, const View& send, const View& recv);

/// Why a rank's own slices do not fit the collective, or an empty string.
std::string misfit(const Collective& step, int ranks, const View& send, const View& recv);

/// Index of a rank in a communicator, or -1.
int index_in(const Communicator& communicator, int rank);

}  // namespace shingle::host
