// Params: what each mechanism lets a tuner choose. One struct a mechanism; its table of fields is
// src/planner/<mechanism>/params.cpp. Flags, help, printed plans, JSON, refusals and the tuner's choices are
// made from these tables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shingle/base/collective_config.hpp"
#include "shingle/base/result.hpp"
#include "shingle/grid/tile_grid.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle {

namespace planner {
template <class P>
struct ParamRow;
/// The table of a mechanism's params (src/planner/common/param_table.hpp).
template <class P>
using ParamTable = std::vector<ParamRow<P>>;
}  // namespace planner

/// What moves bytes if no NCCL collective does: copy engines, or stores of the workers. `automatic`: the
/// planner chooses the fastest.
enum class Mover : std::uint8_t { automatic, copy_engine, store };
std::string_view name(Mover mover);
Mover parse_mover(std::string_view text);

/// Order of the shards on a rank r.
///
/// Gathering: the order in which communication tiles of other ranks' shards arrive. `ring`: all of rank r +
/// 1, then all of r + 2, and so on. `reverse`: all of r - 1, then all of r - 2, and so on. `interleaved`: the
/// first tile of every rank, then the second of every rank, and so on.
///
/// Summing: the order in which a rank computes the shards. `ring`: from r + 1 on. `interleaved`: some rows of
/// each shard in turn. `same`: from rank 0 on for all ranks, so that all store to one rank at a time.
///
/// `automatic`: the planner chooses the fastest.
enum class CommOrder : std::uint8_t { automatic, ring, reverse, interleaved, same };
std::string_view name(CommOrder order);
CommOrder parse_comm_order(std::string_view text);

/// Where the owner of rows adds the ranks' parts: `epilogue`, in the epilogue of its own tiles, whose
/// products stay in fp32; `pass`, in a pass over staged parts. `automatic`: the planner chooses.
enum class SumsIn : std::uint8_t { automatic, epilogue, pass };
std::string_view name(SumsIn where);
SumsIn parse_sums_in(std::string_view text);

/// Where tensor-parallel experts with a capacity have the rows of an expert: `by_source`, in a run for each
/// source rank, so that a tile has rows of one; `merged`, in one run, so that a tile has rows of all.
/// `automatic`: merged if a tile is higher than the rows of a source.
enum class SlotOrder : std::uint8_t { automatic, by_source, merged };
std::string_view name(SlotOrder order);
SlotOrder parse_slot_order(std::string_view text);

/// How copy engines carry out a collective (DMA collectives §4.2). `automatic`: by the machine's engine
/// phases, else by size.
enum class CopyVariant : std::uint8_t {
  automatic,
  pcpy,  ///< one engine for each copy
  bcst,  ///< one engine for each broadcast to two ranks
  swap,  ///< one engine for each in-place exchange with another rank
  b2b,   ///< one engine a rank; all copies of a rank are in flight together
  ring,  ///< one engine a rank; shards pass from rank to rank, or other rows go to each rank in turn, in step
};
std::string_view name(CopyVariant variant);
CopyVariant parse_copy_variant(std::string_view text);

/// What prelaunched engines poll before they start (DMA collectives §4.2.5): one word for each engine, for
/// each rank, or one for all ranks.
enum class PollScope : std::uint8_t { engine, rank, collective };
std::string_view name(PollScope poll);
PollScope parse_poll_scope(std::string_view text);

/// What starts the engines and reports their completion. `host`: threads of the host (DMA collectives
/// §4.3.2). `direct`: the steps that produce the data, and the engines themselves.
enum class EngineTrigger : std::uint8_t { host, direct };
std::string_view name(EngineTrigger trigger);
EngineTrigger parse_engine_trigger(std::string_view text);

/// Tiles of a GEMM with hooks, and the order in which they start.
struct TileParams {
  std::int32_t rows = 0;  ///< of a tile; 0: the machine's
  std::int32_t cols = 0;  ///< of a tile; 0: the machine's
  TileOrder order{};      ///< {}: the machine's
  bool operator==(const TileParams&) const = default;
};

