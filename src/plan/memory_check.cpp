#include "memory_check.hpp"

#include <fmt/format.h>

#include "shingle/plan/placement.hpp"
#include "shingle/plan/print.hpp"

namespace shingle {
namespace {

std::string rect_text(const Rect& r) {
  return fmt::format("rows [{}, {}) columns [{}, {})", r.row, r.row + r.rows, r.col, r.col + r.cols);
}

/// The same slice in the memory of the rank that a piece lies on.
Slice on_rank(Slice slice, const Piece& piece) {
  slice.rank = piece.rank;
  return slice;
}

std::string content_text(const Content& c) {
  static constexpr const char* names[] = {
      "nothing", "A",      "B",         "bias", "residual",          "norm weight", "C",
      "keys",    "values", "attention", "down", "the first product", "payload"};
  if (c.of == Content::Of::nothing) return "nothing";
  std::string text = names[static_cast<int>(c.of)];
  if (c.ranks != 0) {
    text += " of ranks";
    for (int r = 0; r < 64; ++r)
      if (c.ranks >> r & 1) text += fmt::format(" {}", r);
  }
  if (c.done & epilogue_done) text += ", epilogue applied";
  if (c.done & residual_done) text += ", residual added";
  if (c.done & norm_done) text += ", normalised";
  return text + fmt::format(" of epoch {}", c.epoch);
}

/// Whether two contents are parts of one sum: equal places, of disjoint sets of ranks. What is of no rank in
/// particular, such as the rows that an all-gather brings, is complete: there is nothing to add to it.
bool addable(const Content& a, const Content& b) {
  const bool summed = a.of == Content::Of::c || a.of == Content::Of::payload;
  return summed && a.of == b.of && a.row == b.row && a.col == b.col && a.epoch == b.epoch && a.done == 0 &&
         b.done == 0 && a.ranks != 0 && b.ranks != 0 && (a.ranks & b.ranks) == 0;
}

}  // namespace

MemoryCheck::MemoryCheck(const Plan& plan, const Schedule& schedule, const Order& order)
    : plan_(plan), schedule_(schedule), order_(order) {
  const int world = plan.problem.world;
  everyone_ = world == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << world) - 1;
  for (const Buffer& buffer : plan.buffers) {
    auto& by_rank = memory_.emplace_back();
    for (int r = 0; r < world; ++r) {
      auto& copies = by_rank.emplace_back();
      for (int c = 0; c < buffer.depth; ++c) copies.emplace_back(buffer.rows[r], buffer.cols, Cell{});
    }
  }
}

void MemoryCheck::fail(std::string rule, std::string text) const {
  throw CheckFailure{std::move(rule), std::move(text)};
}

void MemoryCheck::fail_content(const Segment& s, std::string text) const {
  fail("content", where(plan_, s.rank, s.lane, s.step) + " " + std::move(text));
}

RegionMap<MemoryCheck::Cell>& MemoryCheck::memory(const Place& at) {
  return memory_[at.buffer][at.rank][at.copy];
}

MemoryCheck::Place MemoryCheck::place(const Slice& slice, std::int32_t epoch) const {
  return {slice.buffer,
          slice.rank,
          epoch % plan_.buffers[slice.buffer].depth,
          {slice.row, slice.rows, slice.col, slice.cols}};
}

MemoryCheck::Place MemoryCheck::piece_place(const Slice& slice, std::int64_t row, std::int64_t rows,
                                            std::int64_t col, std::int64_t cols, std::int32_t epoch) const {
  return {slice.buffer, slice.rank, epoch % plan_.buffers[slice.buffer].depth, {row, rows, col, cols}};
}

std::string MemoryCheck::describe_segment(std::int32_t segment, std::int64_t item) const {
  const Segment& s = schedule_.segments[segment];
  if (s.lane < 0) return fmt::format("the user of rank {} between epochs", s.rank);
  std::string text = where(plan_, s.rank, s.lane, s.step);
  const Step& step = step_of(s);
  if (item >= 0 && std::holds_alternative<Gemm>(step)) {
    const Tile tile = std::get<Gemm>(step).grid.tile(item);
    text += fmt::format(", tile ({}, {})", tile.m, tile.n);
  } else if (item >= 0 && std::holds_alternative<Elementwise>(step)) {
    text += fmt::format(", item {}", item);
  }
  return text + fmt::format(" of epoch {}", s.epoch);
}

std::string MemoryCheck::describe_place(const Place& at, const Rect& rect) const {
  return fmt::format("{} on rank {}, {}", plan_.buffers[at.buffer].name, at.rank, rect_text(rect));
}

template <class Visit>
void MemoryCheck::read(const Place& at, std::int32_t segment, std::int64_t item, Visit&& visit) {
  memory(at).visit(at.rect, [&](const Rect& rect, Cell& cell) {
    ++accesses_;
    spend(1);
    const Touch& writer = cell.writer;
    const bool own = writer.segment == segment && writer.item == item;
    if (writer.segment >= 0 && !own && !order_.knows(segment, writer.segment))
      fail("race", fmt::format("{} reads {}, which {} writes with no order between them",
                               describe_segment(segment, item), describe_place(at, rect),
                               describe_segment(writer.segment, writer.item)));
    if (cell.reader.segment == segment) {
      if (cell.reader.item != item) cell.reader.item = -1;
    } else {
      if (cell.reader.segment >= 0) cell.earlier.push_back(cell.reader);
      cell.reader = {segment, item};
    }
    visit(rect, static_cast<const Content&>(cell.content));
  });
}

