// Agreement in shared memory, where no rank ever waits.
//
// The last rank to acknowledge a proposal turns `pending` into `committed`. The first rank to reach call E
// while it is still pending turns it into `aborted`. Both change one atomic word, so the first change decides
// for all ranks. If the word is committed, every rank acknowledged before passing E. If it is aborted, it
// holds for no rank.
//
// A rank that reads the word at E is done with the proposal (`resolved`). The leader makes another proposal
// only when all ranks are done. So if a rank dies or leaves, current choices stay.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "agreement.hpp"

namespace shingle::nccl_tuner {

/// Lies in shared memory, zero-initialised. All but the atomics are written while no rank reads them.
struct Proposal {
  std::atomic<std::uint64_t> state{0};  ///< number of the proposal, times 4, plus its State
  std::atomic<std::uint32_t> acknowledged{0}, resolved{0};
  std::uint64_t seen_call = 0, seen_hash = 0;  ///< last call that the leader has made, and the hash up to it
  std::uint64_t effective_call = 0;            ///< call E
  std::uint32_t changes = 0;
  std::array<Change, most_changes> change{};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

class Proposals final : public Agreement {
 public:
  enum State : std::uint64_t { pending, committed, aborted };

  Proposals(Proposal& shared, std::uint32_t ranks) : shared_(shared), ranks_(ranks) {}

  std::span<const Change> poll(const CallHistory& calls) override {
    const std::uint64_t number = number_of(shared_);
    if (number == done_) return {};
    return follow(number, calls);
  }
  bool free() const override {
    return number_of(shared_) == 0 || shared_.resolved.load(std::memory_order_acquire) == ranks_;
  }
  void propose(std::span<const Change> changes, const CallHistory& calls, std::uint64_t ahead) override;
  bool is_open() const override { return number_of(shared_) != done_; }
  bool was_committed() const override { return committed_; }

 private:
  static std::uint64_t number_of(const Proposal& proposal) {
    return proposal.state.load(std::memory_order_acquire) >> 2;
  }
  std::span<const Change> follow(std::uint64_t number, const CallHistory& calls);
  std::span<const Change> resolve(std::uint64_t number);

  Proposal& shared_;
  const std::uint32_t ranks_;
  std::uint64_t done_ = 0;          // last proposal that this rank is done with
  std::uint64_t acknowledged_ = 0;  // last proposal that it acknowledged
  bool committed_ = false;
  std::array<Change, most_changes> taken_{};
};

}  // namespace shingle::nccl_tuner
