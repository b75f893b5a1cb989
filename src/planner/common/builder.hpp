// Builder of plans, shared by all planners: user buffers, lanes, counters and the issue order.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "row_split.hpp"
#include "shingle/plan/rounding.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle::planner {

inline constexpr std::int32_t compute_lane = 0;
inline constexpr std::int32_t communicate_lane = 1;
/// Max number of chunks or groups of a plan: each is a few steps on every rank.
inline constexpr std::size_t max_slices = 1 << 14;

/// The machine with this number of collective workers, if it is given.
Machine with_comm_workers(Machine machine, std::int32_t comm_workers);

/// Rows and columns of a tile.
struct TileSize {
  std::int32_t rows = 1;
  std::int32_t cols = 1;
  /// The tile, reduced to the size of a matrix. Each side is at least 1, also for an empty matrix.
  TileSize within(std::int64_t matrix_rows, std::int64_t matrix_cols) const;
};
/// The machine for a product with an epilogue. A tile of swiglu's output needs a tile of gates and one of
/// ups, so its tiles are half as wide.
Machine with_tiles_of(const Epilogue& epilogue, const Machine& machine);
/// Tile of a GEMM: from the params, else from the machine.
TileSize tile_size(const Machine& machine, const TileParams& params);

/// Rows of a tile of complete rows: few enough that each worker has two tiles, if that is possible.
std::int32_t row_block_height(std::int64_t rows, std::int32_t workers);

/// True if the result needs a last pass over complete rows: a norm, or swiglu after a reduction.
bool row_wise_finishing(const Problem& problem);

/// Builds one plan. Declare buffers and counters first. Then append steps in an order in which they could be
/// issued one by one.
class Builder {
 public:
  Builder(const Problem& problem, const Machine& machine, const Params& params);
  /// For a workload: has no problem(), and none of the functions that plan by it.
  Builder(const Workload& workload, const Machine& machine, const Params& params);

  std::int32_t a = -1, out = -1;  ///< user buffers; -1 if there is none
  std::int32_t b = -1, bias = -1, residual = -1, norm_weight = -1, sum = -1, keys = -1, values = -1,
               down = -1, topk_weights = -1, payload = -1, out_lse = -1;
  std::int32_t topk_ids = -1, dropped = -1, counts = -1;  ///< of experts with a capacity
  /// attention-backward.
  std::int32_t grad = -1, attended = -1, lse = -1, keys_grad = -1, values_grad = -1;

  /// Adds a lane to a rank, besides the two of all mechanisms. finish() drops lanes that stay empty.
  std::int32_t lane(int rank, LaneKind kind, std::string name);
  /// The compute lane of a rank's helpers; all helpers of a rank share it.
  std::int32_t helper_lane(int rank, const std::string& name);
  /// The lane of a rank's copy engine `number`, and how its commands get there. Steps appended to a lane that
  /// already has steps form a new batch.
  std::int32_t engine(int rank, std::size_t number, const Submission& submission);
  /// Makes the communicate lane of every rank a host thread.
  void communicate_by_host();
  /// Begins a new batch in a copy lane, unless it is prelaunched.
  void ring_doorbell(int rank, std::int32_t lane);
  /// An internal buffer of the user's dtype, with the same rows on every rank or with rows by rank.
  std::int32_t buffer(std::string name, std::int64_t rows, std::int64_t cols);
  std::int32_t buffer(std::string name, std::vector<std::int64_t> rows, std::int64_t cols);
  /// An internal buffer of another dtype.
  std::int32_t typed_buffer(std::string name, DType dtype, std::int64_t rows, std::int64_t cols);
  std::int32_t typed_buffer(std::string name, DType dtype, std::vector<std::int64_t> rows, std::int64_t cols);
  /// An internal buffer whose elements tell by themselves that they have arrived.
  std::int32_t flagged_buffer(std::string name, std::int64_t rows, std::int64_t cols);
  /// A counter table of `entries` counts; finish() computes its growth.
  std::int32_t counter(std::string name, std::int64_t entries, CounterKind kind = CounterKind::add);
  /// The counter "begun": entry p counts the epochs that rank p has begun. One a plan.
  std::int32_t counter_of_begins();
  /// A counter table of what arrives in flagged buffers, and with it.
  std::int32_t counter_of_arrivals(std::string name, std::int64_t entries);

  void step(int rank, std::int32_t lane, Step step);
  /// Appends a collective over the world.
  void collective(int rank, CollectiveKind kind, Slice send, Slice recv,
                  std::vector<std::int64_t> send_rows = {}, std::vector<std::int64_t> recv_rows = {});
  /// Appends messages to and from other ranks, in whole rows.
  void exchange(int rank, std::vector<Exchange::Message> sends, std::vector<Exchange::Message> receives);
  void notify(int rank, std::int32_t lane, std::int32_t counter, std::int64_t entry);
  /// As notify(), but adds on rank `peer`.
  void notify_peer(int rank, std::int32_t lane, std::int32_t counter, int peer, std::int64_t entry);
  void await(int rank, std::int32_t lane, std::int32_t counter, std::int64_t entry, std::uint32_t target = 1);

  Slice all(std::int32_t buffer, int rank) const { return whole(plan_, buffer, rank); }
  /// Whole rows [row, row + rows) of a buffer.
  Slice rows(std::int32_t buffer, int rank, std::int64_t row, std::int64_t rows) const;
  /// Where the user wants the log-sum-exp of rows [row, row + rows) of the output. Buffer -1: not wanted.
  Slice wanted_lse(int rank, std::int64_t row, std::int64_t rows) const;
  /// A placement of virtual row i at row i of the slice, up to the slice's rows.
  static Placement in_place(const Slice& slice);
  /// A placement that stacks tiles in the slice, in execution order.
  static Placement stacked(const Slice& slice);

