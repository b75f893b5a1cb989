// Experts in chunks: which rows of which experts a chunk has, and where all-to-alls take them.
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle::planner {

/// Cuts the rows that each rank receives into chunks by shares of its tiles, expert by expert. The rows
/// of an expert from one source are cut between blocks of whole tiles only, so cuts add no padding. A rank's
/// own rows of an expert come first, because they need no link.
///
/// Each chunk is an all-to-all there, and one back. Packed rows of a source lie by chunk, then by expert.
/// Rows that a rank receives lie by chunk, then by source, then by expert.
class ExpertCut {
 public:
  /// Rows [first, first + rows) of those from a source to an expert, consecutive on both ranks.
  struct Run {
    int source = 0;
    int expert = 0;
    std::int64_t first = 0;
    std::int64_t rows = 0;
    std::int64_t packed = 0;   ///< first row on the source
    std::int64_t arrived = 0;  ///< first row on the expert's rank
  };
  /// Rows of a chunk that a rank sends or receives, by peer, and the first of them.
  struct Share {
    std::int64_t first = 0;
    std::vector<std::int64_t> rows;
    std::int64_t total() const;
  };

  /// `tiles` is the number of tiles in a block, of `tile_rows` rows each. There is a chunk for each share,
  /// and at most one for each block of the rank that has most.
  ExpertCut(const Routing& routing, std::int64_t tile_rows, std::int64_t tiles,
            std::vector<std::int64_t> shares);

  std::int64_t chunks() const { return static_cast<std::int64_t>(runs_.front().size()); }
  /// The rows of a rank's chunk, by expert; one run for each expert and source. Empty runs are left out.
  const std::vector<Run>& runs(int rank, std::int64_t chunk) const { return at(runs_, rank, chunk); }
  const Share& sent(int rank, std::int64_t chunk) const { return at(sent_, rank, chunk); }
  const Share& received(int rank, std::int64_t chunk) const { return at(received_, rank, chunk); }

  /// True if the rows of a source to an expert lie in several chunks. A pass over packed rows then needs
  /// tiles of single rows.
  bool splits(int source) const { return !begins_[static_cast<std::size_t>(source)].empty(); }
  /// Placement of the routed rows of a source from `first` on, those of a grid, in a slice of packed rows.
  Placement packed(int source, std::int64_t first, const TileGrid& grid, const Slice& slice) const;

 private:
  template <class T>
  static const T& at(const std::vector<std::vector<T>>& all, int rank, std::int64_t chunk) {
    return all[static_cast<std::size_t>(rank)][static_cast<std::size_t>(chunk)];
  }
  /// Units of all rows that a rank receives, if those of an expert from one source are rounded up to whole
  /// units of `rows` rows.
  std::int64_t units(int rank, std::int64_t rows) const;
  void cut(int rank, std::int64_t tile_rows, std::int64_t block_rows,
           const std::vector<std::int64_t>& shares);
  void lay_out();
  void find_begins(int source);
  /// Place of a row that is number `index` of those from a source to an expert.
  std::int64_t packed_row(int source, int expert, std::int64_t index) const;

  const Routing& routing_;
  int world_, per_rank_;
  std::vector<std::vector<std::vector<Run>>> runs_;       // [rank][chunk]
  std::vector<std::vector<Share>> sent_, received_;       // [rank][chunk]
  std::vector<std::vector<std::vector<Run>>> of_expert_;  // [source][expert]: runs in order
  std::vector<std::vector<std::int64_t>> begins_;         // [source]: routed rows that begin a later run
};

}  // namespace shingle::planner
