// Plan: for every rank its lanes, for every lane its steps. A plan is data only (docs/concepts/plan.md).
//
// A planner writes plans, the verifier proves them, a backend executes them. Closed forms and small tables
// say which elements a step touches. Only `for_each_piece` (plan/placement.hpp) expands them to rectangles.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shingle/base/collective_config.hpp"
#include "shingle/grid/row_map.hpp"
#include "shingle/grid/tile_grid.hpp"
#include "shingle/plan/problem.hpp"
#include "shingle/plan/workload.hpp"

namespace shingle {

// ----------------------------------------------------------------------------------------------------------
// memory

/// What a buffer is to the user. The user binds every role except `internal`; the backend allocates that one.
enum class Role : std::uint8_t {
  a,
  b,
  bias,
  residual,
  norm_weight,
  keys,
  values,
  down,
  topk_weights,
  payload,
  grad,      ///< attention-backward: the gradient of the attention's result
  attended,  ///< attention-backward: the attention's result
  lse,       ///< attention-backward: its log-sum-exp, f32
  topk_ids,  ///< Experts::capacity: the experts of each token, i32
  out,       ///< attention-backward: the gradient of the queries
  sum,
  keys_grad,    ///< attention-backward: the gradient of the keys
  values_grad,  ///< attention-backward: the gradient of the values
  out_lse,      ///< allgather+attention with Attention::returns_lse: the log-sum-exp of the result, f32
  dropped,      ///< Experts::capacity: number of choices without a slot, and of ids that are no expert, i32
  counts,       ///< alltoall+grouped-gemm with a capacity: rows of each expert from each rank, i32
  internal
};
std::string_view name(Role role);
constexpr bool is_input(Role role) {
  return role < Role::out;
}
constexpr bool is_output(Role role) {
  return role >= Role::out && role < Role::internal;
}

/// Copies of a flagged buffer, which successive epochs take in turn: one to store to, one that peers may
/// still read, one that is cleared.
inline constexpr std::int32_t flagged_copies = 3;
/// Bytes of a plan's flagged buffers on a rank, in one copy: a context has room for them.
inline constexpr std::int64_t most_flagged_bytes = 8 << 20;

/// A row-major matrix in every rank's memory. Ranks may hold different numbers of rows, or none.
struct Buffer {
  std::string name;
  Role role = Role::internal;
  DType dtype = DType::f32;
  std::vector<std::int64_t> rows;  ///< by planned rank
  std::int64_t cols = 0;
  /// Copies that successive epochs take in turn: 1 or 2; user buffers: 1; flagged: flagged_copies.
  std::int32_t depth = 1;
  /// True: elements tell by themselves that they have arrived, in every 32-bit word. Their rank clears the
  /// copy of an epoch in the epoch behind it. So a peer may store before the rank has begun the epoch, and
  /// other calls of a context leave the buffer alone.
  bool flagged = false;

  std::int64_t bytes(int rank) const {
    return rows[static_cast<std::size_t>(rank)] * cols * static_cast<std::int64_t>(size_bytes(dtype)) * depth;
  }
  bool operator==(const Buffer&) const = default;
};

/// A rectangle of a buffer in one rank's memory.
struct Slice {
  std::int32_t buffer = -1;  ///< index into Plan::buffers
  std::int32_t rank = 0;     ///< the rank whose memory holds it
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t col = 0;
  std::int64_t cols = 0;

  bool operator==(const Slice&) const = default;
};

/// `add`: the count grows by the values that steps add. `set`: one writer sets the count to base + value;
/// copy engines need it, as they cannot add.
enum class CounterKind : std::uint8_t { add, set };

/// A table of 32-bit counts in every rank's memory. Counts only grow and are never reset; any rank may await
/// `>= target`. In epoch e a target t means e · growth + t.
struct Counter {
  std::string name;
  CounterKind kind = CounterKind::add;
  /// growth[planned rank][entry]: how much the entry grows in one epoch.
  std::vector<std::vector<std::uint32_t>> growth;
  /// True: entry p counts the epochs that rank p has begun. A peer may add while the rank that holds the
  /// count is still in the epoch before. In a context all plans share these counts; every other count is then
  /// zero between two calls of the rank that holds it.
  bool of_begins = false;
  /// True: counts tiles that arrive in flagged buffers, and words that ranks send each other with them. The
  /// data tell it, so an add orders only the tile that is stored with it. A peer may add while the rank that
  /// holds the count is still in the epoch before, in a context too.
  bool of_arrivals = false;

