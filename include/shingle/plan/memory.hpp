// The memory of a plan: buffers, slices of them, and counters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/plan/problem.hpp"

namespace shingle {

/// What a buffer is to the user. The user binds every role except `internal`; the backend allocates that one.
enum class Role : std::uint8_t {
  a,
  b,
  bias,
  residual,
  norm_weight,
  keys,
  values,
  down,
  topk_weights,
  payload,
  grad,      ///< attention-backward: the gradient of the attention's result
  attended,  ///< attention-backward: the attention's result
  lse,       ///< attention-backward: its log-sum-exp, f32
  topk_ids,  ///< Experts::capacity: the experts of each token, i32
  out,       ///< attention-backward: the gradient of the queries
  sum,
  keys_grad,    ///< attention-backward: the gradient of the keys
  values_grad,  ///< attention-backward: the gradient of the values
  out_lse,      ///< allgather+attention with Attention::returns_lse: the log-sum-exp of the result, f32
  dropped,      ///< Experts::capacity: number of choices without a slot, and of ids that are no expert, i32
  counts,       ///< grouped products without sums, with a capacity: rows of each expert from each rank, i32
  internal
};
std::string_view name(Role role);
constexpr bool is_input(Role role) {
  return role < Role::out;
}
constexpr bool is_output(Role role) {
  return role >= Role::out && role < Role::internal;
}

/// Copies of a flagged buffer, which successive epochs take in turn: one to store to, one that peers may
/// still read, one that is cleared.
inline constexpr std::int32_t flagged_copies = 3;
/// Bytes of a plan's flagged buffers on a rank, in one copy: a context has room for them.
inline constexpr std::int64_t most_flagged_bytes = 8 << 20;

/// A row-major matrix in every rank's memory. Ranks may hold different numbers of rows, or none.
struct Buffer {
  std::string name;
  Role role = Role::internal;
  DType dtype = DType::f32;
  std::vector<std::int64_t> rows;  ///< by planned rank
  std::int64_t cols = 0;
  /// Copies that successive epochs take in turn: 1 or 2; user buffers: 1; flagged: flagged_copies.
  std::int32_t depth = 1;
  /// True: elements tell by themselves that they have arrived, in every 32-bit word. Their rank clears the
  /// copy of an epoch in the epoch behind it. So a peer may store before the rank has begun the epoch, and
  /// other calls of a context leave the buffer alone.
  bool flagged = false;

  std::int64_t bytes(int rank) const {
    return rows[static_cast<std::size_t>(rank)] * cols * static_cast<std::int64_t>(size_bytes(dtype)) * depth;
  }
  bool operator==(const Buffer&) const = default;
};

/// A rectangle of a buffer in one rank's memory.
struct Slice {
  std::int32_t buffer = -1;  ///< index into Plan::buffers
  std::int32_t rank = 0;     ///< the rank whose memory holds it
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t col = 0;
  std::int64_t cols = 0;

  bool operator==(const Slice&) const = default;
};

/// `add`: the count grows by the values that steps add. `set`: one writer sets the count to base + value;
/// copy engines need it, as they cannot add.
enum class CounterKind : std::uint8_t { add, set };

/// A table of 32-bit counts in every rank's memory. Counts only grow and are never reset; any rank may await
/// `>= target`. In epoch e a target t means e · growth + t.
struct Counter {
  std::string name;
  CounterKind kind = CounterKind::add;
  /// growth[planned rank][entry]: how much the entry grows in one epoch.
  std::vector<std::vector<std::uint32_t>> growth;
  /// True: entry p counts the epochs that rank p has begun. A peer may add while the rank that holds the
  /// count is still in the epoch before. In a context all plans share these counts; every other count is then
  /// zero between two calls of the rank that holds it.
  bool of_begins = false;
  /// True: counts tiles that arrive in flagged buffers, and words that ranks send each other with them. The
  /// data tell it, so an add orders only the tile that is stored with it. A peer may add while the rank that
  /// holds the count is still in the epoch before, in a context too.
  bool of_arrivals = false;

  bool operator==(const Counter&) const = default;
};

/// One count.
struct CounterRef {
  std::int32_t counter = -1;  ///< index into Plan::counters
  std::int32_t rank = 0;      ///< the rank whose memory holds it
  std::int32_t entry = 0;

  bool operator==(const CounterRef&) const = default;
};

}  // namespace shingle