void MemoryCheck::write(const Place& at, std::int32_t segment, std::int64_t item, const Content& content) {
  memory(at).visit(at.rect, [&](const Rect& rect, Cell& cell) {
    ++accesses_;
    spend(1);
    const auto conflict = [&](const Touch& other) {
      return other.segment >= 0 && !(other.segment == segment && other.item == item) &&
             !order_.knows(segment, other.segment);
    };
    if (cell.writer.segment == segment && cell.writer.item == item)
      fail("race",
           fmt::format("{} stores {} twice", describe_segment(segment, item), describe_place(at, rect)));
    if (conflict(cell.writer))
      fail("race",
           fmt::format("{} and {} both write {} with no order between them", describe_segment(segment, item),
                       describe_segment(cell.writer.segment, cell.writer.item), describe_place(at, rect)));
    const auto check_reader = [&](const Touch& reader) {
      if (conflict(reader))
        fail("race", fmt::format("{} writes {}, which {} reads with no order between them",
                                 describe_segment(segment, item), describe_place(at, rect),
                                 describe_segment(reader.segment, reader.item)));
    };
    for (const Touch& reader : cell.earlier) check_reader(reader);
    check_reader(cell.reader);
    cell.content = content;
    cell.writer = {segment, item};
    cell.reader = {};
    cell.earlier.clear();
  });
}

std::optional<CheckFailure> MemoryCheck::run() {
  try {
    for (const Event& event : schedule_.events) {
      if (event.kind == EventKind::collective) {
        collective(event.segments);
        continue;
      }
      if (event.kind == EventKind::message) {
        message(event);
        continue;
      }
      const std::int32_t index = event.segments[0];
      const Segment& s = schedule_.segments[index];
      if (s.lane < 0) {
        user(s, index);
        continue;
      }
      const Step& step = step_of(s);
      if (const auto* g = std::get_if<Gemm>(&step)) gemm(*g, s, index);
      if (const auto* e = std::get_if<Elementwise>(&step)) elementwise(*e, s, index);
      if (const auto* a = std::get_if<Attend>(&step)) {
        spend(s.last - s.first);
        for (std::int64_t item = s.first; item < s.last; ++item)
          if (!a->grid.phantom(a->grid.tile(item))) attend_tile(*a, s, index, item);
      }
      if (const auto* f = std::get_if<Fill>(&step)) write(place(f->slice, s.epoch), index, 0, Content{});
      if (const auto* c = std::get_if<Copy>(&step)) copy(c->from, {index, 0}, c->to, {index, 0});
      if (const auto* b = std::get_if<Broadcast>(&step))
        for (const Slice& to : b->to) copy(b->from, {index, 0}, to, {index, 0});
      if (const auto* w = std::get_if<Swap>(&step)) swap(*w, s, index);
    }
  } catch (const CheckFailure& failure) {
    return failure;
  }
  return std::nullopt;
}

// -------------------------------------------------------------------------------------------------------------
// user

void MemoryCheck::user(const Segment& s, std::int32_t index) {
  const Problem& p = plan_.problem;
  if (s.epoch > 0) {
    const std::uint8_t before_norm = static_cast<std::uint8_t>(
        (p.result_epilogue().any() ? epilogue_done : 0) | (p.norm.residual ? residual_done : 0));
    check_output(s, index, Role::out,
                 static_cast<std::uint8_t>(before_norm | (p.norm.enabled ? norm_done : 0)));
    check_output(s, index, Role::sum, before_norm);
  }
  for (std::size_t b = 0; b < plan_.buffers.size(); ++b) {
    const Buffer& buffer = plan_.buffers[b];
    if (buffer.role == Role::internal) continue;
    // Inputs of the last epoch may be overwritten, outputs are poisoned: whatever is still under way there is
    // a race.
    const Slice all = whole(plan_, static_cast<std::int32_t>(b), s.rank);
    write(place(all, s.epoch), index, 0, Content{});
    memory(place(all, s.epoch)).replace_rows(0, all.rows, Cell{Content{}, {index, 0}, {}, {}});
    if (is_input(buffer.role)) provide_input(s, buffer.role);
  }
}

void MemoryCheck::provide_input(const Segment& s, Role role) {
  const Problem& p = plan_.problem;
  const Place all = place(whole(plan_, find_buffer(plan_, role), s.rank), s.epoch);
  const std::uint64_t own = std::uint64_t{1} << s.rank;
  // Where every rank has a result of its own, so are parameters and residual.
  const std::uint64_t whose = p.op == Op::gemm || (p.gathers() && !p.reduces()) ? own : 0;
  // Any rank's rows go through a first product whose result is gathered: its weight is everyone's.
  const std::uint64_t made_with = p.op == Op::gemm_allgather_gemm ? 0 : own;
  const auto set = [&](const Rect& rect, Content content) {
    content.epoch = s.epoch;
    memory(all).visit(rect, [&](const Rect&, Cell& cell) { cell.content = content; });
  };
  switch (role) {
    case Role::a:
      for (const GlobalRun& run : p.a_runs(s.rank)) {
        const std::int64_t offset = run.global_row - run.local_row;
        const std::uint64_t ranks = p.gathers() || p.exchanges_heads() ? 0 : own;
        if (p.is_collective())  // the matrix that is moved or summed is C itself
          set({run.local_row, run.rows, 0, p.k}, {Content::Of::c, 0, 0, offset, 0, ranks});
        else if (p.transpose_a)
          set({0, p.k, run.local_row, run.rows}, {Content::Of::a, 0, 0, 0, offset, ranks});
        else
          set({run.local_row, run.rows, 0, p.k}, {Content::Of::a, 0, 0, offset, 0, ranks});
      }
      return;
    case Role::residual:
      for (const GlobalRun& run : p.out_runs(s.rank))
        set({run.local_row, run.rows, 0, p.out_cols()},
            {Content::Of::residual, 0, 0, run.global_row - run.local_row, 0, whose});
      return;
    case Role::b:
      set(all.rect, {Content::Of::b, 0, 0, 0, 0, made_with});
      return;
    case Role::down:
      set(all.rect, {Content::Of::down, 0, 0, 0, 0, own});
      return;
    case Role::payload:
      set(all.rect, {Content::Of::payload, 0, 0, 0, 0, own});
      return;
    case Role::bias:
      set(all.rect, {Content::Of::bias, 0, 0, 0, 0, p.chains() ? made_with : whose});
      return;
    case Role::keys:
    case Role::values:
      // As with A, a row of a whole matrix is itself wherever it is; a rank's own heads are its own.
      for (const GlobalRun& run : p.a_runs(s.rank))
        set({run.local_row, run.rows, 0, p.kv_cols()},
            {role == Role::keys ? Content::Of::keys : Content::Of::values, 0, 0,
             run.global_row - run.local_row, 0, p.exchanges_heads() ? 0 : own});
      return;
    default:
      set(all.rect, {Content::Of::norm_weight, 0, 0, 0, 0, whose});
      return;
  }
}

