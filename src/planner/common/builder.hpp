// What all planners share: user buffers, lanes, counters, and the order of issue.
#pragma once

#include <optional>
#include <string>

#include "shingle/plan/rounding.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle::planner {

inline constexpr std::int32_t compute_lane = 0;
inline constexpr std::int32_t communicate_lane = 1;
/// The most chunks or groups of a plan: each is a few steps on every rank.
inline constexpr std::size_t max_slices = 1 << 14;

/// The machine, of which collectives occupy what the params say, where they say it.
Machine with_comm_workers(Machine machine, const Params& params);

/// Rows and columns of a tile.
struct TileSize {
  std::int32_t rows = 1;
  std::int32_t cols = 1;
  /// No larger than a matrix, whose tiles have a row and a column also where it has none.
  TileSize within(std::int64_t matrix_rows, std::int64_t matrix_cols) const;
};
/// Of a tiled product: as the params say, else the machine.
TileSize tile_size(const Machine& machine, const Params& params);

/// Builds one plan: declare buffers and counters, then append steps in an order in which they could be issued
/// one by one.
class Builder {
 public:
  Builder(const Problem& problem, const Machine& machine, Mechanism mechanism, const Params& params);

  std::int32_t a, out;  ///< user buffers; those that the problem does not have are -1
  std::int32_t b = -1, bias = -1, residual = -1, norm_weight = -1, sum = -1, keys = -1, values = -1,
               down = -1, payload = -1;

  /// Another lane of a rank, beside the two that all mechanisms have; lanes that stay empty are dropped.
  std::int32_t lane(int rank, LaneKind kind, std::string name);
  /// The compute lane of the workers beside the main one; all that helps is in the same.
  std::int32_t helper_lane(int rank, const std::string& name);
  /// The lane of a rank's copy engine `number`, submitted as the params say. Steps that are appended to one
  /// that has some already are a new batch.
  std::int32_t engine(int rank, std::size_t number);
  /// What follows in a copy lane is a batch of its own, unless all is prelaunched.
  void ring_doorbell(int rank, std::int32_t lane);
  /// An internal buffer of the problem's dtype; the same rows on every rank, or by rank.
  std::int32_t buffer(std::string name, std::int64_t rows, std::int64_t cols);
  std::int32_t buffer(std::string name, std::vector<std::int64_t> rows, std::int64_t cols);
  /// The same with elements of its own.
  std::int32_t typed_buffer(std::string name, DType dtype, std::int64_t rows, std::int64_t cols);
  /// A counter table of `entries` counts; how much each grows is computed by finish().
  std::int32_t counter(std::string name, std::int64_t entries, CounterKind kind = CounterKind::add);

  void step(int rank, std::int32_t lane, Step step);
  /// A collective over the world.
  void collective(int rank, CollectiveKind kind, Slice send, Slice recv,
                  std::vector<std::int64_t> send_rows = {}, std::vector<std::int64_t> recv_rows = {});
  /// Messages to and from other ranks, in whole rows.
  void exchange(int rank, std::vector<Exchange::Message> sends, std::vector<Exchange::Message> receives);
  void notify(int rank, std::int32_t lane, std::int32_t counter, std::int64_t entry);
  /// The same on another rank.
  void notify_peer(int rank, std::int32_t lane, std::int32_t counter, int peer, std::int64_t entry);
  void await(int rank, std::int32_t lane, std::int32_t counter, std::int64_t entry, std::uint32_t target = 1);

  Slice all(std::int32_t buffer, int rank) const { return whole(plan_, buffer, rank); }
  /// Whole rows [row, row + rows) of a buffer.
  Slice rows(std::int32_t buffer, int rank, std::int64_t row, std::int64_t rows) const;
  /// Virtual row i at row i of the slice, up to the slice's rows.
  static Placement in_place(const Slice& slice);

