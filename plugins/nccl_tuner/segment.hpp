// Memory that the ranks of one communicator on one host share, and the moment in which they find out whether
// all of them are there and of one mind.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "choice.hpp"

namespace shingle::nccl_tuner {

inline constexpr std::size_t most_changes = 16;

/// A change of choices that the leader proposes (proposals.hpp). All but the atomics are written while no
/// rank reads them.
struct Proposal {
  std::atomic<std::uint64_t> state{0};  ///< number of the proposal, times 4, plus its State
  std::atomic<std::uint32_t> acknowledged{0}, resolved{0};
  std::uint64_t seen_call = 0, seen_hash = 0;  ///< what calls have been made until when
  std::uint64_t effective_call = 0;            ///< from when on it holds
  std::uint32_t changes = 0;
  std::array<Change, most_changes> change{};
};

/// What a rank brings along; choices count only where all have the same.
struct Credentials {
  std::uint64_t table = 0;         ///< hash of the choices it knows; 0: none
  std::uint64_t communicator = 0;  ///< how manieth of its process
  std::uint64_t learn = 0;         ///< whether it is to tune
};

/// Fresh memory is all zeros; the file is as large as this.
struct Shared {
  static constexpr std::uint32_t layout = 0x53480001;  // changes with this struct
  static constexpr std::uint32_t most_ranks = 1024;
  enum Verdict : std::uint32_t { forming, complete, abandoned };
  enum Difference : std::uint32_t { tables = 1, communicators = 2, modes = 4 };

  // Written under the file's lock.
  std::uint32_t version = 0;
  std::uint32_t ranks = 0, joined = 0;
  std::uint32_t differences = 0;
  std::int64_t created_ns = 0;
  Credentials first;  ///< whoever came first
  std::array<std::int32_t, most_ranks> process{};

  std::atomic<std::uint32_t> verdict{forming};
  Proposal proposal;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

class Segment {
 public:
  /// Joins the ranks of a communicator. The name is gone once all have joined, so that nothing is left
  /// behind. Throws Error with the reason where there is no such memory.
  Segment(std::uint64_t communicator_id, std::uint32_t ranks, const Credentials& credentials,
          std::chrono::microseconds deadline);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  /// Waits until all have joined, or the deadline passes for the one who came first. All ranks get the same
  /// answer: whoever is late, or finds no memory, makes it false for the others.
  bool complete();

  /// In what ranks differ: of Shared::Difference; only where complete.
  std::uint32_t differences() const { return shared_->differences; }
  std::uint32_t ranks() const { return shared_->ranks; }
  /// The first to join leads.
  bool leads() const { return place_ == 0; }
  Proposal& proposal() { return shared_->proposal; }

 private:
  bool join(const std::string& name, std::uint32_t ranks, const Credentials& credentials);

  std::string name_;
  std::chrono::microseconds deadline_;
  Shared* shared_ = nullptr;
  std::uint32_t place_ = 0;
};

}  // namespace shingle::nccl_tuner