void MemoryCheck::check_output(const Segment& s, std::int32_t index, Role role, std::uint8_t done) {
  const Problem& p = plan_.problem;
  const std::int32_t buffer = find_buffer(plan_, role);
  if (buffer < 0) return;
  const Slice all = whole(plan_, buffer, s.rank);
  if (p.overlaps()) return check_results(s, index, all);
  for (const GlobalRun& run : p.out_runs(s.rank)) {
    Content expected{
        Content::Of::c, done, s.epoch - 1, run.global_row - run.local_row, 0, std::uint64_t{1} << s.rank};
    if (p.reduces()) expected.ranks = everyone_;
    if (p.op == Op::allgather || p.exchanges_heads()) expected.ranks = 0;
    if (p.exchanges_heads()) expected.of = Content::Of::attended;
    if (p.op == Op::gemm_alltoall || p.op == Op::alltoall) {
      int source = 0;
      while (p.routing->global_base(source + 1) <= run.global_row) ++source;
      expected.ranks = std::uint64_t{1} << source;
    }
    Place at = place(all, s.epoch - 1);
    at.rect = {run.local_row, run.rows, 0, all.cols};
    expect(at, index, expected);
  }
}

void MemoryCheck::expect(const Place& at, std::int32_t index, const Content& expected) {
  read(at, index, 0, [&](const Rect& rect, const Content& found) {
    if (found == expected) return;
    const auto text = [&](const Content& c) {
      return c.of == Content::Of::nothing
                 ? std::string("nothing")
                 : fmt::format("{}, row {}, column {}", content_text(c), rect.row + c.row, rect.col + c.col);
    };
    fail("content", fmt::format("{} should be {} at its start, but holds {}", describe_place(at, rect),
                                text(expected), text(found)));
  });
}

/// Of an overlap: each product, and what each collective brings, at its place.
void MemoryCheck::check_results(const Segment& s, std::int32_t index, const Slice& all) {
  const Problem& p = plan_.problem;
  const OverlapRows rows = rows_of(p);
  const auto own = std::uint64_t{1} << s.rank;
  const auto holds = [&](std::int64_t first, std::int64_t count, std::int64_t cols, Content expected) {
    Place at = place(all, s.epoch - 1);
    at.rect = {first, count, 0, cols};
    expected.epoch = s.epoch - 1;
    expected.row -= first;
    expect(at, index, expected);
  };
  for (std::size_t i = 0; i < rows.computations.size(); ++i)
    holds(rows.computations[i].first, rows.computations[i].rows, p.overlap->computations[i].n,
          {Content::Of::c, 0, 0, 0, 0, own});
  for (std::size_t j = 0; j < rows.collectives.size(); ++j) {
    const auto [first, count] = rows.collectives[j];
    const CollectiveKind kind = p.overlap->collectives[j].kind;
    if (kind == CollectiveKind::allreduce || kind == CollectiveKind::reducescatter) {
      const std::int64_t row = kind == CollectiveKind::reducescatter ? s.rank * count : 0;
      holds(first, count, p.n, {Content::Of::payload, 0, 0, row, 0, everyone_});
      continue;
    }
    const std::int64_t part = count / p.world;
    for (int r = 0; r < p.world; ++r)
      holds(first + r * part, part, p.n,
            {Content::Of::payload, 0, 0, kind == CollectiveKind::alltoall ? s.rank * part : 0, 0,
             std::uint64_t{1} << r});
  }
}

// -------------------------------------------------------------------------------------------------------------
// gemm

void MemoryCheck::gemm(const Gemm& step, const Segment& s, std::int32_t index) {
  if (step.epilogue.any() && !(step.epilogue == plan_.problem.epilogue))
    fail_content(s, "applies another epilogue than the problem's");
  const Problem& p = plan_.problem;
  const std::int64_t k = step.transpose_a ? step.a.rows : step.a.cols;
  if (p.overlaps()) {
    check_listed(step, s, k);
  } else if (k != p.k && !(p.chains() && k == p.inner)) {
    fail_content(s, fmt::format("multiplies over {} of the K = {}", k, p.k));
  }
  spend(s.last - s.first);
  for (std::int64_t item = s.first; item < s.last; ++item)
    if (!step.grid.phantom(step.grid.tile(item))) gemm_tile(step, s, index, item);
}

/// Of an overlap, a product is whole where it goes over the K of the computation whose result it stores.
void MemoryCheck::check_listed(const Gemm& step, const Segment& s, std::int64_t k) const {
  const OverlapRows rows = rows_of(plan_.problem);
  for (std::size_t i = 0; i < rows.computations.size(); ++i) {
    if (step.out.slice.row != rows.computations[i].first) continue;
    if (k == plan_.problem.overlap->computations[i].k) return;
    fail_content(
        s, fmt::format("multiplies over {} of the K = {}", k, plan_.problem.overlap->computations[i].k));
  }
  fail_content(s, "stores where the result of no computation begins");
}

/// What a product has to take for its A, by what its B is; and over all of which K. A second
/// product goes over all inner columns of the first one, which has passed the epilogue.
Content::Of MemoryCheck::wanted_a(const Gemm& step, const Segment& s, Content::Of b) const {
  const Problem& p = plan_.problem;
  const bool second = b == Content::Of::down;
  const std::int64_t k = step.transpose_a ? step.a.rows : step.a.cols, all = p.overlaps() ? k
                                                                             : second     ? p.inner
                                                                                          : p.k;
  if (k != all) fail_content(s, fmt::format("multiplies over {} of the K = {}", k, all));
  if (second && step.epilogue.any())
    fail_content(s, "applies the epilogue of the first product to the second");
  if (second) return Content::Of::hidden;
  return p.attends() ? Content::Of::attended : Content::Of::a;
}

