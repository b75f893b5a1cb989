// ring of attention: rows go straight into the memory of another rank, without a message.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "planner/common/handshake.hpp"
#include "ring.hpp"

namespace shingle::planner {

/// True if rows go straight into other ranks' memory. Otherwise NCCL or MPI sends messages.
inline bool by_copies(const RingBuilder& build) {
  return by_engines(build) || by_stores(build);
}

/// The copies of all ranks into each other's memory: by copy engines of the sender, or by stores of some of
/// the sender's workers. Each copy follows the peer's begin of the epoch.
class DirectCopies {
 public:
  explicit DirectCopies(RingBuilder& build);

  /// Kind of the counters that tell of copies: engines cannot add.
  static CounterKind counts(const RingBuilder& build);
  /// Number of lanes of a rank that copy.
  std::size_t lanes() const { return lanes_.front().size(); }
  /// Begins a batch of copies to `peer`, on one of the lanes: the number counts modulo lanes(). Returns it.
  std::int32_t begin(int rank, std::int64_t number, int peer);
  void copy(int rank, std::int32_t lane, const Slice& from, const Slice& to);
  /// Another lane waits for the peer's begin, if it does not know of it yet. It may then store to the peer.
  void await_begin(int rank, std::int32_t lane, int peer);
  /// The compute lane adds to a count of `peer`.
  void notify_from_compute(int rank, std::int32_t counter, int peer, std::int64_t entry);

 private:
  RingBuilder& build_;
  Handshake handshake_;
  std::vector<std::vector<std::int32_t>> lanes_;  // by rank
  /// By rank: lanes, and the ranks that they know to have begun.
  std::vector<std::set<std::pair<std::int32_t, int>>> begun_;
};

}  // namespace shingle::planner
