// One execution of a Gemm step: products of tiles, from the rows of A that the row map picks to the pieces of
// the output.
//
// Where a tile's rows lie together and nothing follows the product, oneDNN reads and writes the matrices
// themselves. Otherwise blocks of the tile go through scratch: rows of A are packed (and widened where oneDNN
// lacks the type), the product is kept in fp32, passes the epilogue and is rounded once into its pieces.
#pragma once

#include <cstdint>
#include <vector>

#include "host/executor/memory.hpp"
#include "host/executor/worker.hpp"
#include "products.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::host {

class GemmTask {
 public:
  /// `execution` differs from that of every other task, so that workers know whose panels they hold.
  GemmTask(const Plan& plan, const Gemm& step, const Memory& memory, Products& products, std::uint32_t epoch,
           std::int64_t execution);

  /// Blocks into which every tile is cut so that `workers` threads have something to do.
  std::int64_t blocks(int workers) const;
  /// Computes one of `blocks` blocks of the tile at a position that is not phantom.
  void run(Worker& worker, std::int64_t position, std::int64_t block, std::int64_t blocks) const;
  /// Bytes of the tile at a position that are stored on other ranks than the one that computes it.
  std::int64_t crossing(std::int64_t position) const;

 private:
  /// Part of a tile, in elements from its corner.
  using Block = TileRect;
  struct Operand {
    const std::byte* data;
    std::int64_t row, col;  // strides, in elements
  };

  void store_again(std::int64_t position, const Block& block) const;
  void find_segments(Worker& worker, std::int64_t position, const Block& block) const;
  bool direct(const std::vector<Segment>& segments) const;
  void run_direct(Worker& worker, const TileRect& tile, const Block& block) const;
  void run_blocked(Worker& worker, const TileRect& tile, const Block& block) const;
  void run_scratch(Worker& worker, std::span<const Segment> segments, const TileRect& tile, std::int64_t col,
                   std::int64_t cols) const;
  Operand a_operand(Worker& worker, std::span<const Segment> segments, std::int64_t rows,
                    const TileRect& tile) const;
  Operand b_operand(Worker& worker, std::int64_t col, std::int64_t cols, int which) const;
  void multiply(Worker& worker, const Operand& a, const Operand& b, std::int64_t rows, std::int64_t cols,
                std::byte* c, std::int64_t c_row, DType out) const;
  void finish(Worker& worker, std::span<const Segment> segments, const TileRect& tile, std::int64_t col,
              std::int64_t cols) const;

  const Plan& plan_;
  const Gemm& step_;
  Products& products_;
  Placement to_;  ///< step.out, of several ranks that get the same only the first
  View a_, b_, bias_;
  std::vector<View> outs_;  ///< by rank, where the output may lie there
  DType out_type_;
  std::int64_t k_, gate_cols_;
  std::int64_t execution_;
  bool native_, swiglu_;
};

}  // namespace shingle::host