const std::vector<MemoryCheck::TileRows>& MemoryCheck::read_a(const Gemm& step, const Segment& s,
                                                              std::int32_t index, const TileRect& rect,
                                                              Content::Of wanted) {
  std::vector<TileRows>& rows = a_tile_rows_;
  if (a_segment_ == index && a_row_ == rect.row && a_wanted_ == wanted) return rows;
  a_segment_ = index;
  a_row_ = rect.row;
  a_wanted_ = wanted;
  rows.clear();
  const bool t = step.transpose_a;
  step.a_rows.for_each_run(rect.row, rect.rows, [&](const RowRun& run) {
    if (run.matrix_row < 0) return;
    const Place at =
        t ? piece_place(step.a, step.a.row, step.a.rows, step.a.col + run.matrix_row, run.rows, s.epoch)
          : piece_place(step.a, step.a.row + run.matrix_row, run.rows, step.a.col, step.a.cols, s.epoch);
    read(at, index, -1, [&](const Rect& cell, const Content& c) {
      const std::int64_t k_offset = t ? c.row + step.a.row : c.col + step.a.col;
      const bool passed = c.of != Content::Of::hidden || !plan_.problem.epilogue.any() || c.done != 0;
      if (c.of != wanted || c.epoch != s.epoch || k_offset != 0 || t != plan_.problem.transpose_a || !passed)
        fail_content(
            s, fmt::format("takes {} ({}) for its rows of A", describe_place(at, cell), content_text(c)));
      const std::int64_t first = t ? cell.col : cell.row, count = t ? cell.cols : cell.rows;
      const std::int64_t start = t ? at.rect.col : at.rect.row;
      TileRows next{run.virtual_row - rect.row + first - start, count, first + (t ? c.col : c.row), c.ranks};
      // A cell may be cut along k: the rows are then seen more than once, and have to agree.
      bool seen_before = false;
      for (const TileRows& seen : rows) {
        if (next.tile_row >= seen.tile_row + seen.rows || seen.tile_row >= next.tile_row + next.rows)
          continue;
        if (seen.global_row - seen.tile_row != next.global_row - next.tile_row || seen.ranks != next.ranks)
          fail_content(
              s, fmt::format("multiplies parts of different rows of A in {}", describe_place(at, cell)));
        seen_before = true;
      }
      if (seen_before) return;
      if (!rows.empty() && rows.back().tile_row + rows.back().rows == next.tile_row &&
          rows.back().ranks == next.ranks && rows.back().global_row + rows.back().rows == next.global_row) {
        rows.back().rows += next.rows;
      } else {
        rows.push_back(next);
      }
    });
  });
  return rows;
}

/// Which weight it is (there may be two), the column of the product that the tile's first column is,
/// and the ranks whose weight it is.
Content MemoryCheck::read_b(const Gemm& step, const Segment& s, std::int32_t index, const TileRect& rect) {
  Content result;
  const bool t = step.transpose_b, gated = step.epilogue.activation == Activation::swiglu;
  for (int half = 0; half < (gated ? 2 : 1); ++half) {
    // `up` lies behind `gate` in B as the step sees it, which may be some columns of each only.
    const std::int64_t shift = half * (plan_.problem.b_cols() / 2);
    const std::int64_t col = rect.col + half * step.grid.cols;
    const Place at = t ? piece_place(step.b, step.b.row + col, rect.cols, step.b.col, step.b.cols, s.epoch)
                       : piece_place(step.b, step.b.row, step.b.rows, step.b.col + col, rect.cols, s.epoch);
    bool first = half == 0;
    read(at, index, -1, [&](const Rect& cell, const Content& c) {
      const std::int64_t k_offset = t ? c.col + step.b.col : c.row + step.b.row;
      const std::int64_t c_col = (t ? at.rect.row + c.row : at.rect.col + c.col) - shift;
      const bool weight = c.of == Content::Of::b || c.of == Content::Of::down;
      if (!weight || c.epoch != s.epoch || k_offset != 0 || t != plan_.problem.transpose_b ||
          (!first && (c.of != result.of || c_col != result.col || c.ranks != result.ranks)))
        fail_content(
            s, fmt::format("takes {} ({}) for its columns of B", describe_place(at, cell), content_text(c)));
      result.of = c.of;
      result.col = c_col;
      result.ranks = c.ranks;
      first = false;
    });
  }
  return result;
}

void MemoryCheck::gemm_tile(const Gemm& step, const Segment& s, std::int32_t index, std::int64_t item) {
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  const Content b = read_b(step, s, index, rect);
  const std::vector<TileRows>& rows = read_a(step, s, index, rect, wanted_a(step, s, b.of));
  const bool first_of_two = plan_.problem.chains() && b.of == Content::Of::b;
  if (step.epilogue.bias) {
    check_owner(s, check_vector(step.bias, Content::Of::bias, s, index, rect.col, rect.cols, b.col), b);
    if (step.epilogue.activation == Activation::swiglu)
      check_owner(s,
                  check_vector(step.bias, Content::Of::bias, s, index, step.grid.cols + rect.col, rect.cols,
                               plan_.problem.b_cols() / 2 + b.col),
                  b);
  }
  for_each_piece(step.out, step.grid, plan_.problem.routing.get(), item, [&](const Piece& piece) {
    // Rows of the tile that are phantom in A, but have a place in the output, may be stored as anything.
    std::int64_t next = piece.tile_row;
    const auto phantom_until = [&](std::int64_t row) {
      if (next < row)
        write(piece_place(on_rank(step.out.slice, piece), piece.row + next - piece.tile_row, row - next,
                          piece.col, rect.cols, s.epoch),
              index, item, Content{});
    };
    for (const TileRows& run : rows) {
      const std::int64_t from = larger(run.tile_row, piece.tile_row);
      const std::int64_t to = smaller(run.tile_row + run.rows, piece.tile_row + piece.rows);
      if (from >= to) continue;
      phantom_until(from);
      next = to;
      if (run.ranks != 0 && run.ranks != b.ranks)
        fail_content(s, "multiplies A of one rank with B of another");
      const std::int64_t row = piece.row + from - piece.tile_row;
      Content c{first_of_two ? Content::Of::hidden : Content::Of::c,
                0,
                s.epoch,
                run.global_row + from - run.tile_row - row,
                b.col - piece.col,
                b.ranks};
      // A first product passes the epilogue as it is: it is nobody else's.
      c.done = first_of_two ? (step.epilogue.any() ? epilogue_done : 0) : check_epilogue(c, step.epilogue, s);
      write(piece_place(on_rank(step.out.slice, piece), row, to - from, piece.col, rect.cols, s.epoch), index,
            item, c);
    }
    phantom_until(piece.tile_row + piece.rows);
  });
}