  /// The GEMM of a rank without hooks: operands, transposes, resources; grid, a_rows and out are the
  /// planner's. The epilogue is the problem's unless ranks are summed first. Of two products it is the
  /// second, and `a` is the planner's too.
  Gemm gemm(int rank, const TileGrid& grid, const RowMap& a_rows, Placement out) const;
  /// The first of two products, activated, without hooks: as gemm().
  Gemm up_gemm(int rank, const TileGrid& grid, const RowMap& a_rows, Placement out) const;
  /// Attention of the tokens in `q`, the first of which is `first`, without hooks; `k` and `v` are of all
  /// tokens.
  Attend attend(std::int64_t first, const Slice& q, const Slice& k, const Slice& v, const Slice& to) const;
  /// The same of a rank's tokens [first, first + rows), of which it holds all heads that it attends with.
  Attend attend(int rank, std::int64_t first, std::int64_t rows, const Slice& to) const;
  /// What remains to be done with a complete result: norm, and the epilogue where ranks were summed; `to` is
  /// also where residual and second output are.
  Elementwise finishing(int rank, const TileGrid& grid, Placement from, Placement to) const;

  /// Workers of a step that communication may run beside: it leaves room for that.
  Resources beside_communication() const { return {1, plan_.workers - collective_workers_}; }

  /// Whether a complete result still needs a pass: an epilogue after a reduction, or a norm.
  bool needs_finishing() const;
  /// Whether it needs complete rows: a norm, or swiglu after a reduction.
  bool row_wise_finishing() const;
  /// Columns of what the GEMM stores (of two products the second): all n where the epilogue comes later, else
  /// the output's.
  std::int64_t product_cols() const;
  /// One tile over everything: what a library call is.
  TileGrid one_tile(std::int64_t rows) const;
  TileGrid one_tile(std::int64_t rows, std::int64_t cols) const;
  /// Grid for a pass over complete rows, a worker's cache at a time.
  TileGrid row_blocks(std::int64_t rows, std::int64_t cols) const;

  const Problem& problem() const { return plan_.problem; }
  const Params& params() const { return plan_.params; }
  /// Workers beside a fused GEMM.
  std::int32_t helpers() const { return larger(params().helpers, 0); }
  std::int32_t workers() const { return plan_.workers; }
  std::int32_t collective_workers() const { return collective_workers_; }
  int world() const { return plan_.problem.world; }
  /// Ranks that are planned: the first ones, where they stand for all.
  int ranks() const { return static_cast<int>(plan_.ranks.size()); }

  /// Computes counter growth, says of the rounding whether there is a last pass, and hands the plan over.
  Plan finish(Rounding rounding) &&;

 private:
  std::int32_t user(Role role, std::vector<std::int64_t> rows, std::int64_t cols);
  std::int32_t collective_workers_;
  Plan plan_;
};

/// What no mechanism serves, or nullopt.
std::optional<Reason> infeasible(const Problem& problem, const Machine& machine, const Params& params);

/// Why there is nothing to overlap: no communication, no computation, or a list of what overlaps already.
std::optional<Reason> nothing_to_overlap(const Problem& problem);

/// Lanes of a rank in turn: `from` has finished, `to` may go on.
void hand_over(Builder& build, int rank, std::int32_t counter, std::int32_t from, std::int32_t to);

/// The pass over a rank's `rows` complete rows of `from` into the output, where there is one to make: a sum's
/// epilogue or a norm, or rows that lie elsewhere than in the output.
void finish_rows(Builder& build, int rank, std::int32_t from, std::int64_t rows);

/// Where a mechanism that uses collectives rounds: the same for all of them.
Rounding rounding(const Problem& problem);

/// Chunk i of `count` as even as can be, in units of `unit`: first row (i = count: the end).
std::int64_t chunk_begin(std::int64_t rows, std::int64_t count, std::int64_t i, std::int64_t unit = 1);

/// Rows that there are of a shard of contiguous rows.
std::int64_t rows_of_shard(const Problem& problem, int shard);
/// Rows that there are in the slice [first, first + len) of all shards (of the problem's row order); the
/// rest, last in virtual order, is padding.
std::int64_t rows_in_slice(const Problem& problem, std::int64_t first, std::int64_t len);

/// Virtual rows in global order → rows of a buffer in which the shards (of the problem's row order) lie one
/// after the other, for `len` rows of each shard from `base` on, `len` rows apart.
RowMap sharded_rows(const Problem& problem, std::int64_t len, std::int64_t base = 0);

}  // namespace shingle::planner