  bool operator==(const Counter&) const = default;
};

/// One count.
struct CounterRef {
  std::int32_t counter = -1;  ///< index into Plan::counters
  std::int32_t rank = 0;      ///< the rank whose memory holds it
  std::int32_t entry = 0;

  bool operator==(const CounterRef&) const = default;
};

// -----------------------------------------------------------------------------------------------------------
// hooks of a tiled step

/// How the rows of a tile map to a buffer: the `route` hook of a store, and the same map for a load. Tiles
/// form groups by their position in the grid's order; `ends` lists the position at which each group ends.
namespace placement {

/// Rows go through `rows`; columns stay.
struct Matrix {
  RowMap rows{};                      ///< virtual row of the grid → row of the slice
  std::vector<std::int32_t> ranks{};  ///< ranks that each hold the same rows; empty: slice.rank
  bool operator==(const Matrix&) const = default;
};

/// Tiles are stacked in execution order in one column, tile_cols wide.
struct Slots {
  std::vector<std::int64_t> ends{};   ///< used with `bases`
  std::vector<std::int64_t> bases{};  ///< by group: its first row; empty: no gaps between groups
  std::vector<std::int32_t> ranks{};  ///< ranks that each hold the same rows; empty: slice.rank
  bool operator==(const Slots&) const = default;
};

/// As Slots without bases, but each group holds rank 0's part of every tile first, then rank 1's, …
struct Subtiles {
  std::vector<std::int64_t> ends{};
  std::int32_t parts = 1;  ///< number of equal row parts of a tile
  bool operator==(const Subtiles&) const = default;
};

/// Each group has one pool for each destination. A pool holds runs of rows in execution order, tile_cols
/// wide.
struct Pools {
  std::vector<std::int64_t> ends{};
  std::int32_t source = -1;           ///< source rank of the rows, for the problem's routing
  std::int32_t dest = -1;             ///< destination of the rows; -1: all destinations
  std::vector<std::int64_t> bases{};  ///< first row of each pool, by group, then by destination
  std::int64_t first = 0;             ///< row v of the grid is row first + v of the source
  bool operator==(const Pools&) const = default;
};

/// Rows for `dest`, compacted: row i lies at the number of such rows before it. Columns stay.
struct Routed {
  std::int32_t source = -1;  ///< source rank of the rows, for the problem's routing
  std::int32_t dest = -1;    ///< destination of the rows; -1: every row lies on the rank of its destination
  std::vector<std::int64_t> bases{};  ///< first row, by destination; one entry if `dest` is given
  bool one_rank = false;              ///< with dest -1: only rows whose destination is of slice.rank
  bool operator==(const Routed&) const = default;
};

/// Rows that a rank received go back to their sources: row i of them lies on its source at its row there, as
/// the problem's routing counts them. Columns stay.
struct Returned {
  std::int32_t rank = -1;  ///< the rank that received the rows
  bool operator==(const Returned&) const = default;
};

/// Ranks share a matrix, `rows.stride` rows each: row R = rows(v) lies on rank R / stride at row R mod
/// stride. Columns stay.
struct Owners {
  RowMap rows{};  ///< virtual row of the grid → row of the shared matrix
  bool operator==(const Owners&) const = default;
};

/// Rows picked by an index, a number for each row of the grid: row v lies at row index(v) of the slice; -1:
/// nowhere. Only for loads of a pass that is not row-wise. A AssignSlots step makes the index, so pieces are
/// known at run time only.
struct Indexed {
  Slice index{};  ///< i32, one column, in the memory of the step's rank
  bool operator==(const Indexed&) const = default;
};

}  // namespace placement

/// Where a step loads or stores the rows of its tiles. A store may go to remote memory. It goes to one other
/// rank (slice.rank), to each of `ranks`, to every row's owner, to every row's destination (Routed with dest
/// -1), or back to every row's source (Returned). The slice then gives buffer, first row and columns on each
/// of these ranks.
struct Placement {
  using Form = std::variant<placement::Matrix, placement::Slots, placement::Subtiles, placement::Pools,
                            placement::Routed, placement::Owners, placement::Returned, placement::Indexed>;
  /// Names of the forms, by index.
  static constexpr std::string_view names[] = {"matrix", "slots",  "subtiles", "pools",
                                               "routed", "owners", "returned", "indexed"};
  static_assert(std::size(names) == std::variant_size_v<Form>);

