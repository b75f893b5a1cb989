// NCCL communicators of a world: made when first asked for, kept, polled, and aborted when the world fails.
#pragma once

#include <nccl.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuda/runtime/local_rank.hpp"

namespace shingle::cuda {

/// Which communicator.
struct CommKey {
  std::vector<std::int32_t> ranks;  ///< of the world, in the communicator's order
  int max_ctas = 0;                 ///< thread blocks that an operation may take; 0: as NCCL likes
  int copy = 0;  ///< tells those with the same members apart: operations of one communicator never overlap
  auto operator<=>(const CommKey&) const = default;
};

/// One communicator, as each local rank has it.
class Communicator {
 public:
  explicit Communicator(std::vector<ncclComm_t> by_rank) : by_rank_(std::move(by_rank)) {}
  /// Null where the rank is not local or no member.
  ncclComm_t of(int rank) const { return by_rank_[static_cast<std::size_t>(rank)]; }
  ncclComm_t& at(int rank) { return by_rank_[static_cast<std::size_t>(rank)]; }
  const std::vector<ncclComm_t>& by_rank() const { return by_rank_; }

 private:
  std::vector<ncclComm_t> by_rank_;
};

/// Not for several threads at once, but for check() and abort().
class Communicators {
 public:
  /// Makes the parent of all. Collective. Throws NcclError, Timeout.
  Communicators(const std::vector<LocalRank>& local, int size, const ncclUniqueId& id, double timeout_us);
  /// Adopts the parent, by local rank; it stays the caller's.
  Communicators(const std::vector<LocalRank>& local, int size, const std::vector<ncclComm_t>& parent,
                double timeout_us);
  /// Graphs that were captured from operations of these have to be gone.
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  /// Collective over all ranks of the world, members or not, where it is new; never during a capture. Its
  /// operations are enqueued before they return; the first of each kind also connects the ranks, so run each
  /// once before a capture.
  const Communicator& get(const CommKey& key);

  /// Throws NcclError where one of them has failed by itself: a rank is gone, the network broke.
  void check() const;
  /// Ends all operations; false where that took longer than `timeout_us`. No other call may follow, and no
  /// thread may be in an operation of theirs other than on the device.
  bool abort(double timeout_us) noexcept;

 private:
  enum class How { destroy, abort };
  bool retire(How how, double timeout_us) noexcept;

  const std::vector<LocalRank>& local_;
  int size_;
  double timeout_us_;
  bool owns_parent_;
  Communicator parent_;
  std::map<CommKey, Communicator> made_;
};

/// An id for a new clique. Throws NcclError.
ncclUniqueId new_unique_id();
/// "2.28.9"
std::string nccl_version();
/// Throws NcclError where a call, named so, did not succeed; ncclInProgress is none of its business.
void check(ncclResult_t result, const char* call);

}  // namespace shingle::cuda
