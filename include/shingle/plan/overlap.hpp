// Overlap: computations and collectives that run beside each other, as data. It models a training step's
// streams: one for computations in order, one for collectives in order, with dependencies between them.
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
  /// A product on every rank. A computation that is no product is modelled as one with as many multiply-adds.
  struct Computation {
    std::string name;
    std::int64_t m = 0;
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::vector<std::int32_t> after{};  ///< indices of collectives that it awaits

    bool operator==(const Computation&) const = default;
  };
  struct Collective {
    std::string name;
    CollectiveKind kind = CollectiveKind::allreduce;
    std::int64_t bytes = 0;             ///< bytes of the whole matrix, as in Sample; planned in whole rows
    std::vector<std::int32_t> after{};  ///< indices of computations that it awaits

    bool operator==(const Collective&) const = default;
  };
  /// One item: its list and its index there.
  struct Item {
    bool communicates = false;
    std::int32_t index = 0;
  };

  std::vector<Computation> computations;
  std::vector<Collective> collectives;

  /// Throws InvalidArgument that names the item. Reasons: a list that is empty or too long, a size out of
  /// range, an index of no item, items that wait for each other.
  void validate() const;
  /// All items in an order in which they could run one by one. Collectives come as early as their
  /// dependencies allow. Throws InvalidArgument if items wait for each other.
  std::vector<Item> order() const;

  bool operator==(const Overlap&) const = default;
};

/// Layout of an overlap's problem: row ranges of its items in the output and in `payload`.
struct OverlapRows {
  struct Result {
    std::int64_t first = 0;  ///< row of the output
    std::int64_t rows = 0;
  };
  std::vector<Result> computations, collectives;
  std::vector<std::int64_t> sent;  ///< by collective: it sends rows [0, sent) of a rank's payload
  std::int64_t out = 0;            ///< rows of the output: all results, stacked
  std::int64_t payload = 0;
};
OverlapRows rows_of(const Problem& problem);

}  // namespace shingle
