// Content of memory, in terms of the problem.
#pragma once

#include <cstdint>
#include <string>

namespace shingle {

/// Content of the elements of a rectangle, in terms of the problem.
struct Content {
  enum class Of : std::uint8_t {
    nothing,
    a,
    b,
    bias,
    residual,
    norm_weight,
    c,
    keys,
    values,
    attended,
    partial,  ///< attention to some of the keys that a query sees
    lse,      ///< log-sum-exp of either: a column for each head
    down,
    hidden,
    topk_weights,
    payload,
    tokens,    ///< A that the device routes to slots; `a` is then the rows of slots
    topk_ids,  ///< experts of tokens: a column for each choice
    row_of,    ///< by slot: its token
    slot_of,   ///< slots of tokens: a column for each choice
    counts,    ///< slots that have a token: a row for each rank that they go to, a column for its experts
    dropped,   ///< number of choices without a slot
    row_by_expert_of,   ///< by merged slot: its row by expert
    slot_by_expert_of,  ///< by row by expert: its merged slot
    grad,               ///< of the result of an attention
    q_grad,             ///< part of the gradient of Q by some keys
    keys_grad,          ///< part of the gradient of K by some queries
    values_grad         ///< part of the gradient of V by some queries
  };
  Of of = Of::nothing;
  std::uint8_t done = 0;  ///< c, hidden: bits of `Done`
  std::int32_t epoch = 0;
  std::int64_t row = 0;  ///< row in the problem's matrix = row in the buffer + this
  std::int64_t col = 0;
  std::uint64_t ranks =
      0;  ///< c: ranks with products in the sum; a, b: ranks that own the operand; 0: no rank in particular
  std::int32_t depth = 0;   ///< product of a workload: the K that it sums over
  std::int32_t value = 0;   ///< expression that computes it: ValueTable::Id
  std::int32_t weight = 0;  ///< c of a grouped product: which of its rank's weights
  /// Rows, or what leads to them, are those of merged slots (MergeSlots). They count from slot 0.
  bool merged = false;

  bool operator==(const Content&) const = default;
};

enum Done : std::uint8_t { epilogue_done = 1, residual_done = 2, norm_done = 4, combined_done = 8 };

std::string text_of(const Content& c);

/// True for parts of the gradients of Q, K and V.
inline bool is_gradient(Content::Of of) {
  return of >= Content::Of::q_grad;
}

/// True if two contents are the same elements, even if they were computed in different ways.
inline bool same_elements(const Content& a, Content b) {
  b.value = a.value;
  return a == b;
}

/// True if two contents are parts of one sum: equal places, of disjoint sets of ranks, both or neither sums
/// of a token's choices. Content of no rank in particular is complete, for example the rows of an all-gather.
/// Nothing can be added to it.
bool addable(const Content& a, const Content& b);

}  // namespace shingle
