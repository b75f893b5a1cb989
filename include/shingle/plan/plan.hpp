// Plan: for every rank its lanes, for every lane its steps. Data, nothing else (docs/concepts/plan.md).
//
// A planner writes plans, the verifier proves them, a backend executes them. What a step does to which
// element is said by closed forms and small tables only; `for_each_piece` (plan/placement.hpp) is the one
// place that expands them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shingle/base/collective_config.hpp"
#include "shingle/grid/row_map.hpp"
#include "shingle/grid/tile_grid.hpp"
#include "shingle/plan/problem.hpp"

namespace shingle {

// ----------------------------------------------------------------------------------------------------------
// memory

/// What a buffer is to the user. The user binds every role but `internal`, which the backend allocates.
enum class Role : std::uint8_t {
  a,
  b,
  bias,
  residual,
  norm_weight,
  keys,
  values,
  down,
  payload,
  out,
  sum,
  internal
};
std::string_view name(Role role);
constexpr bool is_input(Role role) {
  return role <= Role::payload;
}
constexpr bool is_output(Role role) {
  return role == Role::out || role == Role::sum;
}

/// A row-major matrix in every rank's memory; ranks may hold different numbers of rows, also none.
struct Buffer {
  std::string name;
  Role role = Role::internal;
  DType dtype = DType::f32;
  std::vector<std::int64_t> rows;  ///< by planned rank
  std::int64_t cols = 0;
  std::int32_t depth = 1;  ///< copies that successive epochs alternate between: 1 or 2; user buffers have 1

  std::int64_t bytes(int rank) const {
    return rows[static_cast<std::size_t>(rank)] * cols * static_cast<std::int64_t>(size_bytes(dtype)) * depth;
  }
  bool operator==(const Buffer&) const = default;
};

/// A rectangle of a buffer in one rank's memory.
struct Slice {
  std::int32_t buffer = -1;  ///< index into Plan::buffers
  std::int32_t rank = 0;     ///< whose memory
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t col = 0;
  std::int64_t cols = 0;

  bool operator==(const Slice&) const = default;
};

/// `add`: grows by what adders add. `set`: one writer sets it to base + value; copy engines cannot add.
enum class CounterKind : std::uint8_t { add, set };

/// A table of 32-bit counts in every rank's memory that only grow; anyone may await `>= target`. Never reset:
/// in epoch e a target t means e · growth + t.
struct Counter {
  std::string name;
  CounterKind kind = CounterKind::add;
  std::vector<std::vector<std::uint32_t>>
      growth;  ///< [planned rank][entry]: how much an entry grows an epoch

  bool operator==(const Counter&) const = default;
};

/// One count.
struct CounterRef {
  std::int32_t counter = -1;  ///< index into Plan::counters
  std::int32_t rank = 0;      ///< whose memory
  std::int32_t entry = 0;

  bool operator==(const CounterRef&) const = default;
};

// -----------------------------------------------------------------------------------------------------------
// hooks of a tiled step

/// Where the rows of a tile lie in a buffer: the `route` hook of a store, and its mirror for a load.
enum class PlacementKind : std::uint8_t {
  matrix,    ///< at their own rows and columns, rows by `rows`
  slots,     ///< stacked in the order of execution in one column of tiles, tile_cols wide; with `bases`, the
             ///< tiles of each group from a row of its own on
  subtiles,  ///< as slots, but per group of tiles first all rows of rank 0's part of each tile, then rank
             ///< 1's, …
  pools,     ///< per group one pool a destination; in a pool, runs of rows in the order of execution
  routed,    ///< the rows that go to `dest`, compacted: row i at the number of such rows before it
  owners,  ///< row R = rows(v) of a matrix that ranks share by `rows.stride` rows each: with rank R / stride,
           ///< at row R mod stride
};
std::string_view name(PlacementKind kind);

/// A store may leave the own rank: to one other rank (slice.rank), to each of `ranks`, to every row's owner,
/// or to every row's destination (routed, dest -1). The slice then says buffer, first row and columns on each
/// of them.
struct Placement {
  PlacementKind kind = PlacementKind::matrix;
  Slice slice;                     ///< rows and columns below are relative to it
  RowMap rows;                     ///< matrix: virtual row of the grid → row of the slice
  std::vector<std::int64_t> ends;  ///< subtiles, pools, slots with bases: position in the grid's order at
                                   ///< which each group ends
  std::int32_t parts = 1;          ///< subtiles: into how many equal row parts each tile is split
  std::int32_t source = -1;  ///< pools, routed: the rank whose rows (by the problem's routing) these are
  std::int32_t dest = -1;  ///< pools, routed: the destination whose rows these are; -1: all, a pool each, or
                           ///< every row with its destination
  std::vector<std::int64_t> bases;  ///< first row of each pool, [group · destinations + destination]; routed:
                                    ///< by destination; slots: of each group
  std::vector<std::int32_t> ranks;  ///< matrix, slots: the same rows in the memory of each of these; empty:
                                    ///< of slice.rank

