// Workload: computations and collectives that overlap, as data. It models a training step's streams: one for
// computations in order, one for collectives in order, with dependencies between them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shingle/base/computation_kind.hpp"
#include "shingle/base/dtype.hpp"
#include "shingle/plan/collective_kind.hpp"

namespace shingle {

/// Concurrent computations and collectives (Lagom).
///
/// Products multiply the first rows and columns of one A, m()×k(), with those of one B, b_rows()×n(). Passes
/// copy, and collectives move, the first rows of a `payload` of n() columns. The output has n() columns and
/// stacks all results, computations first; each starts at column 0: see rows_of().
struct Workload {
  /// A computation on every rank. An attention is run as a product with as many multiply-adds, but priced as
  /// a causal attention: m are its queries, n the columns of all heads, and k the keys of a sequence. A pass
  /// reads and writes m·n elements; its k is 1.
  struct Computation {
    std::string name;
    std::int64_t m = 0;
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::vector<std::int32_t> after{};  ///< indices of collectives that it awaits
    ComputationKind kind = ComputationKind::product;
    /// Rows of each weight of a grouped product, in order; their sum is m. Weight w is rows [w·k, (w + 1)·k)
    /// of B. Empty: one weight.
    std::vector<std::int64_t> groups{};

    /// Number of weights that B stacks.
    std::int64_t weights() const { return groups.empty() ? 1 : static_cast<std::int64_t>(groups.size()); }
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

  int world = 1;
  DType dtype = DType::f32;  ///< of all matrices; products accumulate in fp32
  std::vector<Computation> computations{};
  std::vector<Collective> collectives{};

  /// The largest sizes of the computations, each by itself; 0 without computations.
  std::int64_t m() const;
  std::int64_t n() const;
  std::int64_t k() const;
  /// Rows of B: those of all weights of the computation that has most.
  std::int64_t b_rows() const;

  /// Throws InvalidArgument that names the item. Reasons: a world out of range, a list that is empty or too
  /// long, a size out of range, groups that do not add up, an index of no item, items that wait for each
  /// other.
  void validate() const;
  /// All items in an order in which they could run one by one. Collectives come as early as their
  /// dependencies allow. Throws InvalidArgument if items wait for each other.
  std::vector<Item> order() const;

  bool operator==(const Workload&) const = default;
};

/// Layout of a workload: row ranges of its items in the output and in `payload`.
struct WorkloadRows {
  struct Result {
    std::int64_t first = 0;  ///< row of the output
    std::int64_t rows = 0;
  };
  std::vector<Result> computations, collectives;
  std::vector<std::int64_t> sent;  ///< by collective: it sends rows [0, sent) of a rank's payload
  std::int64_t out = 0;            ///< rows of the output: all results, stacked
  std::int64_t payload = 0;
};
WorkloadRows rows_of(const Workload& workload);

/// One line: "overlap of 1 computation and 2 collectives, bf16, 4 ranks".
std::string describe(const Workload& workload);

}  // namespace shingle
