// Memory of a context on all ranks: staging, counts, and the words by which ranks tell each other of calls.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cuda/kernels/sync.hpp"
#include "cuda/peer/mapping.hpp"
#include "cuda/raii/memory.hpp"

namespace shingle::cuda {

class CudaWorld;

class ArenaMemory {
 public:
  /// Counts of a plan on one rank, at most.
  static constexpr std::size_t most_counts = std::size_t{64} << 10;

  /// Addresses of a rank's memory, as this process can use them.
  struct Place {
    char* staging = nullptr;
    std::uint32_t* counts = nullptr;  ///< most_counts words, zero between calls
    std::uint32_t* begins = nullptr;  ///< by rank: number of calls that the rank has begun
    Call* calls = nullptr;            ///< by rank: its last calls (calls_kept)
  };

  /// Collective over the processes. `first_call` is the number of the first call. Throws CudaError, and
  /// anything that Mappings::exchange throws.
  ArenaMemory(CudaWorld& world, std::int64_t bytes, std::uint32_t first_call);
  ~ArenaMemory();
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  std::int64_t bytes() const { return bytes_; }
  /// Null if the rank's memory is out of reach.
  const Place* place(int rank) const {
    const auto& at = places_[static_cast<std::size_t>(rank)];
    return at ? &*at : nullptr;
  }
  /// For the kernels of a local rank.
  const CallWords& words(std::size_t index) const { return local_[index].words; }
  /// Fills the staging memory of the local ranks with NaN.
  void poison() const;

 private:
  struct Local {
    int device = 0;
    DeviceMemory staging, shared;  // shared: all words that peers write
    DeviceMemory own;              // epoch and busy words, then the pointers of CallWords
    CallWords words{};
  };
  Place placed(char* staging, char* shared) const;
  void set_words(Local& local, int rank, std::uint32_t first_call);

  CudaWorld& world_;
  std::int64_t bytes_;
  std::vector<Local> local_;                  // by index of the local rank
  std::vector<std::optional<Place>> places_;  // by rank
  std::optional<std::uint64_t> number_;       // of the mapped memory (Retired::number)
  Mappings mappings_;
};

}  // namespace shingle::cuda
