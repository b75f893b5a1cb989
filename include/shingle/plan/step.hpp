// The steps of a plan: what a lane does, one after another.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "shingle/base/collective_config.hpp"
#include "shingle/grid/row_map.hpp"
#include "shingle/grid/tile_grid.hpp"
#include "shingle/plan/hooks.hpp"
#include "shingle/plan/workload.hpp"

namespace shingle {

/// Consecutive rows of a grouped product that are multiplied by the same weight.
struct RowGroup {
  std::int64_t a_row = 0;   ///< first row in A
  std::int64_t row = 0;     ///< first row for the placement of the output
  std::int64_t rows = 0;    ///< may be 0
  std::int32_t weight = 0;  ///< which of the weights that B stacks
  /// Element of Gemm::live, row-major, that says how many of the rows have a token: the first ones. -1: all.
  std::int32_t live = -1;
  bool operator==(const RowGroup&) const = default;
};

/// Sums of a product's own tiles with the parts of other ranks. Own tiles are those whose first row
/// `Gemm::out`, an Owners, would store on the step's rank. Parts are added to the tile's product, which stays
/// in fp32, in the order of `from`. The sum passes the epilogue and is rounded once.
struct TileSums {
  std::vector<Placement> from{};  ///< parts; empty: no tile is a sum
  /// Where sums are stored: in each of these places. So a rank can keep its sums in a matrix that peers
  /// cannot reach, and store them to memory of the peers.
  std::vector<Placement> to{};

