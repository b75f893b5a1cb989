// NCCL communicators of a world: made on first use, kept, polled for errors, aborted when the world fails.
#pragma once

#include <nccl.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuda/runtime/local_rank.hpp"
#include "shingle/base/collective_config.hpp"

namespace shingle::cuda {

/// Identifies a communicator.
struct CommKey {
  std::vector<std::int32_t> ranks;  ///< of the world, in the communicator's order
  int max_ctas = 0;                 ///< limit of CTAs for an operation; 0: NCCL decides
  /// Distinguishes communicators with the same members. Operations of one communicator never overlap.
  int copy = 0;
  /// Algorithm, protocol and chunk size of its collectives, set by Shingle's NCCL tuner plugin. {}: NCCL
  /// decides.
  CollectiveConfig settings{};
  auto operator<=>(const CommKey&) const = default;
};

/// One communicator: NCCL's handle for each local rank.
class Communicator {
 public:
  explicit Communicator(std::vector<ncclComm_t> by_rank) : by_rank_(std::move(by_rank)) {}
  /// Null if the rank is not local or not a member.
  ncclComm_t of(int rank) const { return by_rank_[static_cast<std::size_t>(rank)]; }
  ncclComm_t& at(int rank) { return by_rank_[static_cast<std::size_t>(rank)]; }
  const std::vector<ncclComm_t>& by_rank() const { return by_rank_; }

 private:
  std::vector<ncclComm_t> by_rank_;
};

/// Not thread-safe.
class Communicators {
 public:
  /// Makes the parent of all communicators. Collective. Throws NcclError, Timeout.
  Communicators(const std::vector<LocalRank>& local, int size, const ncclUniqueId& id, double timeout_us);
  /// Adopts the parent, by local rank; the caller keeps its ownership.
  Communicators(const std::vector<LocalRank>& local, int size, const std::vector<ncclComm_t>& parent,
                double timeout_us);
  /// Graphs that captured operations of these communicators must have been destroyed.
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  /// If the communicator is new, the call is collective over all ranks of the world, including ranks that are
  /// not members. Must not be called during a capture.
  ///
  /// Operations of the communicator block the host until they are enqueued. The first operation of a kind
  /// also connects the ranks, so each kind must run once before a capture.
  const Communicator& get(const CommKey& key);

  bool has(const CommKey& key) const { return made_.contains(key); }

  /// Throws NcclError if a communicator has failed by itself: a rank is gone, or the network broke.
  void check() const;
  /// Ends all operations, in the background if NCCL takes longer than `timeout_us`. No other call may follow.
  /// No host thread may be inside an operation of these communicators.
  void abort(double timeout_us) noexcept;

 private:
  enum class How { destroy, abort };
  /// False if NCCL takes longer than `timeout_us`.
  bool retire(How how, double timeout_us) noexcept;

  const std::vector<LocalRank>& local_;
  int size_;
  double timeout_us_;
  bool owns_parent_;
  Communicator parent_;
  std::map<CommKey, Communicator> made_;
};

/// An id for a new clique of ranks. Throws NcclError.
ncclUniqueId new_unique_id();
/// Version of NCCL, as in "2.28.9".
std::string nccl_version();
/// Throws NcclError if `call` failed. ncclInProgress is not a failure.
void check(ncclResult_t result, const char* call);

}  // namespace shingle::cuda