std::uint8_t MemoryCheck::check_epilogue(const Content& content, const Epilogue& epilogue, const Segment& s) {
  if (!epilogue.any()) return content.done;
  if (content.done != 0) fail_content(s, "applies the epilogue to what has already passed it");
  if (plan_.problem.reduces() && content.ranks != everyone_)
    fail_content(s, "applies the epilogue before all ranks are summed");
  return epilogue_done;
}

/// Elements [first, first + cols) of a row vector have to be those for columns `logical` on. Any item of the
/// step may need them. Returns whose they are; 0: everybody's.
std::uint64_t MemoryCheck::check_vector(const Slice& vector, Content::Of of, const Segment& s,
                                        std::int32_t index, std::int64_t first, std::int64_t cols,
                                        std::int64_t logical) {
  if (first < 0 || first + cols > vector.cols)
    fail_content(s, "takes elements beyond the end of a row vector");
  const Place at = piece_place(vector, vector.row, 1, vector.col + first, cols, s.epoch);
  std::uint64_t ranks = 0;
  bool first_cell = true;
  read(at, index, -1, [&](const Rect& cell, const Content& c) {
    if (c.of != of || c.epoch != s.epoch || c.col + at.rect.col != logical ||
        (!first_cell && c.ranks != ranks))
      fail_content(s, fmt::format("takes {} ({}) for elements {} to {} of a row vector",
                                  describe_place(at, cell), content_text(c), logical, logical + cols));
    ranks = c.ranks;
    first_cell = false;
  });
  return ranks;
}

/// Parameters and residuals that every rank has of its own go with its own products.
void MemoryCheck::check_owner(const Segment& s, std::uint64_t ranks, const Content& product) const {
  if (ranks != 0 && ranks != product.ranks)
    fail_content(s, "applies one rank's parameters or residual to the product of another");
}

// -------------------------------------------------------------------------------------------------------------
// attention

/// Of the tokens that a tile sees, those whose keys and values no tile of the run has read before.
TokenRange MemoryCheck::unread(std::int32_t index, std::int64_t col, const Seen& wanted) {
  if (seen_segment_ != index) seen_.clear();
  seen_segment_ = index;
  Seen& seen = seen_[col];
  const bool goes_on = seen.col == wanted.col && seen.ranks == wanted.ranks &&
                       seen.tokens.first <= wanted.tokens.first && wanted.tokens.first <= seen.tokens.end;
  if (!goes_on) seen = {wanted.col, wanted.ranks, {wanted.tokens.first, wanted.tokens.first}};
  const std::int64_t first = seen.tokens.end;
  seen.tokens.end = larger(first, wanted.tokens.end);
  return {first, seen.tokens.end};
}

/// Queries have to be the tokens that the step says, of one head of one rank; K and V those of the head's
/// group, of the same rank, and all of the tokens that the queries see.
void MemoryCheck::attend_tile(const Attend& step, const Segment& s, std::int32_t index, std::int64_t item) {
  const Attention& a = plan_.problem.attention;
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  const std::int64_t sharing = a.heads / a.kv_heads, token = step.first_token + rect.row;
  std::int64_t col = -1;  // of Q, that the tile's first column is
  std::uint64_t ranks = 0;
  const Place queries =
      piece_place(step.q, step.q.row + rect.row, rect.rows, step.q.col + rect.col, rect.cols, s.epoch);
  read(queries, index, -1, [&](const Rect& cell, const Content& c) {
    const std::int64_t found = c.col + queries.rect.col;
    if (c.of != Content::Of::a || c.epoch != s.epoch || queries.rect.row + c.row != token ||
        found % a.head_dim != 0 || (col >= 0 && (found != col || c.ranks != ranks)))
      fail_content(s, fmt::format("takes {} ({}) for the queries of tokens {} to {}",
                                  describe_place(queries, cell), content_text(c), token, token + rect.rows));
    col = found;
    ranks = c.ranks;
  });
  const std::int64_t local = rect.col / a.head_dim / sharing * a.head_dim;
  const std::int64_t wanted = col / a.head_dim / sharing * a.head_dim;
  const TokenRange seen = unread(index, local, {wanted, ranks, plan_.problem.seen_by(token, rect.rows)});
  const auto check_seen = [&](const Slice& slice, Content::Of of) {
    const Place at = piece_place(slice, slice.row + seen.first, seen.end - seen.first, slice.col + local,
                                 a.head_dim, s.epoch);
    read(at, index, -1, [&](const Rect& cell, const Content& c) {
      if (c.of != of || c.epoch != s.epoch || c.ranks != ranks || slice.row + c.row != 0 ||
          at.rect.col + c.col != wanted)
        fail_content(s, fmt::format("takes {} ({}) for {} of tokens {} to {}", describe_place(at, cell),
                                    content_text(c), of == Content::Of::keys ? "keys" : "values", seen.first,
                                    seen.end));
    });
  };
  check_seen(step.keys, Content::Of::keys);
  check_seen(step.values, Content::Of::values);
  for_each_piece(step.out, step.grid, plan_.problem.routing.get(), item, [&](const Piece& piece) {
    write(piece_place(step.out.slice, piece.row, piece.rows, piece.col, rect.cols, s.epoch), index, item,
          {Content::Of::attended, 0, s.epoch, token + piece.tile_row - piece.row, col - piece.col, ranks});
  });
}

// ------------------------------------------------------------------------------------------------------
// elementwise

