#include "gemm.hpp"

#include <algorithm>

#include "shingle/plan/placement.hpp"
#include "vector.hpp"

namespace shingle::host {
namespace {

/// Min. rows a oneDNN call for reading and writing the matrices in place. Below it, oneDNN's own packing of
/// B, once a call, costs more than Shingle's packing of A and C. Measured GFLOP/s by rows a call: 64 rows 71,
/// 128 87, 256 95; a tile of two pieces of 128 rows is faster packed.
constexpr std::int64_t least_direct_rows = 256;
/// Max. size of a block: its fp32 product stays in the L2 cache.
constexpr std::int64_t block_rows = 512, block_cols = 512;

}  // namespace

GemmTask::GemmTask(const Plan& plan, const Gemm& step, const Memory& memory, Products& products,
                   std::uint32_t epoch, std::int64_t execution)
    : plan_(plan),
      step_(step),
      products_(products),
      out_(plan, memory, step.out, epoch),
      a_(memory.view(step.a, epoch)),
      b_(memory.view(step.b, epoch)),
      k_(step.transpose_a ? a_.rows : a_.cols),
      gate_cols_(step.grid.cols),
      execution_(execution),
      native_(multiplies_natively(a_.type)),
      swiglu_(step.epilogue.activation == Activation::swiglu) {
  if (step.epilogue.bias) bias_ = memory.view(step.bias, epoch);
  if (step.live.buffer >= 0) live_ = memory.view(step.live, epoch);
  for (const Placement& from : step.sums.from) parts_.emplace_back(plan, memory, from, epoch);
  for (const Placement& to : step.sums.to) sums_.emplace_back(plan, memory, to, epoch);
}

std::int64_t GemmTask::blocks(int workers) const {
  const TileGrid& grid = step_.grid;
  if (workers == 1 || grid.tiles() >= 4 * workers) return 1;
  return larger(ceil_div(smaller(grid.tile_rows, grid.rows), block_rows) *
                    ceil_div(smaller(grid.tile_cols, grid.cols), block_cols),
                1);
}

/// The tile at a position, without rows that have no token. Its gates have opened.
GemmTask::OutputTile GemmTask::tile_at(std::int64_t position) const {
  OutputTile tile{product_tile(step_, step_.grid.tile(position)), position, false, true, {&out_, 1}};
  if (!parts_.empty()) {
    tile.sum = tile.finishes = is_sum(step_, tile.rect.row);
    if (tile.sum) tile.to = sums_;
  }
  if (live_.data == nullptr || tile.group == nullptr) return tile;
  const std::int64_t element = tile.group->live;
  const auto* const count =
      reinterpret_cast<const std::int32_t*>(live_.at(element / live_.cols, element % live_.cols));
  tile.rect.rows = std::clamp<std::int64_t>(*count - tile.in_group, 0, tile.rect.rows);
  return tile;
}

void GemmTask::run(Worker& worker, std::int64_t position, std::int64_t block, std::int64_t blocks) const {
  const OutputTile tile = tile_at(position);
  Block part{0, 0, tile.rect.rows, tile.rect.cols};
  if (blocks > 1) {
    const std::int64_t across = ceil_div(smaller(step_.grid.tile_cols, step_.grid.cols), block_cols);
    part.row = smaller(block / across * block_rows, tile.rect.rows);
    part.col = smaller(block % across * block_cols, tile.rect.cols);
    part.rows = smaller(block_rows, tile.rect.rows - part.row);
    part.cols = smaller(block_cols, tile.rect.cols - part.col);
  }
  if (part.rows == 0 || part.cols == 0) return;
  find_segments(worker, tile, part);
  if (tile.sum) find_parts(worker, tile);
  if (direct(tile, worker.segments)) {
    run_direct(worker, tile, part);
  } else {
    run_blocked(worker, tile, part);
  }
  for (const Placed& at : tile.to) at.store_again(placed(tile), part, tile.first());
}

std::int64_t GemmTask::crossing(std::int64_t position) const {
  const OutputTile tile = tile_at(position);
  std::int64_t bytes = 0;
  for (const Placed& at : tile.to) bytes += at.crossing(placed(tile), step_.a.rank);
  return bytes;
}

/// Intersects the runs of A's rows with the pieces of the output. Drops phantom rows and rows without a
/// destination.
void GemmTask::find_segments(Worker& worker, const OutputTile& tile, const Block& block) const {
  auto& segments = worker.segments;
  segments.clear();
  const std::int64_t first = block.row, last = block.row + block.rows;
  tile.first().for_each_piece(placed(tile), [&](const Piece& piece) {
    const std::int64_t from = larger(piece.tile_row, first), to = smaller(piece.tile_row + piece.rows, last);
    if (from >= to) return;
    tile.for_each_a_run(step_, from, to - from, [&](const RowRun& run) {
      if (run.matrix_row < 0) return;
      const std::int64_t row = run.virtual_row - tile.rect.row;
      segments.push_back(
          {row, run.rows, run.matrix_row, piece.rank, piece.row + row - piece.tile_row, piece.col});
    });
  });
}

/// Looks up the rows of all parts, part by part.
void GemmTask::find_parts(Worker& worker, const OutputTile& tile) const {
  const auto rows = static_cast<std::size_t>(tile.rect.rows);
  worker.rows.resize(parts_.size() * rows);
  for (std::size_t i = 0; i < parts_.size(); ++i)
    parts_[i].locate(placed(tile), worker.rows.data() + i * rows);
}

bool GemmTask::direct(const OutputTile& tile, const std::vector<Segment>& segments) const {
  if ((tile.finishes && step_.epilogue.any()) || tile.sum) return false;
  if (!native_ || (tile.first().type != a_.type && tile.first().type != DType::f32)) return false;
  return segments.size() <= 1 ||
         std::ranges::all_of(segments, [](const Segment& s) { return s.rows >= least_direct_rows; });
}

void GemmTask::run_direct(Worker& worker, const OutputTile& tile, const Block& block) const {
  const Operand b = b_operand(worker, tile, tile.rect.col + block.col, block.cols, 0);
  for (const Segment& segment : worker.segments) {
    const Operand a = a_operand(worker, {&segment, 1}, segment.rows, tile);
    const View& out = tile.first().on(segment.out_rank);
    multiply(worker, a, b, segment.rows, block.cols, out.at(segment.out_row, segment.out_col + block.col),
             out.ld, out.type);
  }
}

void GemmTask::run_blocked(Worker& worker, const OutputTile& tile, const Block& block) const {
  // Batches hold block_rows rows. A segment that does not fit whole continues in the next batch.
  std::vector<Segment> batch;
  std::int64_t rows = 0;
  const auto flush = [&] {
    for (std::int64_t col = 0; col < block.cols && rows > 0; col += block_cols)
      run_scratch(worker, batch, tile, block.col + col, smaller(block_cols, block.cols - col));
    batch.clear();
    rows = 0;
  };
  for (Segment segment : worker.segments) {
    while (segment.rows > 0) {
      Segment part = segment;
      part.rows = smaller(segment.rows, block_rows - rows);
      batch.push_back(part);
      segment.tile_row += part.rows;
      segment.a_row += part.rows;
      segment.out_row += part.rows;
      segment.rows -= part.rows;
      if ((rows += part.rows) == block_rows) flush();
    }
  }
  flush();
}

void GemmTask::run_scratch(Worker& worker, std::span<const Segment> segments, const OutputTile& tile,
                           std::int64_t col, std::int64_t cols) const {
  std::int64_t rows = 0;
  for (const Segment& segment : segments) rows += segment.rows;
  const Operand a = a_operand(worker, segments, rows, tile);
  for (int which = 0; which < (swiglu_ ? 2 : 1); ++which) {
    const Operand b = b_operand(worker, tile, tile.rect.col + col + which * gate_cols_, cols, which);
    multiply(worker, a, b, rows, cols,
             reinterpret_cast<std::byte*>(worker.product[which].reserve<float>(rows * cols)), cols,
             DType::f32);
  }
  finish(worker, segments, tile, col, cols);
}

void GemmTask::multiply(Worker& worker, const Operand& a, const Operand& b, std::int64_t rows,
                        std::int64_t cols, std::byte* c, std::int64_t c_row, DType out) const {
  const Product& product = products_.get({.rows = rows,
                                          .cols = cols,
                                          .k = k_,
                                          .a_row = a.row,
                                          .a_col = a.col,
                                          .b_row = b.row,
                                          .b_col = b.col,
                                          .c_row = c_row,
                                          .in = native_ ? a_.type : DType::f32,
                                          .out = out});
  product.run(a.data, b.data, c, worker.onednn.reserve(static_cast<std::int64_t>(product.scratch_bytes())));
}

/// Adds parts, applies bias and activation, and rounds once: from the fp32 product in scratch to the pieces
/// of the output.
void GemmTask::finish(Worker& worker, std::span<const Segment> segments, const OutputTile& tile,
                      std::int64_t col, std::int64_t cols) const {
  const Epilogue epilogue = tile.finishes ? step_.epilogue : Epilogue{};
  float* bias = worker.vectors.reserve<float>(2 * cols);
  if (epilogue.bias)
    for (int which = 0; which < (swiglu_ ? 2 : 1); ++which)
      widen(bias_.type, bias_.at(0, tile.rect.col + col + which * gate_cols_), bias + which * cols, cols);
  float* x = worker.product[0].reserve<float>(0);
  float* up = swiglu_ ? worker.product[1].reserve<float>(0) : nullptr;
  for (const Segment& segment : segments) {
    const View& out = tile.first().on(segment.out_rank);
    for (std::int64_t i = 0; i < segment.rows; ++i, x += cols) {
      if (tile.sum) add_parts(worker, tile, segment.tile_row + i, col, x, cols);
      if (epilogue.bias) add(x, bias, cols);
      if (swiglu_) {
        if (epilogue.bias) add(up, bias + cols, cols);
        swiglu(x, up, cols);
        up += cols;
      } else {
        activate(epilogue.activation, x, cols);
      }
      narrow(out.type, x, out.at(segment.out_row + i, segment.out_col + col), cols);
    }
  }
}

/// Adds all parts of a row of the tile to `x`, in their order.
void GemmTask::add_parts(const Worker& worker, const OutputTile& tile, std::int64_t row, std::int64_t col,
                         float* x, std::int64_t cols) const {
  const std::byte* const* found = worker.rows.data() + row;
  for (const Placed& part : parts_) {
    if (*found != nullptr)
      widen_add(part.type, *found + col * static_cast<std::int64_t>(size_bytes(part.type)), x, cols);
    found += tile.rect.rows;
  }
}

}  // namespace shingle::host