  /// The GEMM of a rank without hooks: operands, transposes, epilogue and resources. The planner sets grid,
  /// a_rows and out. The epilogue is the problem's unless the ranks' products are summed first. Of two
  /// products this is the second; then the planner also sets `a`.
  Gemm gemm(int rank, const TileGrid& grid, const RowMap& a_rows, Placement out) const;
  /// The first of two products with its activation, without hooks. The planner sets the same fields as for
  /// gemm().
  Gemm up_gemm(int rank, const TileGrid& grid, const RowMap& a_rows, Placement out) const;
  /// A product with a weight for each group of rows of its A, in tiles of this size. A group's output lies
  /// at its row of the product's place. Of the product's grid only the columns count. Groups are padded to
  /// whole clusters of the order.
  Gemm grouped(Gemm product, std::vector<RowGroup> groups, TileSize tile, TileOrder order) const;
  /// Attention of the tokens in `q`, without hooks; `first` is the first of them. `k` and `v` hold all
  /// tokens.
  Attend attend(std::int64_t first, const Slice& q, const Slice& k, const Slice& v, const Slice& to) const;
  /// As above, for tokens [first, first + rows) of a rank that holds all of its heads.
  Attend attend(int rank, std::int64_t first, std::int64_t rows, const Slice& to) const;
  /// Where an AttendBackward step stores its parts of gradients.
  struct GradientParts {
    Slice q;     ///< a row for each query
    Slice keys;  ///< a row for each key
    Slice values;
  };
  /// Backward of the attention of own queries to keys and values of the tokens from `first_key` on, a row
  /// each, without hooks.
  AttendBackward attend_backward(int rank, const GlobalRun& queries, std::int64_t first_key, const Slice& k,
                                 const Slice& v, const GradientParts& to) const;
  /// A pass that copies a slice.
  Elementwise copy(const Slice& from, const Slice& to) const;
  /// The pass over a complete result, which it sums from `from`: norm, and the epilogue if ranks were summed.
  /// `residual` and `sum` have the layout of `to`.
  Elementwise finishing(int rank, const TileGrid& grid, std::vector<Placement> from, Placement to) const;

  /// Resources of a step that runs beside communication: leaves the collective workers free.
  Resources beside_communication() const { return {1, plan_.workers - collective_workers_}; }

  /// True if a complete result needs another pass: an epilogue after a reduction, or a norm.
  bool needs_finishing() const;
  bool row_wise_finishing() const;
  /// Columns that the GEMM stores (the second of two products): n if the epilogue comes later, else those of
  /// the output.
  std::int64_t product_cols() const;
  /// One tile over the whole matrix: a call of cuBLASLt or oneDNN.
  TileGrid one_tile(std::int64_t rows) const;
  TileGrid one_tile(std::int64_t rows, std::int64_t cols) const;
  /// Grid of a pass over complete rows. A tile fits the cache of a worker; few rows are cut into lower tiles,
  /// so that all workers have some.
  TileGrid row_blocks(std::int64_t rows, std::int64_t cols) const;

  const Problem& problem() const { return plan_.problem(); }
  bool of_workload() const { return plan_.workload() != nullptr; }
  std::int32_t workers() const { return plan_.workers; }
  std::int32_t collective_workers() const { return collective_workers_; }
  int world() const { return plan_.world(); }
  /// Number of planned ranks. In a symmetric plan the first ranks stand for all.
  int ranks() const { return static_cast<int>(plan_.ranks.size()); }

  /// Computes counter growth, adds to the rounding whether there is a last pass, and returns the plan.
  Plan finish(Rounding rounding) &&;

 private:
  Builder(Work work, std::int32_t collective_workers, const Machine& machine, const Params& params);
  std::int32_t user(Role role, std::vector<std::int64_t> rows, std::int64_t cols);
  std::int32_t collective_workers_;
  Plan plan_;
};

/// A builder with the params of one mechanism.
template <class P>
class ParamBuilder : public Builder {
 public:
  ParamBuilder(const Problem& problem, const Machine& machine, P params)
      : Builder(problem, machine, params), params_(std::move(params)) {}
  /// For a workload: `of_plan` are the params of its mechanism.
  ParamBuilder(const Workload& workload, const Machine& machine, const Params& of_plan, P params)
      : Builder(workload, machine, of_plan), params_(std::move(params)) {}
  const P& params() const { return params_; }

 private:
  P params_;
};

/// Reason why no mechanism serves a problem with these params, or nullopt.
std::optional<Reason> infeasible(const Problem& problem, const Machine& machine, const Params& params);
/// Reason why no plan has these params, or nullopt. The part of infeasible() that workloads share.
std::optional<Reason> wrong_params(const Params& params);
/// Reason why collectives that take `taken` workers leave none for computation, or nullopt.
std::optional<Reason> no_worker_left(const Machine& machine, std::int32_t taken);

/// Reason why there is nothing to overlap: no communication, or no computation.
std::optional<Reason> nothing_to_overlap(const Problem& problem);

/// Orders two lanes of a rank: `to` goes on after the steps of `from` so far.
void hand_over(Builder& build, int rank, std::int32_t counter, std::int32_t from, std::int32_t to);

/// The pass over a rank's `rows` complete rows from `from`, which it sums, to the output. It applies a sum's
/// epilogue or a norm.
void finish_rows(Builder& build, int rank, std::vector<Placement> from, std::int64_t rows);
/// The same pass from one buffer; it may only copy rows. Appends nothing if the buffer is the output.
void finish_rows(Builder& build, int rank, std::int32_t from, std::int64_t rows);

/// Rounding of the mechanisms that use collectives.
Rounding rounding(const Problem& problem);

}  // namespace shingle::planner
