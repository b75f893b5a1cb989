// How the ranks of a communicator change their choices at the same call, or not at all.
//
// Ranks make the same calls in the same order, but not at the same time. The leader proposes changes from a
// call E on that is some way ahead. A rank that sees the proposal before its own call E, and has made the
// same calls until then, acknowledges it. Only what all have acknowledged in time is committed.
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

  /// At each call, after it was pushed to the history: what holds from this call on. Empty: nothing new.
  virtual std::span<const Change> poll(const CallHistory& calls) = 0;

  /// Why nothing will be agreed on any more, so that what holds stays; empty: all is well.
  virtual std::string_view trouble() const { return {}; }

  // Of the leader:
  /// Whether all ranks are done with the last proposal.
  virtual bool free() const = 0;
  /// Where free(): changes to take effect `ahead` calls after the current one.
  virtual void propose(std::span<const Change> changes, const CallHistory& calls, std::uint64_t ahead) = 0;
  /// Whether this rank has a proposal before it.
  virtual bool is_open() const = 0;
  /// Of the last proposal that this rank is done with.
  virtual bool was_committed() const = 0;
};

}  // namespace shingle::nccl_tuner
