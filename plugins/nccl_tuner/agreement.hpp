// How the ranks of a communicator change their choices at the same call, or not at all.
//
// Ranks make the same calls in the same order, but not at the same time. The leader proposes changes that
// hold from a later call E on. A rank acknowledges a proposal if it sees it before its own call E and has
// made the same calls so far. Only proposals that all ranks acknowledge in time are committed.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "call_history.hpp"
#include "choice.hpp"

namespace shingle::nccl_tuner {

inline constexpr std::size_t most_changes = 16;

class Agreement {
 public:
  virtual ~Agreement() = default;

  /// Called at each call, after the call was pushed to the history. Returns the choices that hold from this
  /// call on. Empty: nothing new.
  virtual std::span<const Change> poll(const CallHistory& calls) = 0;

  /// Why agreement has ended for good, so that current choices stay. Empty: it works.
  virtual std::string_view trouble() const { return {}; }

  // Leader only. True if all ranks are done with the last proposal.
  virtual bool free() const = 0;
  /// Requires free(). Proposes changes that take effect `ahead` calls after the current one.
  virtual void propose(std::span<const Change> changes, const CallHistory& calls, std::uint64_t ahead) = 0;
  /// True if this rank has an open proposal.
  virtual bool is_open() const = 0;
  /// True if the last proposal that this rank finished was committed.
  virtual bool was_committed() const = 0;
};

}  // namespace shingle::nccl_tuner
