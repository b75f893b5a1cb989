// Rows that ranks store into each other's flagged memory (plan.hpp, Buffer::flagged).
#pragma once

#include <string>

#include "planner/common/builder.hpp"

namespace shingle::planner {

/// One exchange of rows between all ranks. Each rank has a slot for the rows of every rank, its own unused.
/// On each rank: begin(), then sends, then passes that read what has arrived, then end().
class Delivery {
 public:
  /// `rows`: of a slot. Declares the flagged buffer and its counts.
  Delivery(Builder& build, const std::string& name, std::int64_t rows, std::int64_t cols);

  /// Tells all other ranks that the rank takes part, whether or not it has rows for them.
  void begin(int rank) const;
  /// Stores rows into this rank's slot on each of these ranks. Appends nothing without rows.
  void send(int rank, const Slice& rows, std::vector<std::int32_t> to) const;
  /// Rows [0, rows) that arrive from a rank. The pass that reads them needs arrival().
  Placement slot(int rank, int from, std::int64_t rows) const;
  /// The gate of a pass over the first rows of a slot, on grid(rows).
  TileGate arrival(int from, std::int64_t rows) const;
  /// Waits until all other ranks take part.
  void end(int rank) const;
  /// Grid of a pass over complete rows: what sends count, and passes await.
  TileGrid grid(std::int64_t rows) const;

 private:
  Builder& build_;
  std::int64_t rows_, cols_;
  std::int32_t flagged_, arrived_, present_;
};

/// All other ranks.
std::vector<std::int32_t> others(const Builder& build, int rank);

}  // namespace shingle::planner