  bool operator==(const TileSums&) const = default;
};

/// Tiled product. Virtual row v of the grid is row a_rows(v) of op(A). Columns of the grid are columns of
/// op(B), or output columns of [gate | up] for swiglu.
///
/// With `groups` it is a grouped product: B stacks weights of equal shape, one below the other. Virtual rows
/// are those of the groups in their order. Each group is padded to a multiple of `group_tiles` whole tiles,
/// so that no tile, and no cluster of so many tiles, has rows of two groups. The last tile may have no rows.
struct Gemm {
  TileGrid grid;
  Slice a;                         ///< as stored: m×k, or k×m with transpose_a
  Slice b;                         ///< as stored: k×n, or n×k with transpose_b; grouped: some of them
  RowMap a_rows;                   ///< not used if there are groups
  std::vector<RowGroup> groups{};  ///< empty: one weight
  std::int32_t group_tiles = 1;
  /// i32, in the memory of the step's rank: counts of rows that have a token. Read once a tile's gates have
  /// opened. Rows beyond a group's count are not stored, and tiles of such rows do nothing but notify. Buffer
  /// -1: all rows count.
  Slice live{};
  bool transpose_a = false;
  bool transpose_b = false;
  Epilogue epilogue;  ///< with `sums`: of the sums only
  Slice bias;         ///< 1×n; used if epilogue.bias
  Placement out;
  TileSums sums{};
  std::vector<TileGate> gates;
  std::vector<TileNotify> notify;
  Resources resources{1, 0};
  /// The computation of a workload that the product stands for, with as many multiply-adds. The simulator
  /// prices that computation.
  ComputationKind stands_for = ComputationKind::product;
  bool operator==(const Gemm&) const = default;
};

/// True if a tile whose first virtual row is `row` is a sum.
bool is_sum(const Gemm& gemm, std::int64_t row);
/// The places where a tile whose first virtual row is `row` is stored.
inline std::span<const Placement> stored_at(const Gemm& gemm, std::int64_t row) {
  if (is_sum(gemm, row)) return gemm.sums.to;
  return {&gemm.out, 1};
}

/// Columns of op(B): those of the grid, or of gate and up for swiglu.
inline std::int64_t weight_cols(const Gemm& gemm) {
  return (gemm.epilogue.activation == Activation::swiglu ? 2 : 1) * gemm.grid.cols;
}

/// Tiled pass over a matrix: reorder, sum, epilogue, norm. Sources are summed in their order in fp32 and
/// rounded once. With `factors` each row of a source is first multiplied by a factor.
///
/// The items of a pass are tiles, by position. A row-wise pass (norm, swiglu) needs complete rows: its items
/// are rows of tiles, by m-index. It reads `from` for every tile of the row. It reads or writes `to`,
/// `residual` and `sum` only for the tile of column 0; their pieces are as wide as the output. A row-wise
/// pass has gates and tile notifies only if the grid has one column of tiles, in order.
struct Elementwise {
  TileGrid grid;
  std::int64_t first = 0;   ///< first item of the step; the step does items [first, first + count)
  std::int64_t count = -1;  ///< number of items; -1: up to the last
  std::vector<Placement> from;
  Slice factors{};  ///< a row for each row of the grid, a column for each source. Buffer -1: none
  Placement to;
  Epilogue epilogue;
  Slice bias;
  Norm norm;
  Slice norm_weight;   ///< 1×n
  Placement residual;  ///< if norm.residual: the residual to add
  Placement sum;       ///< if norm.residual: destination of x + residual
  std::vector<TileGate> gates;
  std::vector<TileNotify> notify;
  Resources resources{1, 0};
  /// Work queue that lanes share. Steps of one rank with the same queue number, one in each lane, are one
  /// pass. Each item is done once an epoch, by the lane that claims it. Steps behind it in a lane must await
  /// the items' notifies, because the lane itself does not know which items are done. -1: not shared.
  std::int32_t queue = -1;
  bool operator==(const Elementwise&) const = default;
};

/// True if the items of the step are rows of tiles.
inline bool row_wise(const Elementwise& step) {
  return step.norm.enabled || step.epilogue.activation == Activation::swiglu;
}

/// Columns that the step stores.
inline std::int64_t out_cols(const Elementwise& step) {
  return step.epilogue.activation == Activation::swiglu ? step.grid.cols / 2 : step.grid.cols;
}

/// End of the step's items, exclusive.
inline std::int64_t last_item(const Elementwise& step) {
  const std::int64_t items = row_wise(step) ? step.grid.tiles_m() : step.grid.positions();
  return step.count < 0 ? items : step.first + step.count;
}

/// Tiled attention for some of a rank's tokens, as Problem::attention defines it. Rows of the grid are
/// consecutive queries, columns are those of the heads in `q`. An item is a tile of head_dim columns: a block
/// of queries of one head. It reads only the K and V rows that its queries see, and accumulates in fp32.
///
/// Every query sees at least one of the keys. If a query sees other keys too, the result is a part of its
/// attention: the step must store the log-sum-exp in an internal buffer, and a Merge combines the parts. A
/// log-sum-exp in the user's buffer (Role::out_lse) is that of a complete attention.
struct Attend {
  TileGrid grid;
  std::int64_t first_token = 0;  ///< first token of the queries
  Slice q;                       ///< one row for each query of the grid
  std::int64_t first_key = 0;    ///< first token of the keys
  Slice keys;                    ///< one row for each of some consecutive tokens
  Slice values;                  ///< as `keys`
  Placement out;
  /// f32, a row for each query and a column for each head: log Σ exp(scaled scores). Buffer -1: not stored.
  Slice lse{};
  std::vector<TileGate> gates;
  std::vector<TileNotify> notify;
  Resources resources{1, 0};
  bool operator==(const Attend&) const = default;
};

/// Merges parts of an attention, each of the same queries with other keys: Σ exp(lse_i − lse) · value_i,
/// where lse = log Σ exp(lse_i). It works in fp32 in the order of the parts, and rounds once. Rows of the
/// grid are queries, columns are those of heads. An item is a tile.
struct Merge {
  /// Rows [row, row + value.rows) of the grid. Other rows see none of the part's keys.
  struct Part {
    std::int64_t row = 0;
    Slice value;
    Slice lse;  ///< as Attend::lse
    bool operator==(const Part&) const = default;
  };
  TileGrid grid;
  std::vector<Part> parts;  ///< every row has at least one
  Placement to;             ///< may be the place of a part
  /// Log-sum-exp of the result. In an internal buffer: the result is a part again; may be the place of a
  /// part's. In the user's buffer, or buffer -1 (not stored): the result is complete.
  Slice lse{};
  std::vector<TileGate> gates;
  std::vector<TileNotify> notify;
  Resources resources{1, 0};
  bool operator==(const Merge&) const = default;
};

/// Tiled backward of attention: parts of the gradients of a rank's queries, and of some keys and values, by
/// each other (see Attention of plan/problem.hpp). Rows of the grid are consecutive queries, columns are
/// those of the heads in `q`. An item is all queries of the heads that share one head of K and V. It
/// accumulates in fp32 and rounds each part once.
///
/// Every query sees at least one of the keys, and each of the keys is seen by at least one query.
struct AttendBackward {
  TileGrid grid;
  std::int64_t first_token = 0;  ///< first token of the queries
  Slice q;                       ///< one row for each query of the grid
  Slice grad;                    ///< as `q`: gradient of the attention's result
  Slice attended;                ///< as `q`: the result of the attention to all keys
  Slice lse;                     ///< of the attention to all keys, as Attend::lse
  std::int64_t first_key = 0;    ///< first token of the keys
  Slice keys;                    ///< one row for each of some consecutive tokens
  Slice values;                  ///< as `keys`
  Slice q_grad;                  ///< as `q`: part of the gradient of Q by these keys
  Slice keys_grad;               ///< as `keys`: part of the gradient of K by these queries
  Slice values_grad;             ///< as `keys`: part of the gradient of V by these queries
  std::vector<TileGate> gates;
  std::vector<TileNotify> notify;
  Resources resources{1, 0};
  bool operator==(const AttendBackward&) const = default;
};

struct Await {
  CounterRef counter;  ///< on the step's own rank; a copy lane may await any rank's
  std::uint32_t target = 0;
  bool operator==(const Await&) const = default;
};

struct Notify {
  CounterRef counter;
  std::uint32_t value = 1;  ///< added; for a `set` counter: the value within the epoch
  bool operator==(const Notify&) const = default;
};

/// Stores zeros.
struct Fill {
  Slice slice;
  bool operator==(const Fill&) const = default;
};

/// A collective of all ranks of a communicator, with the contract of NCCL and MPI. Equal counts on every rank
/// except for alltoall. allreduce: send and recv equal or disjoint, the same shape. reducescatter: part i of
/// `send` (equal parts by rows) summed over ranks to rank i's `recv`. allgather: `send` of rank i to part i
/// of `recv`. alltoall: consecutive rows of `send`, send_rows[i] of them to rank i; `recv` takes recv_rows[i]
/// from rank i. Slices are whole rows of their buffers, so that they are contiguous. `resources.most` is the
/// max. number of CTAs that NCCL may use; 0: NCCL chooses. `resources.least` = 0 reserves no worker: the host
/// runs the collective on other threads, and GPUs refuse the plan if gated steps may hold all SMs. So for an
/// Exchange.
struct Collective {
  CollectiveKind kind = CollectiveKind::allreduce;
  std::int32_t communicator = 0;
  Slice send;
  Slice recv;
  std::vector<std::int64_t> send_rows;
  std::vector<std::int64_t> recv_rows;
  Resources resources;
  /// Settings that predictions assume. Execution passes only `resources.most` to NCCL. A tuner plugin or
  /// environment variables give NCCL the other settings (docs/backends/nccl-tuner.md).
  CollectiveConfig config{};
  bool operator==(const Collective&) const = default;
};

/// Sends and receives that progress together. The i-th message from rank a to rank b matches the i-th receive
/// that b posts from a.
struct Exchange {
  struct Message {
    std::int32_t peer = 0;
    Slice slice;
    bool operator==(const Message&) const = default;
  };
  std::int32_t communicator = 0;
  std::vector<Message> sends;
  std::vector<Message> receives;
  Resources resources;
  bool operator==(const Exchange&) const = default;
};

/// Commands of a copy engine. Copy and Broadcast move one source to one or two destinations of the same
/// shape. Swap exchanges two slices in place.
struct Copy {
  Slice from;
  Slice to;
  bool operator==(const Copy&) const = default;
};
struct Broadcast {
  Slice from;
  Slice to[2];
  bool operator==(const Broadcast&) const = default;
};
struct Swap {
  Slice a;
  Slice b;
  bool operator==(const Swap&) const = default;
};

/// Gives the choices of a rank's tokens slots, as Experts says. All slices are i32, in the memory of the
/// step's rank. Tokens beyond those of the call's matrices choose nothing, and do not exist for the rank.
struct AssignSlots {
  Slice ids;      ///< of the user: a row for each token, a column for each choice
  Slice row_of;   ///< a row for each slot: its token, or -1
  Slice slot_of;  ///< as `ids`: slot of the choice, -1 without one; -2 for tokens that do not exist
  Slice counts;   ///< an element for each expert, row-major: its slots that have a token, which are the first
  Slice dropped;  ///< 1×2: choices that found no slot; ids that are neither an expert nor -1
  Resources resources{1, 0};
  bool operator==(const AssignSlots&) const = default;
};

/// Merges the slots of all ranks for tensor-parallel experts: the slots of an expert that have a token follow
/// each other over all ranks. Expert e has world · capacity merged slots, slot e · world · capacity and those
/// behind it: first those with a token of rank 0, then of rank 1, …. So no tile of its product needs rows of
/// one rank only.
///
/// All slices are i32, in the memory of the step's rank. Rows by expert are those of Experts. Outputs may be
/// left out (buffer -1), and share no buffer with each other or with inputs.
struct MergeSlots {
  std::int32_t capacity = 0;  ///< slots that a rank has for each expert
  Slice counts;               ///< AssignSlots::counts of the ranks, a row each
  Slice slot_of;              ///< AssignSlots::slot_of of the ranks, one below the other
  Slice live;                 ///< 1 × experts: merged slots that have a token
  Slice merged_of{};          ///< as `slot_of`: merged slot of the choice; -1 and -2 as there
  Slice token_of{};  ///< a row for each merged slot: its token, rank · m + token of the rank; -1: none
  Slice row_of{};    ///< a row for each merged slot: its row by expert; -1: it has no token
  Slice slot_at{};   ///< a row for each row by expert: its merged slot; -1: it has no token
  Resources resources{1, 0};
  bool operator==(const MergeSlots&) const = default;
};

/// What the step stores: its outputs that are not left out.
std::vector<const Slice*> outputs_of(const MergeSlots& step);

using Step = std::variant<Gemm, Elementwise, Await, Notify, Fill, Collective, Exchange, Copy, Broadcast, Swap,
                          Attend, Merge, AttendBackward, AssignSlots, MergeSlots>;

/// "gemm", "permute", "reduce", "push", "await", …: the name of an elementwise step says what it does.
std::string_view name(const Step& step);

/// True for commands of a copy engine: on a copy lane they are unordered between two notifies.
bool is_command(const Step& step);

}  // namespace shingle