  Slice slice{};
  Form form{};  ///< counts rows and columns from the slice's corner

  bool operator==(const Placement&) const = default;
};

/// Gate: before a tile's input is read, the step awaits one entry of a counter on its own rank. The tile's
/// position selects the group, and the group selects the entry. Phantom tiles await nothing.
struct TileGate {
  std::int32_t counter = -1;
  std::vector<std::int64_t> ends;       ///< position at which each group ends
  std::vector<std::uint32_t> targets;   ///< by group; 0: nothing to await
  std::vector<std::int32_t> entries{};  ///< by group; empty: group g awaits entry g
  /// True: of the input, only what the tile adds to its product (TileSums) awaits the gate.
  bool of_parts = false;

  std::int32_t entry(std::int64_t group) const {
    return entries.empty() ? static_cast<std::int32_t>(group) : entries[static_cast<std::size_t>(group)];
  }
  bool operator==(const TileGate&) const = default;
};

/// After a tile's output is visible, the step adds one to an entry of a counter on each of `ranks`. The
/// tile's group selects the entry. Phantom tiles add nothing.
struct TileNotify {
  std::int32_t counter = -1;
  std::vector<std::int32_t> ranks;
  std::vector<std::int64_t> ends;
  std::vector<std::int32_t> entries{};  ///< by group, -1: adds nothing; empty: group g adds to entry g
  std::vector<std::int32_t> owners{};   ///< by group: the one rank to add on; empty: all of `ranks`

  std::int32_t entry(std::int64_t group) const {
    return entries.empty() ? static_cast<std::int32_t>(group) : entries[static_cast<std::size_t>(group)];
  }
  /// Calls visit(rank) for every rank on which a group adds.
  template <class Visit>
  void for_each_rank(std::int64_t group, Visit&& visit) const {
    if (entry(group) < 0) return;
    if (!owners.empty()) return visit(owners[static_cast<std::size_t>(group)]);
    for (const std::int32_t rank : ranks) visit(rank);
  }
  bool operator==(const TileNotify&) const = default;
};

/// Workers (SMs or cores) of a step: it needs `least` to make progress and takes `most` at most (0: all free
/// ones). The residency proof counts a gated step with `most`, because the step keeps its workers while it
/// waits.
struct Resources {
  std::int32_t least = 0;
  std::int32_t most = 0;
  bool operator==(const Resources&) const = default;
};

// -----------------------------------------------------------------------------------------------------------
// steps

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
/// max. number of CTAs that NCCL may use; 0: NCCL chooses.
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

using Step = std::variant<Gemm, Elementwise, Await, Notify, Fill, Collective, Exchange, Copy, Broadcast, Swap,
                          Attend, Merge, AttendBackward, AssignSlots>;

/// "gemm", "permute", "reduce", "push", "await", …: the name of an elementwise step says what it does.
std::string_view name(const Step& step);

// ------------------------------------------------------------------------------------------------------------
// plan

/// `host`: a thread of the host that awaits and notifies, between kernels and copy engines; nothing else.
enum class LaneKind : std::uint8_t { compute, communicate, copy, host };
std::string_view name(LaneKind kind);

/// How the commands of a copy lane get to its engine (DMA collectives §3.2): a thread of the host creates
/// them (control) and rings the engine's doorbell (schedule). It says when an engine may start, not in which
/// order what happens: a proof does not depend on it.
struct Submission {
  std::int32_t launcher = -1;  ///< which of the world's launching threads; -1: the rank's own
  /// All commands are with the engine before the epoch begins, and the lane's awaits are polls of the engine.
  /// Otherwise the launching thread waits where a batch begins with awaits, and creates it then.
  bool prelaunched = false;
  /// The host's calls are part of the epoch's time: a backend creates no command before the epoch is asked
  /// for.
  bool timed = false;
  std::vector<std::int32_t> doorbells{};  ///< steps at which a new batch begins, after the first
  bool operator==(const Submission&) const = default;
};

/// An in-order queue of one rank. Exception: the commands (fill, copy, broadcast, swap) of a copy lane are
/// concurrent and unordered between two notifies. A notify and the end of the lane wait for all commands
/// before them. An await delays only the steps behind it.
struct Lane {
  LaneKind kind = LaneKind::compute;
  std::string name;
  std::vector<Step> steps;
  Submission submission{};  ///< for copy lanes only
  bool operator==(const Lane&) const = default;
};

struct RankPlan {
  std::vector<Lane> lanes;
  /// Order in which a host with one hardware queue issues the steps: one lane index for each step.
  std::vector<std::int32_t> issue;
  bool operator==(const RankPlan&) const = default;
};

struct Communicator {
  std::string name;
  std::vector<std::int32_t> ranks;
  bool operator==(const Communicator&) const = default;
};

/// True for commands of a copy engine: on a copy lane they are unordered between two notifies.
bool is_command(const Step& step);

enum class Mechanism : std::uint8_t { sequential, chunked, signal, ring, fused, copy_engine, low_latency };
/// The last mechanism, plus one.
inline constexpr std::size_t mechanism_count = static_cast<std::size_t>(Mechanism::low_latency) + 1;
std::string_view name(Mechanism mechanism);
Mechanism parse_mechanism(std::string_view text);

/// A param of the mechanism, as the flag and value of `shingle run`: {"tile", "128x256"}. A switch has no
/// value.
struct Param {
  std::string name;
  std::string value;
  bool operator==(const Param&) const = default;
};
using ParamList = std::vector<Param>;
/// "tile=128x256 one-shot"
std::string describe(const ParamList& params);

/// What a plan computes: one operator, or a workload.
using Work = std::variant<Problem, Workload>;
int world_of(const Work& work);
DType dtype_of(const Work& work);
/// The one line that describes the problem or the workload.
std::string describe(const Work& work);

struct Plan {
  Work work;
  /// The mechanism that made the plan and the params that it chose: a record for readers. Nothing that proves
  /// or runs a plan asks for it (planner/params.hpp reads it).
  Mechanism mechanism = Mechanism::sequential;
  ParamList params;
  std::int32_t workers = 1;  ///< workers of each rank that waves and resources assume
  std::string rounding;  ///< where values are rounded, and in which order they are summed (DESIGN: "Numbers")
  std::vector<Buffer> buffers;
  std::vector<Counter> counters;
  std::vector<Communicator> communicators;
  /// The planned ranks: the whole world, or its first P ranks, where P divides the world. In the second case
  /// the plan is symmetric. Rank r runs the steps of rank r mod P, with every rank number in them shifted by
  /// the same distance. A symmetric plan can be simulated, not run.
  std::vector<RankPlan> ranks;

