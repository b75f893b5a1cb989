#include "proposals.hpp"

#include <algorithm>

namespace shingle::nccl_tuner {

void Proposals::propose(std::span<const Change> changes, const CallHistory& calls, std::uint64_t ahead) {
  shared_.acknowledged.store(0, std::memory_order_relaxed);
  shared_.resolved.store(0, std::memory_order_relaxed);
  shared_.seen_call = calls.now();
  shared_.seen_hash = *calls.hash(calls.now());
  shared_.effective_call = calls.now() + ahead;
  shared_.changes = static_cast<std::uint32_t>(std::min(changes.size(), most_changes));
  std::ranges::copy(changes.first(shared_.changes), shared_.change.begin());
  shared_.state.store((number_of(shared_) + 1) << 2 | pending, std::memory_order_release);
}

std::span<const Change> Proposals::follow(std::uint64_t number, const CallHistory& calls) {
  if (acknowledged_ != number) {
    if (calls.now() < shared_.seen_call) return {};  // this rank is behind the leader
    // The hash is forgotten, the calls differ, or call E has passed: this rank never acknowledges.
    if (calls.hash(shared_.seen_call) != shared_.seen_hash || calls.now() >= shared_.effective_call)
      return resolve(number);
    acknowledged_ = number;
    if (shared_.acknowledged.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
      std::uint64_t expected = number << 2 | pending;
      shared_.state.compare_exchange_strong(expected, number << 2 | committed, std::memory_order_acq_rel);
    }
  }
  return calls.now() < shared_.effective_call ? std::span<const Change>{} : resolve(number);
}

std::span<const Change> Proposals::resolve(std::uint64_t number) {
  std::uint64_t seen = number << 2 | pending;
  if (shared_.state.compare_exchange_strong(seen, number << 2 | aborted, std::memory_order_acq_rel))
    seen = number << 2 | aborted;
  committed_ = (seen & 3) == committed;
  done_ = number;
  // Once all ranks are done, the leader may overwrite this proposal, so its changes are copied first.
  const std::size_t count = committed_ ? std::min<std::size_t>(shared_.changes, most_changes) : 0;
  std::ranges::copy(std::span(shared_.change).first(count), taken_.begin());
  shared_.resolved.fetch_add(1, std::memory_order_acq_rel);
  const auto taken = std::span(taken_).first(count);
  // Another process of the same user may have written anything. All ranks see the same bytes and reject them
  // alike.
  return std::ranges::all_of(taken, [](const Change& change) { return valid(change); })
             ? std::span<const Change>(taken)
             : std::span<const Change>();
}

}  // namespace shingle::nccl_tuner
