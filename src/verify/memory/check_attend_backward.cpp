// Backward of attention: parts of gradients by some keys or queries, and their sums.
#include "check.hpp"

#include <fmt/format.h>

namespace shingle {

/// Requires the matrices of an item to be the step's tokens, with the heads of one head of K and V.
void MemoryCheck::attend_backward_tile(const AttendBackward& step, const Segment& s, std::int32_t index,
                                       std::int64_t item) {
  const Attention& a = plan_.problem().attention;
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  budget_.spend(Budget::compared, static_cast<std::int64_t>(a.lengths.size()));
  const std::int64_t sharing = a.heads / a.kv_heads, dim = a.head_dim;
  const TokenRange queries{step.first_token, step.first_token + step.grid.rows},
      keys{step.first_key, step.first_key + step.keys.rows};
  std::int64_t head = -1;  // of K and V in the problem
  const auto check = [&](const Slice& slice, Content::Of of, const TokenRange& tokens, std::int64_t cols) {
    // Columns of one head of K and V.
    const Place at = piece_place(slice, slice.row, slice.rows, slice.col + rect.col / (sharing * dim) * cols,
                                 cols, s.epoch);
    memory_.read(at, index, item, [&](const Rect& cell, const Content& c) {
      const std::int64_t col = at.rect.col + c.col;
      if (head < 0 && col % cols == 0) head = col / cols;
      if (c.of != of || c.epoch != s.epoch || c.ranks != 0 || c.value != 0 ||
          at.rect.row + c.row != tokens.first || col != head * cols)
        fail_content(s, fmt::format("reads {} ({}) for tokens {} to {} of head {} of K and V",
                                    memory_.describe(at, cell), text_of(c), tokens.first, tokens.end, head));
    });
    return at;
  };
  check(step.q, Content::Of::a, queries, rect.cols);
  check(step.grad, Content::Of::grad, queries, rect.cols);
  check(step.attended, Content::Of::attended, queries, rect.cols);
  check(step.lse, Content::Of::lse, queries, sharing);
  check(step.keys, Content::Of::keys, keys, dim);
  check(step.values, Content::Of::values, keys, dim);
  const ValueTable::Id product = values_.product(s.rank, s.lane, s.step, 0);
  const auto store = [&](const Slice& slice, Content::Of of, const TokenRange& tokens, const TokenRange& by,
                         std::int64_t cols) {
    Slice to = slice;
    to.col += rect.col / (sharing * dim) * cols;
    to.cols = cols;
    store_gradient(to, s, index, item,
                   {of, 0, s.epoch, tokens.first - to.row, head * cols - to.col, 0, 0, product}, by);
  };
  store(step.q_grad, Content::Of::q_grad, queries, keys, rect.cols);
  store(step.keys_grad, Content::Of::keys_grad, keys, queries, dim);
  store(step.values_grad, Content::Of::values_grad, keys, queries, dim);
}

/// Stores a part of a gradient that the tokens `by` contribute.
void MemoryCheck::store_gradient(const Slice& to, const Segment& s, std::int32_t index, std::int64_t item,
                                 const Content& content, const TokenRange& by) {
  Content c = content;
  c.value = values_.stored(content.value, dtype_of(to));
  (c.of == Content::Of::q_grad ? keys_of_ : queries_of_).emplace(c.value, KeySet(by));
  memory_.write(place(to, s.epoch), index, item, c);
}

ValueTable::Id MemoryCheck::stored_gradient(const Content& c, DType dtype) {
  auto& known = c.of == Content::Of::q_grad ? keys_of_ : queries_of_;
  const ValueTable::Id value = values_.stored(c.value, dtype);
  if (const auto found = known.find(c.value); found != known.end() && value != c.value)
    known.emplace(value, KeySet(found->second));
  return value;
}

/// Sum of parts of equal places of a gradient, by different keys or queries. `c` was found in `cell`.
Content MemoryCheck::summed_gradients(Content sum, const Content& c, const Segment& s, const Place& at,
                                      const Rect& cell) {
  auto& known = sum.of == Content::Of::q_grad ? keys_of_ : queries_of_;
  const auto before = known.find(sum.value), added = known.find(c.value);
  const auto fail = [&](std::string_view why) {
    fail_content(
        s, fmt::format("adds {} ({}) to {}{}", memory_.describe(at, cell), text_of(c), text_of(sum), why));
  };
  if (!same_elements(c, sum) || before == known.end() || added == known.end()) fail("");
  KeySet tokens = before->second;
  budget_.spend(Budget::compared, tokens.size() + added->second.size());
  if (!tokens.add(added->second)) fail(", which holds some of its tokens' contributions already");
  sum.value = values_.sum(sum.value, c.value);
  known.emplace(sum.value, std::move(tokens));
  return sum;
}

/// Requires a gradient or a log-sum-exp of the user's to have the contributions of all tokens: for Q and the
/// log-sum-exp all keys that the queries see, for K and V all queries that see the keys.
void MemoryCheck::check_complete(const Place& at, const Rect& rect, const Content& found) {
  const Problem& p = plan_.problem();
  const bool of_queries = found.of == Content::Of::q_grad || found.of == Content::Of::lse;
  const auto& known = of_queries ? keys_of_ : queries_of_;
  const TokenRange tokens{rect.row + found.row, rect.row + found.row + rect.rows};
  budget_.spend(Budget::compared, static_cast<std::int64_t>(p.attention.lengths.size()));
  const TokenRange wanted = of_queries ? p.seen_by(tokens.first, rect.rows) : p.seeing(tokens);
  const auto sum = known.find(found.value);
  if (sum != known.end() && sum->second.holds(wanted)) return;
  throw CheckFailure{"content",
                     fmt::format("{} leaves out {} of tokens {} to {}, which contribute to tokens {} to {}",
                                 memory_.describe(at, rect), of_queries ? "keys" : "queries", wanted.first,
                                 wanted.end, tokens.first, tokens.end)};
}

}  // namespace shingle
