// Where a plan's buffers and counters are: in the memory of the local ranks' devices, and in that of other
// processes' ranks, as this process reaches it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cuda/peer/generations.hpp"
#include "cuda/peer/mapping.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/runtime/local_rank.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::cuda {

class CudaWorld;

class Memory {
 public:
  /// Allocates the internal buffers and the counters (zero) of the local ranks. Where the plan has ranks of
  /// several processes reach each other's, maps those of the others: collective then. Throws CudaError.
  Memory(const Plan& plan, CudaWorld& world);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Maps the user buffers of other processes that the plan reaches, where one has been bound anew, and lets
  /// go of those that were mapped: `finish` waits until no epoch uses them. Those that graphs of the user's
  /// `replay` stay mapped. Collective over the processes. Throws as Mappings::exchange.
  void map_bound(const std::function<void()>& finish, bool replayed, double timeout_us);

  /// Uses `memory` as a user buffer of a local rank. Where peers access that buffer and do not reach this
  /// memory, they access a copy of our own, which each epoch brings and takes (staged()). Throws
  /// InvalidArgument where there is no such buffer or rank, CudaError where there is no room for the copy.
  void bind(int rank, Role role, void* memory);
  /// Counts the binds, so that whoever keeps addresses knows when they are stale.
  std::uint64_t version() const { return version_; }

  /// Bytes that an epoch moves between the user's memory and our copies of it: of inputs before its first
  /// step, of outputs behind its last.
  struct Staged {
    struct Move {
      void* to = nullptr;
      const void* from = nullptr;
      std::size_t bytes = 0;
    };
    std::vector<Move> inputs, outputs;
  };
  Staged staged(int rank) const;
  /// Whether any rank of the world has such copies. Collective over the processes.
  bool copies_whole();

  /// The first byte of a buffer in an epoch of this parity. Throws Unsupported where the rank is not local,
  /// InvalidArgument where the user has not bound it.
  char* buffer(std::int32_t buffer, int rank, int parity) const;
  /// The first byte of a slice.
  char* at(const Slice& slice, int parity) const;
  /// Bytes from one row of a buffer to the next.
  std::int64_t row_bytes(std::int32_t buffer) const;

  std::uint32_t* counter(const CounterRef& ref) const;
  std::uint32_t growth(const CounterRef& ref) const;

  /// A counter by its address, and the ranks that add to it: "counter 'computed'[3] of rank 0, to which rank
  /// 1 adds".
  std::string describe(const std::uint32_t* counter) const;

  std::int64_t internal_bytes(int rank) const;
  /// Internal buffers become NaN.
  void poison();

 private:
  struct Rank {
    bool local = false;
    int device = 0;
    DeviceMemory internal, counts;                // of a local rank
    std::map<std::int32_t, char*> buffers;        // by index; absent: not bound
    std::map<std::int32_t, char*> bound;          // the user's of these, where they are
    std::map<std::int32_t, DeviceMemory> copies;  // of the user's memory that peers do not reach
    std::uint32_t* first = nullptr;               // of its counts
    std::vector<std::size_t> first_count;         // by counter, and the end
  };
  void allocate(const LocalRank& at, std::size_t unit);
  void place(int number, char* internal, char* counts);
  void map_internal();
  const Rank& at_hand(int rank) const;

  const Plan& plan_;
  CudaWorld& world_;
  std::map<int, Rank> ranks_;
  std::uint64_t version_ = 0;
  bool mapped_ = false;                // other processes' memory is among it
  std::uint64_t number_ = 0;           // of the memory that is mapped
  std::vector<std::int32_t> reached_;  // user buffers that the plan reaches on other ranks
  std::uint64_t exchanged_ = 0;        // version of the last exchange of these
  Mappings internal_mappings_;
  Generations<Mappings> bound_mappings_;
};

}  // namespace shingle::cuda
