// Overlap: computations and collectives that run beside each other, as data. What a training step leaves to
// its streams: computations in order on one, collectives in order on another, and who waits for whom.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shingle {

struct Problem;

enum class CollectiveKind : std::uint8_t { allreduce, reducescatter, allgather, alltoall };
std::string_view name(CollectiveKind kind);

struct Overlap {
  /// A product of every rank; what is no product counts as one with as many multiply-adds.
  struct Computation {
    std::string name;
    std::int64_t m = 0;
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::vector<std::int32_t> after{};  ///< collectives that it awaits

    bool operator==(const Computation&) const = default;
  };
  struct Collective {
    std::string name;
    CollectiveKind kind = CollectiveKind::allreduce;
    std::int64_t bytes = 0;             ///< of the whole matrix, as Sample has it; planned in whole rows
    std::vector<std::int32_t> after{};  ///< computations that it awaits

    bool operator==(const Collective&) const = default;
  };
  /// An item, by its place in its list.
  struct Item {
    bool communicates = false;
    std::int32_t index = 0;
  };

  std::vector<Computation> computations;
  std::vector<Collective> collectives;

  /// Throws InvalidArgument that names the item: no computations or no collectives, sizes out of range, an
  /// item that there is not, or items that wait for each other.
  void validate() const;
  /// All items in an order in which they could run one by one; collectives as early as they may.
  std::vector<Item> order() const;

  bool operator==(const Overlap&) const = default;
};

/// Where things are in the matrices of an overlap's problem, by rows.
struct OverlapRows {
  struct Result {
    std::int64_t first = 0;  ///< row of the output
    std::int64_t rows = 0;
  };
  std::vector<Result> computations, collectives;
  std::vector<std::int64_t> sent;  ///< by collective: the first rows of a rank's payload
  std::int64_t out = 0;            ///< rows of the output: all results, one below the other
  std::int64_t payload = 0;
};
OverlapRows rows_of(const Problem& problem);

}  // namespace shingle
