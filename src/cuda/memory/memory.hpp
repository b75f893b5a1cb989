// Addresses of a plan's buffers and counters: of the local ranks, and of ranks in other processes whose
// memory is mapped here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/peer/generations.hpp"
#include "cuda/peer/mapping.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/runtime/local_rank.hpp"
#include "outputs.hpp"
#include "shingle/backend/backend.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::cuda {

class ArenaMemory;
class CudaWorld;
class FlaggedMemory;

/// An address in a rank's memory. Of a matrix that comes with each call, it is only a distance: the call's
/// shift completes it.
struct Address {
  char* at = nullptr;
  std::uint8_t matrix = static_cast<std::uint8_t>(Role::internal);  ///< index of Shifts

  char* in(const Shifts& shifts) const { return at == nullptr ? nullptr : at + shifts.of[matrix]; }
  Address operator+(std::int64_t bytes) const { return {at + bytes, matrix}; }
  bool operator==(const Address&) const = default;
};

class Memory {
 public:
  /// Allocates the internal buffers and the counters (zero) of the local ranks. If ranks of different
  /// processes access each other's memory, the constructor also maps the memory of the others, and is
  /// collective. Throws CudaError.
  Memory(const Plan& plan, CudaWorld& world);
  /// Internal buffers and counters lie in the arena, and matrices come with each call. Local. Throws
  /// InvalidArgument if the arena is too small, Unsupported if ranks access each other's matrices and the
  /// arena has no heap.
  Memory(std::shared_ptr<const Plan> plan, CudaWorld& world, const ArenaMemory& arena);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  const Plan& plan() const { return plan_; }

  /// Maps the user buffers of other processes that the plan accesses, if any process has bound one since the
  /// last call. Collective over the processes.
  ///
  /// Calls `finish` first, which waits until no epoch uses the former mappings, and then closes them. If
  /// `replayed`, graphs of the user may replay them, and they stay open. Throws as Mappings::exchange.
  void map_bound(const std::function<void()>& finish, bool replayed, double timeout_us);

  /// Uses `memory` as a user buffer of a local rank. If its rows are not dense, or if peers access that
  /// buffer but cannot access this memory, the plan uses an internal copy, and each epoch copies it in or out
  /// (staged()). Throws InvalidArgument if there is no such buffer or rank, CudaError if the copy cannot be
  /// allocated.
  void bind(int rank, Role role, const MatrixMemory& memory);
  /// Number of binds, which tells if addresses are stale.
  std::uint64_t version() const { return version_; }

  /// Copies between the user's memory and its internal copies: inputs before the first step of an epoch,
  /// outputs after its last.
  struct Staged {
    struct Move {
      void* to = nullptr;
      std::size_t to_pitch = 0;  ///< bytes from a row to the next
      const void* from = nullptr;
      std::size_t from_pitch = 0;
      std::size_t row_bytes = 0;
      std::size_t rows = 0;
    };
    std::vector<Move> inputs, outputs;
  };
  Staged staged(int rank) const;
  /// The memory that an epoch of a rank writes as its outputs, with its bytes.
  Outputs written(int rank) const;

  /// First byte of a buffer in an epoch of this parity. Throws Unsupported if the rank's memory is neither
  /// local nor mapped, InvalidArgument if the buffer is not bound.
  Address buffer(std::int32_t buffer, int rank, int parity) const;
  /// First byte of a slice.
  Address at(const Slice& slice, int parity) const;
  /// True if the matrices come with each call.
  bool by_call() const { return arena_ != nullptr; }
  /// The user buffers that ranks other than the owner access. Of calls, these lie in the heap.
  const std::vector<std::int32_t>& reached() const { return reached_; }
  /// The shift of a matrix that comes with a call: its distance from where tables and commands have it. Of a
  /// matrix in the heap, its offset.
  std::int64_t shift(int rank, std::int32_t buffer, const void* matrix) const;
  /// Distance in bytes between two rows of a buffer.
  std::int64_t row_bytes(std::int32_t buffer) const;

  /// Of the plan, or of the arena. Only for plans with flagged buffers.
  const FlaggedMemory& flagged() const;

  std::uint32_t* counter(const CounterRef& ref) const;
  /// How much the count grows in each epoch: not at all in an arena, where counts start from zero in every
  /// call, unless it counts begins.
  std::uint32_t growth(const CounterRef& ref) const;
  /// True if the begin of a call notifies this count (launch_begin_call).
  bool counts_begins(const CounterRef& ref) const;
  /// Number of a rank's counts in the arena.
  std::size_t counts(int rank) const { return at_hand(rank).first_count.back(); }

  /// Text for a counter's address, with the ranks that add to it: "counter 'computed'[3] of rank 0, to which
  /// rank 1 adds". Empty if it is none of the plan's.
  std::string describe(const std::uint32_t* counter) const;

  std::int64_t internal_bytes(int rank) const;
  /// Fills internal buffers with NaN.
  void poison();

 private:
  /// The user's memory, and its allocation: another one may have the same address later.
  struct Bound {
    MatrixMemory memory{};
    std::uint64_t allocation = 0;
    bool operator==(const Bound&) const = default;
  };
  struct Rank {
    bool local = false;
    int device = 0;
    DeviceMemory internal, counts;                // of a local rank
    std::map<std::int32_t, char*> buffers;        // address used, by index of the buffer; absent: not bound
    std::map<std::int32_t, Bound> bound;          // by index of the buffer
    std::map<std::int32_t, DeviceMemory> copies;  // internal copies of the user's memory
    std::uint32_t* first = nullptr;               // first counter
    std::vector<std::size_t> first_count;         // by counter: index of its first entry; then the total
    std::uint32_t* begins = nullptr;              // in an arena: begins of each rank
  };
  void allocate(const LocalRank& at, bool shared);
  void place(int number, char* internal, char* counts);
  void count_entries(int number);
  void map_internal();
  const Rank& at_hand(int rank) const;

  const std::shared_ptr<const Plan> own_plan_;  // null: the plan outlives this
  const Plan& plan_;
  CudaWorld& world_;
  const ArenaMemory* arena_ = nullptr;
  std::unique_ptr<const FlaggedMemory> flagged_;  // of a plan that has an arena: null
  std::map<int, Rank> ranks_;
  std::uint64_t version_ = 0;
  bool mapped_ = false;                // other processes' memory is mapped
  std::uint64_t number_ = 0;           // of the mapped memory (Retired::number)
  std::vector<std::int32_t> reached_;  // user buffers that the plan accesses on other ranks
  std::uint64_t exchanged_ = 0;        // version_ at the last exchange of these
  Mappings internal_mappings_;
  Generations<Mappings> bound_mappings_;
};

}  // namespace shingle::cuda