void MemoryCheck::elementwise(const Elementwise& step, const Segment& s, std::int32_t index) {
  if (step.epilogue.any() && !(step.epilogue == plan_.problem.result_epilogue()))
    fail_content(s, "applies another epilogue than the problem's");
  if (step.norm.enabled && !(step.norm == plan_.problem.norm))
    fail_content(s, "applies another norm than the problem's");
  spend(s.last - s.first);
  for (std::int64_t item = s.first; item < s.last; ++item) {
    if (row_wise(step))
      finish_rows(step, s, index, item);
    else if (!step.grid.phantom(step.grid.tile(item)))
      move_tile(step, s, index, item);
  }
}

/// An item goes row by row: what it stores over one of its own sources has to be the very row, of a tile the
/// very element, that was there. What another item reads is found as a race.
void MemoryCheck::check_in_place(const Elementwise& step, const Segment& s, std::int64_t item) {
  const Routing* routing = plan_.problem.routing.get();
  const bool wide = row_wise(step);
  const std::int64_t out_cols =
      step.epilogue.activation == Activation::swiglu ? step.grid.cols / 2 : step.grid.cols;
  const auto pieces_of = [&](const Placement& at, bool row_of_tiles, auto&& visit) {
    for (std::int64_t n = 0; n < (row_of_tiles ? step.grid.tiles_n() : 1); ++n) {
      const std::int64_t position = wide ? step.grid.linear({item, n}) : item;
      const std::int64_t cols =
          wide && !row_of_tiles ? out_cols : step.grid.rect(step.grid.tile(position)).cols;
      for_each_piece(at, step.grid, routing, position, [&](const Piece& piece) { visit(piece, cols); });
    }
  };
  const auto compare = [&](const Placement& source, bool row_of_tiles, const Placement& target) {
    if (source.slice.buffer != target.slice.buffer) return;
    pieces_of(source, row_of_tiles, [&](const Piece& from, std::int64_t from_cols) {
      pieces_of(target, false, [&](const Piece& to, std::int64_t to_cols) {
        const bool apart = from.rank != to.rank || from.row >= to.row + to.rows ||
                           to.row >= from.row + from.rows || from.col >= to.col + to_cols ||
                           to.col >= from.col + from_cols;
        if (apart || (from.row - from.tile_row == to.row - to.tile_row && (wide || from.col == to.col)))
          return;
        fail("race", fmt::format("{}, item {}, stores over rows of {} that it has yet to read",
                                 where(plan_, s.rank, s.lane, s.step), item,
                                 plan_.buffers[source.slice.buffer].name));
      });
    });
  };
  const auto against = [&](const Placement& target) {
    for (const Placement& source : step.from) compare(source, wide, target);
    if (step.norm.residual) compare(step.residual, false, target);
  };
  against(step.to);
  if (step.norm.residual) against(step.sum);
}

/// The sum of equal places of disjoint sets of ranks; `c` was found in `cell`.
Content MemoryCheck::summed(Content sum, const Content& c, const Segment& s, const Place& at,
                            const Rect& cell) {
  if (!addable(sum, c))
    fail_content(
        s, fmt::format("adds {} ({}) to {}", describe_place(at, cell), content_text(c), content_text(sum)));
  sum.ranks |= c.ranks;
  return sum;
}

void MemoryCheck::move_tile(const Elementwise& step, const Segment& s, std::int32_t index,
                            std::int64_t item) {
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  const Routing* routing = plan_.problem.routing.get();
  check_in_place(step, s, item);
  // What the tile becomes: first the sum of the sources, in tile coordinates.
  RegionMap<Content> tile(rect.rows, rect.cols, Content{});
  for (std::size_t source = 0; source < step.from.size(); ++source) {
    for_each_piece(step.from[source], step.grid, routing, item, [&](const Piece& piece) {
      const Place at =
          piece_place(step.from[source].slice, piece.row, piece.rows, piece.col, rect.cols, s.epoch);
      read(at, index, item, [&](const Rect& cell, Content c) {
        const std::int64_t down = piece.row - piece.tile_row;
        c.row += down;
        c.col += piece.col;
        tile.visit({cell.row - down, cell.rows, cell.col - piece.col, cell.cols},
                   [&](const Rect&, Content& sum) { sum = source == 0 ? c : summed(sum, c, s, at, cell); });
      });
    });
  }
  bool bias_known = false;
  std::int64_t bias_col = 0;  // the column of C that the tile's first one is
  std::uint64_t bias_ranks = 0;
  for_each_piece(step.to, step.grid, routing, item, [&](const Piece& piece) {
    tile.visit({piece.tile_row, piece.rows, 0, rect.cols}, [&](const Rect& part, Content& held) {
      Content c = held;
      if (step.epilogue.any()) {
        if (c.of != Content::Of::c || (step.epilogue.bias && bias_known && c.col != bias_col))
          fail_content(s, fmt::format("applies the epilogue to {} in the wrong place", content_text(c)));
        if (step.epilogue.bias && !bias_known)
          bias_ranks =
              check_vector(step.bias, Content::Of::bias, s, index, rect.col, rect.cols, bias_col = c.col);
        check_owner(s, bias_ranks, c);
        bias_known = true;
        c.done = check_epilogue(c, step.epilogue, s);
      }
      const std::int64_t row = piece.row + part.row - piece.tile_row, col = piece.col + part.col;
      c.row += part.row - row;
      c.col += part.col - col;
      if (c.of == Content::Of::nothing) c = Content{};
      write(piece_place(on_rank(step.to.slice, piece), row, part.rows, col, part.cols, s.epoch), index, item,
            c);
    });
  });
}