// A field that is zero, false, empty or `automatic` is open: the planner chooses, or the comment says what it
// means. The params in a plan hold the values chosen. `table()` describes every field. All mechanisms have
// `symmetric`: plan only the ranks that stand for all, as it is always done above max_world ranks.
//
// `unregistered`: peers cannot access the user's matrices. Data goes through the operator's staging memory.

/// One GEMM, then the collective, or the reverse.
struct SequentialParams {
  std::int32_t comm_workers = 0;            ///< workers of each rank that collectives occupy
  TileParams tile{};                        ///< workloads only: tiles of their GEMMs
  std::vector<CollectiveConfig> configs{};  ///< workloads only: settings of each collective; empty: NCCL's
  SlotOrder slots = SlotOrder::automatic;
  bool symmetric = false;
  static const planner::ParamTable<SequentialParams>& table();
  bool operator==(const SequentialParams&) const = default;
};

/// Data slicing.
struct ChunkedParams {
  std::int32_t comm_workers = 0;            ///< as in SequentialParams
  std::int32_t chunks = 0;                  ///< slices of the rows
  TileParams tile{};                        ///< as in SequentialParams
  std::vector<CollectiveConfig> configs{};  ///< as in SequentialParams
  bool symmetric = false;
  static const planner::ParamTable<ChunkedParams>& table();
  bool operator==(const ChunkedParams&) const = default;
};

/// FlashOverlap's signals of groups of waves (§3.2).
struct SignalParams {
  TileParams tile{};
  std::int32_t comm_workers = 0;            ///< as in SequentialParams
  std::vector<std::int64_t> group_waves{};  ///< waves in each group; experts: shares; empty: searched if the
                                            ///< machine has figures (api/registry.hpp), else equal groups
  bool equal_groups = false;                ///< no search; the planner makes equal groups
  std::int32_t helpers = 0;                 ///< tensor-parallel experts: as in FusedParams
  bool symmetric = false;
  static const planner::ParamTable<SignalParams>& table();
  bool operator==(const SignalParams&) const = default;
};

/// Flash-Overlap's messages around a ring.
struct RingParams {
  std::int32_t engines = 0;        ///< copy engines of each rank that move slices; 0: messages do
  Mover mover = Mover::automatic;  ///< of attention: `store`, workers store slices to peers; else engines, if
                                   ///< there are any, or messages
  std::int32_t comm_workers = 0;   ///< as in SequentialParams
  std::int32_t slices = 0;         ///< of each rank's shard of the rows
  bool row_parallel = false;       ///< attention of all queries first, then only the projection in slices
  bool unregistered = false;       ///< an allreduce uses messages; peers of ulysses-attention copy
                                   ///< results to internal memory
  bool symmetric = false;
  static const planner::ParamTable<RingParams>& table();
  bool operator==(const RingParams&) const = default;
};

/// FLUX's tile-by-tile fusion.
struct FusedParams {
  TileParams tile{};
  std::int32_t helpers = 0;  ///< workers that reduce or push beside the GEMM; or no_helpers
  /// Value of `helpers`: all workers reduce after the GEMM, or push before it.
  static constexpr std::int32_t no_helpers = -1;
  SumsIn sums = SumsIn::automatic;
  bool stage_fp32 = false;         ///< partial products travel in fp32, not in the problem's dtype
  bool one_shot = false;           ///< allreduce: every rank sends its product to all ranks and sums all rows
  std::int64_t comm_rows = 0;      ///< rows of a communication tile; of tokens, the least of a copy
  bool pull = false;               ///< workers fetch the shards of peers; else their holders send them
  Mover mover = Mover::automatic;  ///< what moves the shards, or tokens to their experts
  CommOrder comm_order = CommOrder::automatic;  ///< order of the shards
  SlotOrder slots = SlotOrder::automatic;
  bool unregistered = false;  ///< shards are sent, not fetched; sums and rows are copied to the output
  bool symmetric = false;
  static const planner::ParamTable<FusedParams>& table();
  bool operator==(const FusedParams&) const = default;
};