  bool operator==(const Placement&) const = default;
};

/// Before a tile's input is read: await one entry of a counter on the own rank, by the group that the tile's
/// position is in. Phantom tiles await nothing.
struct TileGate {
  std::int32_t counter = -1;
  std::vector<std::int64_t> ends;       ///< position at which each group ends
  std::vector<std::uint32_t> targets;   ///< by group
  std::vector<std::int32_t> entries{};  ///< by group; empty: group g awaits entry g

  std::int32_t entry(std::int64_t group) const {
    return entries.empty() ? static_cast<std::int32_t>(group) : entries[static_cast<std::size_t>(group)];
  }
  bool operator==(const TileGate&) const = default;
};

/// Once a tile's output is visible: add one to an entry of a counter on each of `ranks`, by the tile's group.
/// Phantom tiles add nothing.
struct TileNotify {
  std::int32_t counter = -1;
  std::vector<std::int32_t> ranks;
  std::vector<std::int64_t> ends;
  std::vector<std::int32_t> entries{};  ///< by group; empty: group g adds to entry g
  std::vector<std::int32_t> owners{};   ///< by group: the one rank that it adds on; empty: `ranks`

  std::int32_t entry(std::int64_t group) const {
    return entries.empty() ? static_cast<std::int32_t>(group) : entries[static_cast<std::size_t>(group)];
  }
  /// Calls visit(rank) for the ranks on which a group adds.
  template <class Visit>
  void for_each_rank(std::int64_t group, Visit&& visit) const {
    if (!owners.empty()) return visit(owners[static_cast<std::size_t>(group)]);
    for (const std::int32_t rank : ranks) visit(rank);
  }
  bool operator==(const TileNotify&) const = default;
};

/// Workers (SMs, cores) that a step takes: at least `least` to make progress, at most `most` (0: all that are
/// free). A gated step is counted with `most`: what it has taken it holds while it waits.
struct Resources {
  std::int32_t least = 0;
  std::int32_t most = 0;
  bool operator==(const Resources&) const = default;
};

// -----------------------------------------------------------------------------------------------------------
// steps

/// Tiled product: virtual row v of the grid is row a_rows(v) of op(A); columns of the grid are columns of
/// op(B), or output columns of [gate | up] for swiglu.
struct Gemm {
  TileGrid grid;
  Slice a;  ///< as stored: m×k, or k×m with transpose_a
  Slice b;  ///< as stored: k×n, or n×k with transpose_b
  RowMap a_rows;
  bool transpose_a = false;
  bool transpose_b = false;
  Epilogue epilogue;
  Slice bias;  ///< 1×n, where the epilogue has one
  Placement out;
  std::vector<TileGate> gates;
  std::vector<TileNotify> notify;
  Resources resources{1, 0};
  bool operator==(const Gemm&) const = default;
};

/// Tiled pass over a matrix: reorder, sum, epilogue, norm. Sources are summed in their order in fp32 and
/// rounded once. An item is a tile; of a row-wise step (a norm or swiglu needs complete rows) a row of tiles,
/// in order of their m-index: `from` is then asked for every tile of the row, `to`, `residual` and `sum` for
/// its tile of column 0 only, and their pieces are out columns wide. Row-wise steps have no gates and notify
/// nothing by tiles.
struct Elementwise {
  TileGrid grid;
  std::int64_t first = 0;   ///< the step does items [first, first + count) only: positions, or rows of tiles
  std::int64_t count = -1;  ///< -1: up to the last
  std::vector<Placement> from;
  Placement to;
  Epilogue epilogue;
  Slice bias;
  Norm norm;
  Slice norm_weight;   ///< 1×n
  Placement residual;  ///< where norm.residual: read from here …
  Placement sum;       ///< … and x + residual is stored here
  std::vector<TileGate> gates;
  std::vector<TileNotify> notify;
  Resources resources{1, 0};
  /// Steps of a rank with one queue number, one a lane, are one pass: each item is done once an epoch, by
  /// whichever of the lanes is there to claim it. What follows such a step in its lane knows nothing of the
  /// items; it awaits their notifies. -1: not shared.
  std::int32_t queue = -1;
  bool operator==(const Elementwise&) const = default;
};

/// Whether items of the step are rows of tiles.
inline bool row_wise(const Elementwise& step) {
  return step.norm.enabled || step.epilogue.activation == Activation::swiglu;
}

/// Where the items of a step end.
inline std::int64_t last_item(const Elementwise& step) {
  const std::int64_t items = row_wise(step) ? step.grid.tiles_m() : step.grid.positions();
  return step.count < 0 ? items : step.first + step.count;
}

/// Tiled attention of some of a rank's tokens, as the problem's `attention` has it: rows of the grid are
/// consecutive queries, columns those of the heads in `q`. An item is a tile, head_dim wide: a block of
/// queries of one head. It reads the K and V that its queries see, no others, and accumulates in fp32.
struct Attend {
  TileGrid grid;
  std::int64_t first_token = 0;  ///< of the queries
  Slice q;                       ///< a row a query of the grid
  Slice keys;                    ///< a row a token, all m of them
  Slice values;                  ///< as keys
  Placement out;
  std::vector<TileGate> gates;
  std::vector<TileNotify> notify;
  Resources resources{1, 0};
  bool operator==(const Attend&) const = default;
};

struct Await {
  CounterRef counter;  ///< on the own rank
  std::uint32_t target = 0;
  bool operator==(const Await&) const = default;
};

struct Notify {
  CounterRef counter;
  std::uint32_t value = 1;  ///< added, or for a `set` counter the value within the epoch
  bool operator==(const Notify&) const = default;
};

/// Stores zeros.
struct Fill {
  Slice slice;
  bool operator==(const Fill&) const = default;
};

/// A rendezvous of all ranks of a communicator, as collective libraries have it. Equal counts on every rank
/// except for alltoall. allreduce: send and recv equal or disjoint, the same shape. reducescatter: part i of
/// `send` (equal parts by rows) summed over ranks to rank i's `recv`. allgather: `send` of rank i to part i
/// of `recv`. alltoall: consecutive rows of `send`, send_rows[i] of them to rank i; `recv` takes recv_rows[i]
/// from rank i. Slices are whole rows of their buffers, so that they are contiguous.
struct Collective {
  CollectiveKind kind = CollectiveKind::allreduce;
  std::int32_t communicator = 0;
  Slice send;
  Slice recv;
  std::vector<std::int64_t> send_rows;
  std::vector<std::int64_t> recv_rows;
  Resources resources;
  CollectiveConfig config{};  ///< what its library is told, where it can be
  bool operator==(const Collective&) const = default;
};

/// Sends and receives that progress as one; the i-th message from a to b meets the i-th that b expects of a.
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

/// Commands of a copy engine: one source to one or two destinations of the same shape; two slices in place.
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

using Step =
    std::variant<Gemm, Elementwise, Await, Notify, Fill, Collective, Exchange, Copy, Broadcast, Swap, Attend>;

/// "gemm", "permute", "reduce", "push", "await", …: an elementwise step is named for what it does.
std::string_view name(const Step& step);

// ------------------------------------------------------------------------------------------------------------
// plan

enum class LaneKind : std::uint8_t { compute, communicate, copy };
std::string_view name(LaneKind kind);

/// How the commands of a copy lane get to its engine (DMA collectives §3.2): a thread of the host creates
/// them (control) and rings the engine's doorbell (schedule). It says when an engine may start, not in which
/// order what happens: a proof does not depend on it.
struct Submission {
  std::int32_t launcher = -1;  ///< which of the world's launching threads; -1: the rank's own
  /// All commands are with the engine before the epoch begins, and the lane's awaits are polls of the engine.
  /// Otherwise the launching thread waits where a batch begins with awaits, and creates it then.
  bool prelaunched = false;
  std::vector<std::int32_t> doorbells{};  ///< steps at which a new batch begins, after the first
  bool operator==(const Submission&) const = default;
};

/// A queue on one rank, in order; but a copy lane's commands (fills, copies, broadcasts, swaps) between two
/// notifies are under way together, in no order. A notify, and the end of the lane, wait for those before it;
/// an await holds back those behind it only.
struct Lane {
  LaneKind kind = LaneKind::compute;
  std::string name;
  std::vector<Step> steps;
  Submission submission{};  ///< of a copy lane
  bool operator==(const Lane&) const = default;
};

struct RankPlan {
  std::vector<Lane> lanes;
  /// The order in which a host with a single hardware queue issues the steps: lane indices, one for each
  /// step.
  std::vector<std::int32_t> issue;
  bool operator==(const RankPlan&) const = default;
};

struct Communicator {
  std::string name;
  std::vector<std::int32_t> ranks;
  bool operator==(const Communicator&) const = default;
};

/// Whether steps of this kind may overtake each other on a copy lane.
bool is_command(const Step& step);

enum class Mechanism : std::uint8_t { sequential, chunked, signal, ring, fused, copy_engine };
std::string_view name(Mechanism mechanism);
Mechanism parse_mechanism(std::string_view text);

/// Who moves bytes without a collective library.
enum class Mover : std::uint8_t { copy_engine, store };
std::string_view name(Mover mover);
Mover parse_mover(std::string_view text);

/// The order in which the communication tiles of other ranks' shards come to a rank r: all of rank r + 1,
/// then of r + 2, … (`ring`); of r - 1, r - 2, … (`reverse`); or the first tile of each rank in turn, then
/// the second of each, … (`interleaved`). Where products are summed, that of the shards in which a rank
/// computes them: from r + 1 on (`ring`), some rows of each in turn (`interleaved`), or from rank 0 on all
/// alike (`same`), so that all store to one rank at a time. `automatic`: as the planner finds best.
enum class CommOrder : std::uint8_t { automatic, ring, reverse, interleaved, same };
std::string_view name(CommOrder order);
CommOrder parse_comm_order(std::string_view text);
/// How copy engines carry out a collective (DMA collectives §4.2). `automatic`: by size.
enum class Variant : std::uint8_t {
  automatic,
  pcpy,  ///< an engine for each copy
  bcst,  ///< an engine for each broadcast to two ranks
  swap,  ///< an engine for each exchange in place with another rank
  b2b,   ///< one engine a rank, whose copies are under way together
  ring,  ///< one engine a rank: shards go from rank to rank, or other rows to each rank in turn, in step
};
std::string_view name(Variant variant);
Variant parse_variant(std::string_view text);

/// Where engines look whether they may start: a place of each engine's own, of each rank, or one for all
/// ranks (DMA collectives §4.2.5).
enum class Poll : std::uint8_t { engine, rank, collective };
std::string_view name(Poll poll);
Poll parse_poll(std::string_view text);

/// Who tells engines that their data is there, and others that it has come: threads of the host (DMA
/// collectives §4.3.2), or whoever made it and the engines themselves.
enum class Trigger : std::uint8_t { host, direct };
std::string_view name(Trigger trigger);
Trigger parse_trigger(std::string_view text);

/// What a mechanism lets a tuner choose. Zero or empty: the planner's default; a plan holds what was chosen.
struct Params {
  std::int32_t tile_rows = 0;
  std::int32_t tile_cols = 0;
  TileOrder order{};
  std::int32_t comm_workers = 0;  ///< of each rank, that its collectives occupy; 0: as the machine has it
  std::int32_t chunks = 0;        ///< chunked: slices of the rows
  std::vector<std::int64_t> group_waves{};  ///< signal: waves in each group; empty: searched where the
                                            ///< machine has figures (api/registry.hpp), else equal groups
  bool equal_groups = false;                ///< signal: nothing is searched, the planner makes equal groups
  std::int32_t helpers = 0;                 ///< fused: workers that reduce or push beside the GEMM; or none:
  static constexpr std::int32_t no_helpers = -1;  ///< … all do so behind it, or before
  bool stage_fp32 = false;     ///< fused: partial products travel in fp32, not in the problem's dtype
  bool one_shot = false;       ///< fused allreduce: everybody sends all to all and sums all
  std::int64_t comm_rows = 0;  ///< fused: rows of a communication tile
  bool pull = false;           ///< fused: shards are fetched by who needs them, not sent by who has them
  Mover mover = Mover::copy_engine;             ///< fused: who moves shards
  CommOrder comm_order = CommOrder::automatic;  ///< fused: the order in which communication tiles come
  std::int32_t slices = 0;                      ///< ring: slices of each rank's shard of the rows
  bool row_parallel = false;  ///< ring, attention: all queries first, and only the projection by slices
  Variant variant = Variant::automatic;  ///< copy-engine
  std::int32_t engines = 0;         ///< of each rank: copy-engine; ring, instead of messages: 0 for these
  bool prelaunch = false;           ///< copy-engine: commands wait in the engines for their trigger
  Poll poll = Poll::engine;         ///< copy-engine
  Trigger trigger = Trigger::host;  ///< copy-engine
  std::int32_t launchers = 0;       ///< copy-engine: threads that create all ranks' commands
  std::vector<CollectiveConfig> configs{};  ///< of an overlap's collectives; empty: the library's choice
  /// Peers do not reach the user's matrices. fused, copy-engine: shards are sent, not fetched, and what peers
  /// store goes to the operator's memory and from there to the output, part by part as it comes. ring: an
  /// allreduce goes by messages.
  bool unregistered = false;
  bool symmetric = false;  ///< plan only the ranks that stand for all; above max_world ranks always so
  bool operator==(const Params&) const = default;
};

struct Plan {
  Problem problem;
  Mechanism mechanism = Mechanism::sequential;
  Params params;
  std::int32_t workers = 1;  ///< of each rank, for which waves and resources were planned
  std::string rounding;  ///< where values are rounded, and in which order they are summed (DESIGN: "Numbers")
  std::vector<Buffer> buffers;
  std::vector<Counter> counters;
  std::vector<Communicator> communicators;
  /// Those that are planned: all of the world, or the first P, which divide it and stand for all of it: rank
  /// r does as rank r mod P, with every rank that its steps name as far on from it. The plan is then
  /// symmetric; it can be simulated, not run.
  std::vector<RankPlan> ranks;

  bool operator==(const Plan&) const = default;
};

/// Whether some of the ranks stand for all.
inline bool is_symmetric(const Plan& plan) {
  return plan.ranks.size() < static_cast<std::size_t>(plan.problem.world);
}
/// Why the ranks of a problem do not all do the same, so that no plan of it is symmetric; empty: they do.
std::string asymmetry(const Problem& problem);

/// The buffer of a role, or -1.
std::int32_t find_buffer(const Plan& plan, Role role);
/// All of a buffer on a rank.
Slice whole(const Plan& plan, std::int32_t buffer, std::int32_t rank);
/// The ranks in whose memory the pieces of a placement may lie.
std::vector<std::int32_t> ranks_of(const Placement& at, int world);
/// Group of a position, given where the groups end.
std::int64_t group_of(const std::vector<std::int64_t>& ends, std::int64_t position);

}  // namespace shingle