void MemoryCheck::finish_rows(const Elementwise& step, const Segment& s, std::int32_t index,
                              std::int64_t tile_row) {
  const Problem& p = plan_.problem;
  const Routing* routing = p.routing.get();
  const TileRect block = step.grid.rect({tile_row, 0});
  const std::int64_t complete = step.epilogue.activation == Activation::swiglu ? p.n : p.out_cols();
  if (step.grid.cols != complete)
    fail_content(s, fmt::format("takes {} columns for complete rows of {}", step.grid.cols, complete));
  check_in_place(step, s, tile_row);
  // The rows of the block, in tile coordinates, by all their columns: the logical row of each has to be one.
  RegionMap<Content> rows(block.rows, step.grid.cols, Content{});
  for (const Placement& from : step.from)
    for (std::int64_t n = 0; n < step.grid.tiles_n(); ++n) {
      const TileRect rect = step.grid.rect({tile_row, n});
      for_each_piece(from, step.grid, routing, step.grid.linear({tile_row, n}), [&](const Piece& piece) {
        const Place at = piece_place(from.slice, piece.row, piece.rows, piece.col, rect.cols, s.epoch);
        read(at, index, tile_row, [&](const Rect& cell, Content c) {
          const std::int64_t down = piece.row - piece.tile_row, right = piece.col - rect.col;
          c.row += down;
          c.col += right;
          rows.visit({cell.row - down, cell.rows, cell.col - right, cell.cols},
                     [&](const Rect&, Content& held) {
                       held = &from == &step.from.front() ? c : summed(held, c, s, at, cell);
                     });
        });
      });
    }
  const std::uint64_t bias_ranks =
      step.epilogue.bias ? check_vector(step.bias, Content::Of::bias, s, index, 0, step.grid.cols, 0) : 0;
  const std::uint64_t weight_ranks =
      step.norm.enabled
          ? check_vector(step.norm_weight, Content::Of::norm_weight, s, index, 0, p.out_cols(), 0)
          : 0;
  const std::int64_t first_tile = step.grid.linear({tile_row, 0});
  for_each_piece(step.to, step.grid, routing, first_tile, [&](const Piece& piece) {
    std::vector<std::pair<Rect, Content>> bands;
    rows.visit({piece.tile_row, piece.rows, 0, step.grid.cols}, [&](const Rect& part, Content& c) {
      if (c.of != Content::Of::c || c.epoch != s.epoch || c.col != 0)
        fail_content(s, fmt::format("takes {} for columns [{}, {}) of complete rows", content_text(c),
                                    part.col, part.col + part.cols));
      if (p.reduces() && c.ranks != everyone_)
        fail_content(s, "works on complete rows before all ranks are summed");
      if (!bands.empty() && bands.back().first.row == part.row) {
        if (!(bands.back().second == c)) fail_content(s, "takes parts of different rows for one");
      } else {
        bands.emplace_back(part, c);
      }
    });
    for (const auto& [part, held] : bands) {
      Content c = held;
      if (step.norm.enabled && (c.done & (residual_done | norm_done)))
        fail_content(s, "normalises what is already normalised");
      c.done = check_epilogue(c, step.epilogue, s);
      check_owner(s, bias_ranks, c);
      check_owner(s, weight_ranks, c);
      const std::int64_t row = piece.row + part.row - piece.tile_row;
      if (step.norm.residual) {
        std::int64_t added = 0;
        // `residual` and `sum` lie as `to` does; find the same rows there.
        for_each_piece(step.residual, step.grid, routing, first_tile, [&](const Piece& other) {
          const std::int64_t from = larger(other.tile_row, part.row),
                             to = smaller(other.tile_row + other.rows, part.row + part.rows);
          if (from >= to) return;
          const std::int64_t at_row = other.row + from - other.tile_row;
          const Place at =
              piece_place(step.residual.slice, at_row, to - from, other.col, p.out_cols(), s.epoch);
          added += to - from;
          read(at, index, tile_row, [&](const Rect& cell, const Content& r) {
            check_owner(s, r.ranks, c);
            if (r.of != Content::Of::residual || r.epoch != s.epoch || r.col + other.col != 0 ||
                r.row + at_row != c.row + from)
              fail_content(s, fmt::format("adds {} ({}) as the residual of other rows",
                                          describe_place(at, cell), content_text(r)));
          });
        });
        if (added != part.rows)
          fail_content(s, fmt::format("has a residual for {} of {} rows", added, part.rows));
        c.done |= residual_done;
        std::int64_t kept = 0;
        for_each_piece(step.sum, step.grid, routing, first_tile, [&](const Piece& other) {
          const std::int64_t from = larger(other.tile_row, part.row),
                             to = smaller(other.tile_row + other.rows, part.row + part.rows);
          if (from >= to) return;
          const std::int64_t at_row = other.row + from - other.tile_row;
          kept += to - from;
          Content sum = c;
          sum.row += from - at_row;
          sum.col = -other.col;
          write(piece_place(step.sum.slice, at_row, to - from, other.col, p.out_cols(), s.epoch), index,
                tile_row, sum);
        });
        if (kept != part.rows)
          fail_content(s, fmt::format("keeps the sum of {} of {} rows", kept, part.rows));
      }
      if (step.norm.enabled) c.done |= norm_done;
      c.row += part.row - row;
      c.col = -piece.col;
      write(piece_place(on_rank(step.to.slice, piece), row, part.rows, piece.col, p.out_cols(), s.epoch),
            index, tile_row, c);
    }
  });
}

// ------------------------------------------------------------------------------------------- collectives and
// copies

void MemoryCheck::copy(const Slice& from, const Touch& reader, const Slice& to, const Touch& writer) {
  const Place source = place(from, schedule_.segments[reader.segment].epoch);
  const Place target = place(to, schedule_.segments[writer.segment].epoch);
  std::vector<std::pair<Rect, Content>> parts;
  read(source, reader.segment, reader.item,
       [&](const Rect& cell, const Content& c) { parts.emplace_back(cell, c); });
  const std::int64_t down = to.row - from.row, right = to.col - from.col;
  for (auto [cell, c] : parts) {
    cell.row += down;
    cell.col += right;
    if (c.of != Content::Of::nothing) c.row -= down, c.col -= right;
    Place at = target;
    at.rect = cell;
    write(at, writer.segment, writer.item, c);
  }
}