  int world() const { return world_of(work); }
  /// Of the user's matrices.
  DType dtype() const { return dtype_of(work); }
  /// Null if the plan is of an operator.
  const Workload* workload() const { return std::get_if<Workload>(&work); }
  /// The problem of an operator's plan. A plan of a workload has none: this then throws
  /// std::bad_variant_access, so ask workload() first.
  const Problem& problem() const { return std::get<Problem>(work); }
  Problem& problem() { return std::get<Problem>(work); }
  /// Where rows go in the all-to-all of an operator; null if no routing says so.
  const Routing* routing() const { return workload() ? nullptr : problem().routing.get(); }

  bool operator==(const Plan&) const = default;
};

/// True if the planned ranks stand for all ranks.
inline bool is_symmetric(const Plan& plan) {
  return plan.ranks.size() < static_cast<std::size_t>(plan.world());
}
/// Why the ranks of a problem differ, so that it has no symmetric plan. Empty if they do not differ. Those of
/// a workload never do.
std::string asymmetry(const Problem& problem);
std::string asymmetry(const Work& work);

/// Index of the first buffer with this role; -1 if there is none.
std::int32_t find_buffer(const Plan& plan, Role role);
/// The slice that covers a whole buffer on a rank.
Slice whole(const Plan& plan, std::int32_t buffer, std::int32_t rank);
/// True if rows are picked by an index.
bool is_indexed(const Placement& at);
/// All ranks whose memory the pieces of a placement may lie in.
std::vector<std::int32_t> ranks_of(const Placement& at, int world);
/// Ranks that each hold the same rows. Empty if the placement names none.
std::span<const std::int32_t> replicas(const Placement& at);
/// The placement on the first of its replicas only.
Placement first_replica(Placement at);
/// True if tiles are stacked in one column (Slots, Subtiles, Pools). Otherwise columns stay.
bool stacks_tiles(const Placement& at);
/// Group of a position, given the end of each group.
std::int64_t group_of(const std::vector<std::int64_t>& ends, std::int64_t position);

}  // namespace shingle
