// All-to-all in groups: layout of every rank's send and receive buffers (FlashOverlap §3.3.4, "subtokens").
#pragma once

#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle::planner {

/// Layout of grouped all-to-alls. Each rank cuts its own grid into the same number of groups; a group is one
/// alltoall. For each group, a send buffer holds one pool for each destination. A receive buffer holds the
/// rows of each source in the source's order.
class Pools {
 public:
  /// `grids[r]` covers rank r's rows; `ends[r]` holds the positions at which its groups end.
  Pools(const Routing& routing, std::vector<TileGrid> grids, std::vector<std::vector<std::int64_t>> ends);

  std::int64_t groups() const { return static_cast<std::int64_t>(ends_[0].size()); }
  const TileGrid& grid(int rank) const { return grids_[rank]; }
  const std::vector<std::int64_t>& ends(int rank) const { return ends_[rank]; }

  /// Total rows of a rank's send and receive buffer; a row is one tile wide.
  std::int64_t send_rows(int rank) const { return send_first_[rank].back(); }
  std::int64_t receive_rows(int rank) const { return receive_first_[rank].back(); }
  /// First row of a group; group = groups(): the end.
  std::int64_t send_first(int rank, std::int64_t group) const { return send_first_[rank][group]; }
  std::int64_t receive_first(int rank, std::int64_t group) const { return receive_first_[rank][group]; }
  /// Rows that `source` sends to each destination in a group, and rows that `dest` receives from each source.
  std::vector<std::int64_t> sent(int source, std::int64_t group) const;
  std::vector<std::int64_t> received(int dest, std::int64_t group) const;

  /// Placement of rank `source`'s tiles in its send buffer.
  Placement send(int source, const Slice& buffer) const;
  /// Placement of the tiles of `source` in the receive buffer of `dest`.
  Placement receive(int source, int dest, const Slice& buffer) const;

 private:
  std::int64_t rows(int source, int dest, std::int64_t group) const {
    return rows_[source][group * world_ + dest];
  }

  int world_;
  std::vector<TileGrid> grids_;
  std::vector<std::vector<std::int64_t>> ends_;
  std::vector<std::vector<std::int64_t>> rows_;  // [source][group · world + dest]
  std::vector<std::vector<std::int64_t>> send_first_, receive_first_;
};

/// The pass that sorts a rank's rows by destination.
Elementwise pack(const Routing& routing, int rank, const TileGrid& grid, Placement from, const Slice& to);

/// Placement of the rows from `source` in the output of `dest`.
Placement routed_rows(const Routing& routing, int source, int dest, const Slice& out);

}  // namespace shingle::planner