void MemoryCheck::swap(const Swap& step, const Segment& s, std::int32_t index) {
  std::vector<std::pair<Rect, Content>> a, b;
  read(place(step.a, s.epoch), index, 0,
       [&](const Rect& cell, const Content& c) { a.emplace_back(cell, c); });
  read(place(step.b, s.epoch), index, 0,
       [&](const Rect& cell, const Content& c) { b.emplace_back(cell, c); });
  const auto store = [&](const std::vector<std::pair<Rect, Content>>& parts, const Slice& from,
                         const Slice& to) {
    const std::int64_t down = to.row - from.row, right = to.col - from.col;
    for (auto [cell, c] : parts) {
      if (c.of != Content::Of::nothing) c.row -= down, c.col -= right;
      write(piece_place(to, cell.row + down, cell.rows, cell.col + right, cell.cols, s.epoch), index, 0, c);
    }
  };
  store(a, step.a, step.b);
  store(b, step.b, step.a);
}

void MemoryCheck::message(const Event& event) {
  const Segment &sender = schedule_.segments[event.segments[0]],
                &receiver = schedule_.segments[event.segments[1]];
  const auto& send = std::get<Exchange>(step_of(sender)).sends[event.send];
  const auto& receive = std::get<Exchange>(step_of(receiver)).receives[event.receive];
  const DType sent = plan_.buffers[send.slice.buffer].dtype,
              expected = plan_.buffers[receive.slice.buffer].dtype;
  if (send.slice.rows != receive.slice.rows || send.slice.cols != receive.slice.cols || sent != expected)
    fail("collectives",
         fmt::format("{} sends {}x{} {} to rank {}, which expects {}x{} {}",
                     where(plan_, sender.rank, sender.lane, sender.step), send.slice.rows, send.slice.cols,
                     name(sent), receiver.rank, receive.slice.rows, receive.slice.cols, name(expected)));
  // The messages of an exchange are under way together, in no order: each is an item of its own.
  const auto sends = static_cast<std::int64_t>(std::get<Exchange>(step_of(receiver)).sends.size());
  copy(send.slice, {event.segments[0], event.send}, receive.slice,
       {event.segments[1], sends + event.receive});
}

void MemoryCheck::collective(const std::vector<std::int32_t>& segments) {
  const auto of = [&](std::size_t i) -> const Collective& {
    return std::get<Collective>(step_of(schedule_.segments[segments[i]]));
  };
  const std::size_t world = segments.size();
  const CollectiveKind kind = of(0).kind;
  // What every participant sends, read before anything is written: in-place operation is part of the
  // contract.
  struct Part {
    Rect cell;  // relative to the send slice
    Content content;
  };
  std::vector<std::vector<Part>> sent(world);
  for (std::size_t i = 0; i < world; ++i) {
    const Segment& s = schedule_.segments[segments[i]];
    const Slice& slice = of(i).send;
    read(place(slice, s.epoch), segments[i], 0, [&](Rect cell, Content c) {
      cell.row -= slice.row;
      cell.col -= slice.col;
      c.row += slice.row;
      c.col += slice.col;
      sent[i].push_back({cell, c});
    });
  }
  // Stores what lies at rows [first, first + rows) of a send slice at row `at` of a receive slice.
  const auto deliver = [&](std::size_t i, std::int64_t at, const Rect& cell, Content c) {
    const Segment& s = schedule_.segments[segments[i]];
    const Slice& slice = of(i).recv;
    const std::int64_t row = slice.row + at;
    c.row += cell.row - row;
    c.col -= slice.col;
    if (c.of == Content::Of::nothing) c = Content{};
    write(piece_place(slice, row, cell.rows, slice.col + cell.col, cell.cols, s.epoch), segments[i], 0, c);
  };
  const auto deliver_rows = [&](std::size_t i, const std::vector<Part>& parts, std::int64_t first,
                                std::int64_t rows, std::int64_t at) {
    for (const Part& part : parts) {
      const std::int64_t from = larger(part.cell.row, first),
                         to = smaller(part.cell.row + part.cell.rows, first + rows);
      if (from < to)
        deliver(i, at + from - first, {from, to - from, part.cell.col, part.cell.cols}, part.content);
    }
  };

  if (kind == CollectiveKind::allgather) {
    for (std::size_t i = 0; i < world; ++i)
      for (std::size_t j = 0; j < world; ++j)
        deliver_rows(i, sent[j], 0, of(j).send.rows, static_cast<std::int64_t>(j) * of(j).send.rows);
    return;
  }
  if (kind == CollectiveKind::alltoall) {
    for (std::size_t i = 0; i < world; ++i) {
      std::int64_t at = 0;
      for (std::size_t j = 0; j < world; ++j) {
        std::int64_t first = 0;
        for (std::size_t d = 0; d < i; ++d) first += of(j).send_rows[d];
        deliver_rows(i, sent[j], first, of(i).recv_rows[j], at);
        at += of(i).recv_rows[j];
      }
    }
    return;
  }
  // Reductions: the sum of equal places of all ranks.
  RegionMap<Content> sum(of(0).send.rows, of(0).send.cols, Content{});
  for (std::size_t i = 0; i < world; ++i)
    for (const Part& part : sent[i])
      sum.visit(part.cell, [&](const Rect& cell, Content& total) {
        const Content& c = part.content;
        const bool undefined = c.of == Content::Of::nothing || (i > 0 && total.of == Content::Of::nothing);
        if (i == 0 || undefined) {
          total = undefined ? Content{} : c;  // padding may be anything, as long as nobody uses it
        } else if (!addable(total, c)) {
          const Segment& s = schedule_.segments[segments[i]];
          fail_content(s, fmt::format("sums {} ({}, row {}, column {}) with {}, row {}, column {}",
                                      rect_text(cell), content_text(c), cell.row + c.row, cell.col + c.col,
                                      content_text(total), cell.row + total.row, cell.col + total.col));
        } else {
          total.ranks |= c.ranks;
        }
      });
  for (std::size_t i = 0; i < world; ++i) {
    const bool scatter = kind == CollectiveKind::reducescatter;
    const std::int64_t rows = of(i).recv.rows, first = scatter ? static_cast<std::int64_t>(i) * rows : 0;
    sum.visit({first, rows, 0, of(i).send.cols},
              [&](const Rect& cell, Content& c) { deliver(i, cell.row - first, cell, c); });
  }
}

}  // namespace shingle
