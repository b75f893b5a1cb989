// One execution of a Gemm step: products of tiles, from the rows of A that the row map selects to the pieces
// of the output.
//
// If a tile's rows are contiguous and nothing follows the product, oneDNN reads and writes the matrices in
// place. Otherwise blocks of the tile go through scratch. Rows of A are packed, and widened if oneDNN lacks
// the type. The product is kept in fp32, passes the epilogue and is rounded once into its pieces. To a tile
// that is a sum, parts are added before the epilogue.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "host/executor/memory.hpp"
#include "host/executor/worker.hpp"
#include "placed.hpp"
#include "products.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::host {

class GemmTask {
 public:
  /// `execution` is unique to this task, so that workers know which task their cached panels belong to.
  GemmTask(const Plan& plan, const Gemm& step, const Memory& memory, Products& products, std::uint32_t epoch,
           std::int64_t execution);

  /// Number of blocks to cut every tile into, so that `workers` threads have work.
  std::int64_t blocks(int workers) const;
  /// Computes one of `blocks` blocks of the tile at `position`, which is not phantom.
  void run(Worker& worker, std::int64_t position, std::int64_t block, std::int64_t blocks) const;
  /// Bytes of the tile at `position` that are stored on ranks other than the computing one.
  std::int64_t crossing(std::int64_t position) const;

 private:
  /// Part of a tile, in elements from its corner.
  using Block = TileRect;
  struct Operand {
    const std::byte* data;
    std::int64_t row, col;  // strides, in elements
  };

  /// A tile, and how it ends.
  struct OutputTile : ProductTile {
    std::int64_t position;
    bool sum;       ///< parts are added to the product
    bool finishes;  ///< the epilogue applies
    /// Where it is stored: computed in the first place, and copied from there to the others.
    std::span<const Placed> to;

    const Placed& first() const { return to.front(); }
  };

  OutputTile tile_at(std::int64_t position) const;
  PlacedTile placed(const OutputTile& tile) const {
    return {step_.grid, plan_.routing(), tile.position, tile.rect};
  }
  void find_segments(Worker& worker, const OutputTile& tile, const Block& block) const;
  void find_parts(Worker& worker, const OutputTile& tile) const;
  bool direct(const OutputTile& tile, const std::vector<Segment>& segments) const;
  void run_direct(Worker& worker, const OutputTile& tile, const Block& block) const;
  void run_blocked(Worker& worker, const OutputTile& tile, const Block& block) const;
  void run_scratch(Worker& worker, std::span<const Segment> segments, const OutputTile& tile,
                   std::int64_t col, std::int64_t cols) const;
  Operand a_operand(Worker& worker, std::span<const Segment> segments, std::int64_t rows,
                    const ProductTile& tile) const;
  Operand b_operand(Worker& worker, const ProductTile& tile, std::int64_t col, std::int64_t cols,
                    int which) const;
  void add_parts(const Worker& worker, const OutputTile& tile, std::int64_t row, std::int64_t col, float* x,
                 std::int64_t cols) const;
  void multiply(Worker& worker, const Operand& a, const Operand& b, std::int64_t rows, std::int64_t cols,
                std::byte* c, std::int64_t c_row, DType out) const;
  void finish(Worker& worker, std::span<const Segment> segments, const OutputTile& tile, std::int64_t col,
              std::int64_t cols) const;

  const Plan& plan_;
  const Gemm& step_;
  Products& products_;
  Placed out_;
  std::vector<Placed> sums_;   ///< where sums are stored
  std::vector<Placed> parts_;  ///< that sums add
  View a_, b_, bias_, live_;
  std::int64_t k_, gate_cols_;
  std::int64_t execution_;
  bool native_, swiglu_;
};

}  // namespace shingle::host
