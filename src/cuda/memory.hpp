// Where a plan's buffers and counters are in the memory of the local ranks' devices.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuda/local_rank.hpp"
#include "cuda/raii/memory.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::cuda {

class Memory {
 public:
  /// Allocates the internal buffers and the counters (zero) of the local ranks. Throws CudaError.
  Memory(const Plan& plan, const std::vector<LocalRank>& local);

  /// Uses `memory` as a user buffer of a local rank. Throws InvalidArgument where there is no such buffer or
  /// rank.
  void bind(int rank, Role role, void* memory);
  /// Counts the binds, so that whoever keeps addresses knows when they are stale.
  std::uint64_t version() const { return version_; }

  /// The first byte of a buffer in an epoch of this parity. Throws Unsupported where the rank is not local,
  /// InvalidArgument where the user has not bound it.
  char* buffer(std::int32_t buffer, int rank, int parity) const;
  /// The first byte of a slice.
  char* at(const Slice& slice, int parity) const;
  /// Bytes from one row of a buffer to the next.
  std::int64_t row_bytes(std::int32_t buffer) const;

  std::uint32_t* counter(const CounterRef& ref) const;
  std::uint32_t growth(const CounterRef& ref) const;

  /// A counter by its address: "'computed'[3] of rank 0".
  std::string describe(const std::uint32_t* counter) const;

  std::int64_t internal_bytes(int rank) const;
  /// Internal buffers become NaN.
  void poison();

 private:
  struct Rank {
    int device = 0;
    DeviceMemory internal;                  // all internal buffers
    std::map<std::int32_t, char*> buffers;  // by index; absent: not bound
    DeviceMemory counts;
    std::vector<std::size_t> first_count;  // by counter
  };
  const Rank& local(int rank) const;

  const Plan& plan_;
  std::map<int, Rank> ranks_;
  std::uint64_t version_ = 0;
};

}  // namespace shingle::cuda
