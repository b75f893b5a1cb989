// Addresses of a plan's buffers and counters: of the local ranks, and of ranks in other processes whose
// memory is mapped here.
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
#include "shingle/backend/backend.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::cuda {

class CudaWorld;

class Memory {
 public:
  /// Allocates the internal buffers and the counters (zero) of the local ranks. If ranks of different
  /// processes access each other's memory, the constructor also maps the memory of the others, and is
  /// collective. Throws CudaError.
  Memory(const Plan& plan, CudaWorld& world);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

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

  /// First byte of a buffer in an epoch of this parity. Throws Unsupported if the rank's memory is neither
  /// local nor mapped, InvalidArgument if the buffer is not bound.
  char* buffer(std::int32_t buffer, int rank, int parity) const;
  /// First byte of a slice.
  char* at(const Slice& slice, int parity) const;
  /// Distance in bytes between two rows of a buffer.
  std::int64_t row_bytes(std::int32_t buffer) const;

  std::uint32_t* counter(const CounterRef& ref) const;
  std::uint32_t growth(const CounterRef& ref) const;

  /// Text for a counter's address, with the ranks that add to it: "counter 'computed'[3] of rank 0, to which
  /// rank 1 adds".
  std::string describe(const std::uint32_t* counter) const;

  std::int64_t internal_bytes(int rank) const;
  /// Fills internal buffers with NaN.
  void poison();

 private:
  struct Rank {
    bool local = false;
    int device = 0;
    DeviceMemory internal, counts;                // of a local rank
    std::map<std::int32_t, char*> buffers;        // address used, by index of the buffer; absent: not bound
    std::map<std::int32_t, MatrixMemory> bound;   // the user's memory, by index of the buffer
    std::map<std::int32_t, DeviceMemory> copies;  // internal copies of the user's memory
    std::uint32_t* first = nullptr;               // first counter
    std::vector<std::size_t> first_count;         // by counter: index of its first entry; then the total
  };
  void allocate(const LocalRank& at, std::size_t unit);
  void place(int number, char* internal, char* counts);
  void map_internal();
  const Rank& at_hand(int rank) const;

  const Plan& plan_;
  CudaWorld& world_;
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
