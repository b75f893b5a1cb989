#include "attention_parts.hpp"

#include <algorithm>

namespace shingle {
namespace {

/// The part of the queries from `token` on: those of one sequence, at most `rows`.
AttentionPart part_at(const Problem& problem, const TokenRange& queries, const TokenRange& keys,
                      std::int64_t token) {
  std::int64_t rows = std::min(queries.end, problem.sequence_of(token).end) - token;
  if (problem.attention.causal && token + 1 < keys.end) rows = std::min(rows, keys.end - token);
  const TokenRange seen = common(problem.seen_by(token, rows), keys);
  return {token - queries.first, seen.first - keys.first, rows, seen.count(),
          problem.attention.causal && rows > 1 && seen.end > token + 1};
}

}  // namespace

std::vector<AttentionPart> attention_parts(const Problem& problem, const TokenRange& queries,
                                           const TokenRange& keys) {
  std::vector<AttentionPart> parts;
  const auto whole = [&](const AttentionPart& part) {
    return part.queries == part.keys && keys.first + part.key == queries.first + part.row;
  };
  for (std::int64_t token = queries.first; token < queries.end;) {
    const AttentionPart part = part_at(problem, queries, keys, token);
    AttentionPart* const last = parts.empty() ? nullptr : &parts.back();
    if (last != nullptr && whole(*last) && whole(part) && last->queries == part.queries)
      ++last->sequences;
    else
      parts.push_back(part);
    token += part.queries;
  }
  return parts;
}

bool share_keys(const std::vector<AttentionPart>& parts) {
  std::int64_t end = 0;  // parts are in the order of their queries, and so are the sequences of their keys
  for (const AttentionPart& part : parts) {
    if (part.key < end) return true;
    end = part.key + part.sequences * part.keys;
  }
  return false;
}

AttentionBatch attention_batch(const AttentionPart& part, std::int64_t kv_heads, std::int64_t sharing,
                               std::int64_t scores) {
  // Of `count`, as many as `most` at a time, evened out.
  const auto even = [](std::int64_t count, std::int64_t most) {
    return ceil_div(count, ceil_div(count, most));
  };
  const std::int64_t most = larger(scores / (sharing * part.queries * part.keys), 1);
  if (most < kv_heads) return {1, even(kv_heads, most)};
  return {even(part.sequences, most / kv_heads), kv_heads};
}

}  // namespace shingle
