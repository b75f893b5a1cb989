// Cuts an attention of consecutive queries to consecutive keys into what one call of cuDNN computes.
#pragma once

#include <vector>

#include "shingle/plan/problem.hpp"

namespace shingle {

/// Queries that see the same keys, or a triangle at the end of them. Each query sees at least one key.
struct AttentionPart {
  std::int64_t row = 0;                ///< zero-based, of the first query
  std::int64_t key = 0;                ///< zero-based, of the first key
  std::int64_t queries = 0, keys = 0;  ///< of each sequence
  bool causal = false;                 ///< the last query sees all keys, the one before all but the last, …
  std::int64_t sequences = 1;          ///< of this shape, one behind another

  bool operator==(const AttentionPart&) const = default;
};

/// The parts of an attention whose queries each see at least one of the keys. Whole sequences of one length
/// are one part. In a causal attention the queries behind the last key see all keys, and are a part of their
/// own.
std::vector<AttentionPart> attention_parts(const Problem& problem, const TokenRange& queries,
                                           const TokenRange& keys);

/// True if two parts have a key in common.
bool share_keys(const std::vector<AttentionPart>& parts);

/// Sequences and heads of K and V of a part that are computed together.
struct AttentionBatch {
  std::int64_t sequences = 1;
  std::int64_t kv_heads = 1;
  bool operator==(const AttentionBatch&) const = default;
};
/// Cuts a part into batches of about one size, of at most `scores` scores each or one head of one sequence. A
/// batch has all heads of some sequences, or some heads of one. `sharing` query heads share a head of K and
/// V.
AttentionBatch attention_batch(const AttentionPart& part, std::int64_t kv_heads, std::int64_t sharing,
                               std::int64_t scores);

}  // namespace shingle
