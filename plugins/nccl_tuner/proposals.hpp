// Agreement in shared memory, where no rank ever waits.
//
// Whoever is the last of all to acknowledge a proposal turns `pending` into `committed`; whoever comes to
// call E first while it is still pending turns it into `aborted`. That is one atomic word, and the first to
// change it decides for all: no rank can have passed E without having acknowledged where it is committed, and
// what is aborted holds for none. A rank that reads the word at E is done with the proposal (`resolved`); the
// leader makes another only when all are. So a rank that dies, or leaves, freezes what holds.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "agreement.hpp"

namespace shingle::nccl_tuner {

/// Lies in shared memory, zeros at first. All but the atomics are written while no rank reads them.
struct Proposal {
  std::atomic<std::uint64_t> state{0};  ///< number of the proposal, times 4, plus its State
  std::atomic<std::uint32_t> acknowledged{0}, resolved{0};
  std::uint64_t seen_call = 0, seen_hash = 0;  ///< what calls have been made until when
  std::uint64_t effective_call = 0;            ///< E
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
  std::uint64_t done_ = 0;          // the last proposal that this rank is done with
  std::uint64_t acknowledged_ = 0;  // the last that it acknowledged
  bool committed_ = false;
  std::array<Change, most_changes> taken_{};
};

}  // namespace shingle::nccl_tuner
