// How the ranks of a communicator change their choices at the same call, or not at all, without ever waiting.
//
// Ranks make the same calls in the same order, but not at the same time. The leader proposes changes from a
// call E on that is some way ahead. A rank that sees the proposal before its own call E, and has made the
// same calls, acknowledges. Whoever is the last of all to acknowledge turns `pending` into `committed`;
// whoever comes to call E first while it is still pending turns it into `aborted`. That is one atomic word,
// and the first to change it decides for all: no rank can have passed E without having acknowledged where it
// is committed, and what is aborted holds for none. A rank that reads the word at E is done with the proposal
// (`resolved`); the leader makes another only when all are. So a rank that dies, or leaves, freezes what
// holds.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "call_history.hpp"
#include "segment.hpp"

namespace shingle::nccl_tuner {

class Proposals {
 public:
  enum State : std::uint64_t { pending, committed, aborted };

  Proposals(Proposal& shared, std::uint32_t ranks) : shared_(shared), ranks_(ranks) {}

  /// At each call, after it was pushed to the history: what holds from this call on. Empty: nothing new.
  std::span<const Change> poll(const CallHistory& calls) {
    const std::uint64_t number = shared_.state.load(std::memory_order_acquire) >> 2;
    if (number == done_) return {};
    return follow(number, calls);
  }

  /// Of the leader: whether all ranks are done with the last proposal.
  bool free() const {
    return number_of(shared_) == 0 || shared_.resolved.load(std::memory_order_acquire) == ranks_;
  }
  /// Of the leader, where free(): changes to take effect `ahead` calls after the current one.
  void propose(std::span<const Change> changes, const CallHistory& calls, std::uint64_t ahead);
  /// Of the leader: of the last proposal that this rank is done with.
  bool was_committed() const { return committed_; }
  /// Whether this rank has a proposal before it.
  bool is_open() const { return number_of(shared_) != done_; }

 private:
  static std::uint64_t number_of(const Proposal& proposal) {
    return proposal.state.load(std::memory_order_acquire) >> 2;
  }
  std::span<const Change> follow(std::uint64_t number, const CallHistory& calls);
  std::span<const Change> resolve(std::uint64_t number);

  Proposal& shared_;
  const std::uint32_t ranks_;
  std::uint64_t done_ = 0;          // the last proposal that this rank is done with
  std::uint64_t acknowledged_ = 0;  // the last that it acknowledged
  bool committed_ = false;
  std::array<Change, most_changes> taken_{};
};

}  // namespace shingle::nccl_tuner