/// DMA collectives.
struct CopyEngineParams {
  TileParams tile{};  ///< of a GEMM whose tiles trigger the engines
  CopyVariant variant = CopyVariant::automatic;
  std::int32_t engines = 0;  ///< of each rank; 0: the variant's
  bool prelaunch = false;    ///< commands are queued in the engines and wait for their trigger
  PollScope poll = PollScope::engine;
  EngineTrigger trigger = EngineTrigger::host;
  std::int32_t launchers = 0;    ///< threads that create the commands of all ranks; 0: one
  std::int32_t sum_slices = 0;   ///< of each shard: one is summed while the next comes; 0: one
  std::int32_t sum_workers = 0;  ///< workers that sum; 0: all
  bool unregistered = false;     ///< each part is copied to the output as it arrives
  bool symmetric = false;
  static const planner::ParamTable<CopyEngineParams>& table();
  bool operator==(const CopyEngineParams&) const = default;
};

/// Few rows: data that flag themselves, in one kernel behind the GEMM.
struct LowLatencyParams {
  std::int32_t hops = 0;  ///< of an allreduce: 1, every rank sends to all; 2, a reduce-scatter and an
                          ///< allgather; 0: the one with the lower predicted time
  bool symmetric = false;
  static const planner::ParamTable<LowLatencyParams>& table();
  bool operator==(const LowLatencyParams&) const = default;
};

/// The params of one mechanism, in the order of Mechanism.
using Params = std::variant<SequentialParams, ChunkedParams, SignalParams, RingParams, FusedParams,
                            CopyEngineParams, LowLatencyParams>;

/// The mechanism that takes these params.
Mechanism mechanism_of(const Params& params);
/// The params of a mechanism, all at their defaults.
Params default_params(Mechanism mechanism);

/// The params of a plan.
Params params_of(const Plan& plan);
/// The params that are not at their defaults, as flags of `shingle run`, sorted by name.
ParamList list_of(const Params& params);
/// The params of a mechanism, with those of the list set. Throws InvalidArgument that names the flag if a
/// value does not parse or if the mechanism does not take the param. `is_workload`: of a workload's plan,
/// which takes more params than an operator's.
Params parse_params(Mechanism mechanism, const ParamList& list, bool is_workload = true);

/// True if only some ranks are planned.
bool is_symmetric(const Params& params);
/// The params for peers that cannot access the user's matrices, if that matters to the mechanism.
Params with_unregistered(Params params);

/// Headings in `--help` of the params that several mechanisms take.
inline constexpr std::string_view mechanism_heading = "Mechanism", tiles_heading = "Tiles of the GEMM";

/// A row of a mechanism's table of params, for help and flags.
struct ParamInfo {
  std::string_view name;           ///< the flag without dashes
  std::string_view type;           ///< the form of the value in `--help`; empty: a switch
  std::string_view help;           ///< empty: planning commands have no such flag
  std::string_view group{};        ///< heading in `--help`, if several mechanisms take the param; else empty
  bool only_of_workloads = false;  ///< taken for workloads only
};
/// The params that a mechanism takes, in the order of its table.
std::vector<ParamInfo> param_infos(Mechanism mechanism);

/// The reason why a mechanism does not take these params, or nullopt if it takes all that are given. It names
/// the param and the ones that the mechanism takes. `is_workload`: as in parse_params().
std::optional<Reason> why_refused(Mechanism mechanism, const ParamList& list, bool is_workload = false);
/// The params of the list that the mechanism takes.
ParamList accepted(Mechanism mechanism, ParamList list, bool is_workload = false);
/// The params of a mechanism for an operator, with those of the list set that it takes.
Params parse_accepted(Mechanism mechanism, const ParamList& list);

}  // namespace shingle
