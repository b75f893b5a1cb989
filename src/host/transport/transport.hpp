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

  /// Returns when the rank's part is done and its slices may be used again. Throws Timeout with who is
  /// missing, InvalidArgument where ranks disagree on what they do, Stopped.
  virtual void collective(const Caller& caller, const Collective& step, const View& send,
                          const View& recv) = 0;
  virtual void exchange(const Caller& caller, const Exchange& step, std::span<const View> sends,
                        std::span<const View> receives) = 0;

  /// Ranks that have not come to the rendezvous at which `rank` waits in a communicator, as far as is known
  /// here.
  virtual std::vector<int> missing(std::int32_t communicator, int rank) = 0;

  /// All processes are about to run; and have run: completes the report with those of the others.
  virtual void begin_run() {}
  virtual void end_run(RunReport&) {}
  /// Called now and then during a run: has another process failed?
  virtual void watch() {}
  /// This process has failed: lets the others know.
  virtual void abandon(const std::string&) {}
};

/// Bytes that the busiest link carries in one direction: what a bandwidth-optimal algorithm needs. For
/// alltoall, of this rank.
double wire_bytes(const Collective& step, int index, int ranks, const View& send, const View& recv);

/// Why a rank's own slices do not fit the collective, or an empty string.
std::string misfit(const Collective& step, int ranks, const View& send, const View& recv);

/// Index of a rank in a communicator, or -1.
int index_in(const Communicator& communicator, int rank);

}  // namespace shingle::host
