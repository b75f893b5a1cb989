// Memory of a context on all ranks: staging, counts, and the words by which ranks tell each other of calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/kernels/sync.hpp"
#include "cuda/raii/memory.hpp"
#include "flagged.hpp"
#include "heap.hpp"
#include "shared.hpp"

namespace shingle::cuda {

class CudaWorld;
class LocalRank;

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

  /// Collective over the processes. `first_call` is the number of the first call. `heap` holds the matrices
  /// that peers may access; null: none. Throws CudaError, and anything that Mappings::exchange throws.
  ArenaMemory(CudaWorld& world, std::int64_t bytes, std::uint32_t first_call,
              std::shared_ptr<const CudaHeap> heap);
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  std::int64_t bytes() const { return bytes_; }
  const CudaHeap* heap() const { return heap_.get(); }
  /// Null if no plan can use it: too many ranks, one alone, or GPUs without access to each other's memory.
  const FlaggedMemory* flagged() const { return flagged_ ? &*flagged_ : nullptr; }
  /// Null if the rank's memory is out of reach.
  const Place* place(int rank) const {
    const auto& at = places_[static_cast<std::size_t>(rank)];
    return at ? &*at : nullptr;
  }
  /// For the kernels of a local rank.
  const CallWords& words(std::size_t index) const { return local_[index].words; }
  /// Fills the staging memory of the local ranks with NaN.
  void poison() const { staging_.fill(0xff); }  // a NaN in every dtype

 private:
  struct Local {
    DeviceMemory own;  // epoch and busy words, then the pointers of CallWords
    CallWords words{};
  };
  static std::size_t shared_bytes(std::size_t ranks);
  Place placed(int rank) const;
  void set_words(Local& local, const LocalRank& rank, std::uint32_t first_call);

  CudaWorld& world_;
  std::int64_t bytes_;
  std::shared_ptr<const CudaHeap> heap_;
  SharedMemory staging_, shared_;  // shared: all words that peers write
  std::optional<FlaggedMemory> flagged_;
  std::vector<std::optional<Place>> places_;  // by rank
  std::vector<Local> local_;                  // by index of the local rank
};

}  // namespace shingle::cuda
