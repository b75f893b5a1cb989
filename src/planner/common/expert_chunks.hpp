// Experts whose rows travel in chunks: what `chunked` multiplies chunk by chunk, and `signal` in one product.
#pragma once

#include <memory>
#include <vector>

#include "builder.hpp"

namespace shingle::planner {

/// The rows of all ranks in chunks, the buffers that hold them, and the steps that move them. Tokens go from
/// `tokens` to `tokens` of the ranks of their experts, and products from `products` back to `products`.
class ExpertChunks {
 public:
  /// Consecutive rows of a chunk that a rank multiplies by one weight.
  struct Rows {
    std::int64_t token = 0;      ///< first row in `tokens`
    std::int64_t product = 0;    ///< first row in `products`
    std::int64_t by_expert = 0;  ///< first row among the user's rows by expert
    std::int64_t rows = 0;
    std::int32_t weight = 0;
    std::int32_t live = -1;  ///< RowGroup::live
  };
  virtual ~ExpertChunks() = default;

  virtual std::int64_t chunks() const = 0;
  virtual std::vector<Rows> rows(int rank, std::int64_t chunk) const = 0;
  /// Appends the steps after which the communicate lane may send a rank's tokens. Without tokens to send, the
  /// rank may multiply.
  virtual void begin(int rank) const = 0;
  /// Appends the transfer of a chunk's tokens, or of its products, to the communicate lane.
  virtual void send(int rank, std::int64_t chunk) const = 0;
  virtual void give_back(int rank, std::int64_t chunk) const = 0;
  /// The pass that sums the choices of a rank's tokens.
  virtual Elementwise combine(int rank) const = 0;
  /// Appends what follows a rank's products.
  virtual void finish(int rank) const = 0;
  /// Counts of the rows of Rows::live. No buffer: all rows count.
  virtual Slice live(int rank) const = 0;

  /// Rows of the largest chunk of each rank.
  std::vector<std::int64_t> most_rows() const;

  std::int32_t tokens = -1, products = -1;  ///< buffers

 protected:
  explicit ExpertChunks(Builder& build) : build_(build) {}
  Builder& build_;
};

/// Chunks that have about these shares of each rank's tiles. There may be fewer, if there are few tiles.
/// `tile`: of the products.
std::unique_ptr<ExpertChunks> expert_chunks(Builder& build, const Machine& machine, const TileParams& tile,
                                            const std::vector<std::int64_t>& shares);

/// The products of some chunks' rows, without hooks. The first takes tokens, the last gives products, and one
/// alone has the user's rows by expert on the other side. `hidden`: the buffer between two; -1: none.
struct ExpertProducts {
  std::vector<Gemm> gemms;                  ///< one or two, in their order
  std::vector<std::int32_t> chunk_of_rows;  ///< by group of each product
};
ExpertProducts expert_products(const Builder& build, const ExpertChunks& chunks, const Machine& machine,
                               const TileParams& tile, int rank, std::int64_t first_chunk,
                               std::int64_t end_chunk, std::int32_t hidden);

}  // namespace shingle::planner
