// Well-formed: attention of some queries to some keys, and merges of its parts.
#include <algorithm>

#include "plan/steps.hpp"
#include "step.hpp"

namespace shingle::wellformed {

/// Requires the columns of the grid to be whole heads.
void StepCheck::attention(const TileGrid& g) const {
  require(!plan_.workload() && plan_.problem().traits().attends, {"grid"}, "the problem has no attention");
  grid(g);
  const std::int64_t dim = plan_.problem().attention.head_dim;
  require(g.tile_cols % dim == 0 && g.cols % dim == 0, {"grid"},
          "{} columns in tiles of {}, but a head has {}", g.cols, g.tile_cols, dim);
}

/// Log-sum-exp of `rows` queries with the heads of `cols` columns.
void StepCheck::lse(const Field& field, const Slice& s, std::int64_t rows, std::int64_t cols) const {
  own(field, s);
  const std::int64_t heads = cols / plan_.problem().attention.head_dim;
  require(s.rows == rows && s.cols == heads, field, "{}x{}, but there are {} queries of {} heads", s.rows,
          s.cols, rows, heads);
  require(buffer(s).dtype == DType::f32, field, "{}, not f32", name(buffer(s).dtype));
}

void StepCheck::operator()(const Attend& a) const {
  attention(a.grid);
  const Problem& p = plan_.problem();
  require(a.grid.tile_cols == p.attention.head_dim, {"grid"}, "{} columns in tiles of {}, but a head has {}",
          a.grid.cols, a.grid.tile_cols, p.attention.head_dim);
  own({"q"}, a.q);
  own({"keys"}, a.keys);
  own({"values"}, a.values);
  require(a.q.rows == a.grid.rows && a.q.cols == a.grid.cols, {"q"}, "{}x{}, but the grid is {}x{}", a.q.rows,
          a.q.cols, a.grid.rows, a.grid.cols);
  require(a.first_token >= 0 && a.first_token <= p.m - a.grid.rows, {"first_token"},
          "{} queries from token {} on, but there are {}", a.grid.rows, a.first_token, p.m);
  const std::int64_t sharing = p.attention.heads / p.attention.kv_heads;
  for (const auto& [name, slice] : {std::pair{"keys", a.keys}, std::pair{"values", a.values}}) {
    require(slice.rows == a.keys.rows && slice.cols * sharing == a.grid.cols, {name}, "{}x{}, not {}x{}",
            slice.rows, slice.cols, a.keys.rows, a.grid.cols / sharing);
    require(buffer(slice).dtype == buffer(a.q).dtype, {name}, "{}, but q is {}",
            shingle::name(buffer(slice).dtype), shingle::name(buffer(a.q).dtype));
  }
  require(a.first_key >= 0 && a.first_key <= p.m - a.keys.rows, {"first_key"},
          "{} keys from token {} on, but there are {}", a.keys.rows, a.first_key, p.m);
  const TokenRange keys{a.first_key, a.first_key + a.keys.rows},
      queries{a.first_token, a.first_token + a.grid.rows};
  if (a.lse.buffer >= 0) {
    lse({"lse"}, a.lse, a.grid.rows, a.grid.cols);
    store({"lse"}, a.lse);
  }
  if (a.grid.rows > 0) {
    // The queries that see some of the keys are consecutive.
    require(common(queries, p.seeing(keys)) == queries, {"keys"},
            "some of the queries {} to {} see none of the keys of tokens {} to {}", queries.first,
            queries.end, keys.first, keys.end);
    const TokenRange seen = p.seen_by(queries.first, a.grid.rows);
    require(is_part(plan_, a.lse) || common(seen, keys) == seen, {"lse"},
            "is not stored for a merge, but the queries {} to {} see tokens {} to {}, and the keys are those "
            "of {} to {}",
            queries.first, queries.end, seen.first, seen.end, keys.first, keys.end);
  }
  placement({"out"}, a.out, a.grid);
  store({"out"}, a.out.slice);
  hooks(a.gates, a.notify, a.grid);
  resources(a.resources);
}

/// Requires each query to see one of the keys, and each key to be seen by one of the queries.
void StepCheck::see_each_other(const AttendBackward& a) const {
  const Problem& p = plan_.problem();
  require(a.first_token >= 0 && a.first_token <= p.m - a.grid.rows, {"first_token"},
          "{} queries from token {} on, but there are {}", a.grid.rows, a.first_token, p.m);
  require(a.first_key >= 0 && a.first_key <= p.m - a.keys.rows, {"first_key"},
          "{} keys from token {} on, but there are {}", a.keys.rows, a.first_key, p.m);
  const TokenRange keys{a.first_key, a.first_key + a.keys.rows},
      queries{a.first_token, a.first_token + a.grid.rows};
  // The queries that see some of the keys are consecutive, and so are the keys that they see.
  require(common(queries, p.seeing(keys)) == queries, {"keys"},
          "some of the queries {} to {} see none of the keys of tokens {} to {}", queries.first, queries.end,
          keys.first, keys.end);
  require(common(keys, p.seen_by(queries.first, a.grid.rows)) == keys, {"keys"},
          "some of the keys {} to {} are seen by none of the queries {} to {}", keys.first, keys.end,
          queries.first, queries.end);
}

void StepCheck::operator()(const AttendBackward& a) const {
  attention(a.grid);
  const Problem& p = plan_.problem();
  require(p.traits().backward, {"grid"}, "the problem has no backward");
  const std::int64_t sharing = p.attention.heads / p.attention.kv_heads, dim = p.attention.head_dim;
  require(a.grid.tile_cols == sharing * dim && a.grid.cols % a.grid.tile_cols == 0 && a.grid.tiles_m() <= 1,
          {"grid"}, "{}x{} in tiles of {}x{}, but an item is all queries of {} heads of {}", a.grid.rows,
          a.grid.cols, a.grid.tile_rows, a.grid.tile_cols, sharing, dim);
  const auto matrix = [&](std::string_view name, const Slice& slice, std::int64_t rows, std::int64_t cols) {
    own({name}, slice);
    require(slice.rows == rows && slice.cols == cols, {name}, "{}x{}, not {}x{}", slice.rows, slice.cols,
            rows, cols);
  };
  const auto same_type = [&](std::string_view name, const Slice& slice) {
    require(buffer(slice).dtype == buffer(a.q).dtype, {name}, "{}, but q is {}",
            shingle::name(buffer(slice).dtype), shingle::name(buffer(a.q).dtype));
  };
  for (const auto& [name, slice] :
       {std::pair{"q", a.q}, std::pair{"grad", a.grad}, std::pair{"attended", a.attended}}) {
    matrix(name, slice, a.grid.rows, a.grid.cols);
    same_type(name, slice);
  }
  lse({"lse"}, a.lse, a.grid.rows, a.grid.cols);
  for (const auto& [name, slice] : {std::pair{"keys", a.keys}, std::pair{"values", a.values}}) {
    matrix(name, slice, a.keys.rows, a.grid.cols / sharing);
    same_type(name, slice);
  }
  const std::pair<std::string_view, const Slice*> stored[] = {
      {"q_grad", &a.q_grad}, {"keys_grad", &a.keys_grad}, {"values_grad", &a.values_grad}};
  matrix("q_grad", a.q_grad, a.grid.rows, a.grid.cols);
  matrix("keys_grad", a.keys_grad, a.keys.rows, a.grid.cols / sharing);
  matrix("values_grad", a.values_grad, a.keys.rows, a.grid.cols / sharing);
  for (const auto& [name, slice] : stored) {
    store({name}, *slice);
    for (const Slice* other :
         {&a.q, &a.grad, &a.attended, &a.lse, &a.keys, &a.values, &a.q_grad, &a.keys_grad, &a.values_grad})
      require(other == slice || !overlap(*slice, *other), {name}, "overlaps another matrix of the step");
  }
  see_each_other(a);
  hooks(a.gates, a.notify, a.grid);
  resources(a.resources);
}

void StepCheck::operator()(const Merge& m) const {
  attention(m.grid);
  // A place that a part is read from and the result is stored to: each element at its own place.
  const auto in_place = [&](const Slice& from, std::int64_t row, const Slice& to) {
    return !overlap(from, to) || (from.row - row == to.row && from.col == to.col);
  };
  const auto* const form = std::get_if<placement::Matrix>(&m.to.form);
  const bool plain = form != nullptr && form->ranks.empty() && form->rows == RowMap::identity(m.grid.rows);
  std::vector<TokenRange> rows;
  for (std::size_t i = 0; i < m.parts.size(); ++i) {
    const Merge::Part& part = m.parts[i];
    const Field value{"parts", i, "value"}, its_lse{"parts", i, "lse"};
    own(value, part.value);
    require(part.row >= 0 && part.value.rows <= m.grid.rows - part.row && part.value.cols == m.grid.cols,
            value, "{}x{} from row {} on, but the grid is {}x{}", part.value.rows, part.value.cols, part.row,
            m.grid.rows, m.grid.cols);
    lse(its_lse, part.lse, part.value.rows, m.grid.cols);
    require(part.value.buffer != m.to.slice.buffer || (plain && in_place(part.value, part.row, m.to.slice)),
            value, "overlaps the result other than in place");
    require(m.lse.buffer < 0 || in_place(part.lse, part.row, m.lse), its_lse,
            "overlaps the result other than in place");
    // Kernels read and write heads and rows in any order.
    require(!overlap(part.lse, m.to.slice), its_lse, "overlaps the result");
    require(m.lse.buffer < 0 || !overlap(part.value, m.lse), value, "overlaps the log-sum-exp of the result");
    rows.push_back({part.row, part.row + part.value.rows});
  }
  std::ranges::sort(rows, {}, &TokenRange::first);
  std::int64_t end = 0;
  for (const TokenRange& one : rows)
    if (one.first <= end) end = larger(end, one.end);
  require(end >= m.grid.rows, {"parts"}, "row {} of {} is in none", end, m.grid.rows);
  placement({"to"}, m.to, m.grid);
  store({"to"}, m.to.slice);
  if (m.lse.buffer >= 0) {
    lse({"lse"}, m.lse, m.grid.rows, m.grid.cols);
    require(!overlap(m.to.slice, m.lse), {"lse"}, "overlaps the result");
    store({"lse"}, m.lse);
  }
  hooks(m.gates, m.notify, m.grid);
  resources(m.resources);
}

}  // namespace shingle::wellformed
