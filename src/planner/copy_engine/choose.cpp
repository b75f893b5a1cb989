#include "choose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "planner/common/builder.hpp"
#include "planner/common/reach.hpp"
#include "transfer_time.hpp"

namespace shingle::planner {
namespace {

bool is_gather(const Problem& p) {
  return p.traits().shards_a();
}

std::optional<Reason> unserved_by_engines(const Problem& p, const Machine& machine,
                                          const CopyEngineParams& params) {
  if (p.op == Op::gemm) return Reason{"gemm has no communication: use sequential"};
  if (p.traits().attends) return Reason{"copy-engine does not plan attention: use ring"};
  if (p.op == Op::mlp) return Reason{"an mlp has two collectives: use ring or fused"};
  if (p.traits().is_collective() && p.norm.enabled)
    return Reason{"copy engines do not normalise: use low-latency or sequential"};
  if (auto reason = planner::out_of_reach(p.world, machine, "copy engines write to", "use another mechanism"))
    return *reason;
  if (p.row_order == RowOrder::block_cyclic)
    return Reason{fmt::format("copy-engine plans contiguous rows only, not block-cyclic ones: use {}",
                              is_gather(p) ? "fused, ring or chunked" : "signal, ring or chunked")};
  if (params.engines < 0 || params.engines > max_world)
    return Reason{fmt::format("engines = {} is outside [1, {}]", params.engines, max_world)};
  if (params.launchers < 0 || params.launchers > p.world)
    return Reason{fmt::format("launchers = {} is outside [1, {}]: a rank has no more than one",
                              params.launchers, p.world)};
  if (params.sum_slices < 0 || params.sum_slices > static_cast<std::int32_t>(max_slices) / p.world)
    return Reason{fmt::format("sum_slices = {} is outside [1, {}]", params.sum_slices, max_slices / p.world)};
  if (params.sum_workers < 0) return Reason{"sum_workers must not be negative"};
  if (p.traits().reduces() && params.sum_slices > 1 && params.trigger == EngineTrigger::host)
    return Reason{"sum_slices follow one another in the engines: they need --trigger direct"};
  // Ranks that add to one count may be an epoch ahead, and their adds would be taken for those of other
  // ranks.
  if (params.poll == PollScope::collective && params.trigger == EngineTrigger::direct)
    return Reason{"--poll collective needs --trigger host"};
  return std::nullopt;
}

/// Reason why a variant cannot carry out the problem's collective, or nullopt.
std::optional<Reason> unfit(const Problem& p, CopyVariant variant, const CopyEngineParams& params,
                            bool symmetric) {
  const bool reduces_to_all = p.traits().reduces() && !p.traits().scatters();
  if (variant == CopyVariant::bcst && !is_gather(p) && !reduces_to_all)
    return Reason{fmt::format(
        "bcst gives two ranks the same rows, but {} has other rows for each: use pcpy, b2b or swap",
        name(p.op))};
  if (variant == CopyVariant::swap && is_gather(p))
    return Reason{fmt::format(
        "swap exchanges rows between two ranks, but {} sends one way: use pcpy, b2b, bcst or ring",
        name(p.op))};
  if (variant == CopyVariant::swap && !symmetric)
    return Reason{"swap exchanges rows in place: any two ranks must send each other the same number of rows"};
  if (variant == CopyVariant::swap && p.traits().reduces() && params.sum_slices > 1)
    return Reason{"swap exchanges whole shards in place: it takes no sum_slices"};
  if (variant == CopyVariant::ring && params.engines > 1)
    return Reason{fmt::format("ring has one engine a rank, not {}", params.engines)};
  return std::nullopt;
}

/// Number of engines of a rank so that each has one command, or one for all commands (§4.2).
std::int32_t engines_for(const Problem& p, CopyVariant variant) {
  if (variant == CopyVariant::b2b || variant == CopyVariant::ring) return 1;
  const bool in_pairs = variant == CopyVariant::bcst || variant == CopyVariant::swap;
  const bool both =
      p.traits().reduces() && !p.traits().scatters();  // the gather of an allreduce is single copies
  return static_cast<std::int32_t>(larger(in_pairs && !both ? p.world / 2 : p.world - 1, 1));
}

/// The number of engines in the params, without engines that would have no command.
std::int32_t engines_of(const Problem& p, CopyVariant variant, const CopyEngineParams& params) {
  if (params.engines == 0) return engines_for(p, variant);
  return std::min(params.engines, engines_for(p, variant == CopyVariant::b2b ? CopyVariant::pcpy : variant));
}

/// Bytes that all ranks have in the end, or reduce. For routed rows: the mean of what a rank sends.
std::int64_t total_bytes(const Problem& p) {
  const std::int64_t rows = p.traits().routes() ? p.routing->global_base(p.world) / larger(p.world, 1) : p.m;
  const std::int64_t cols = is_gather(p) ? p.gathered_cols() : p.op == Op::alltoall_gemm ? p.k : p.n;
  return rows * cols * static_cast<std::int64_t>(size_bytes(p.dtype));
}

/// The fastest variant for this size on the paper's machine (Tables 1 and 2).
CopyVariant by_tables(const Problem& p, bool symmetric) {
  const std::int64_t bytes = total_bytes(p);
  constexpr std::int64_t kib = 1024, mib = 1024 * kib;
  if (is_gather(p))
    return bytes < 256 * kib ? CopyVariant::b2b : bytes < mib ? CopyVariant::bcst : CopyVariant::pcpy;
  if (bytes < 64 * kib) return CopyVariant::b2b;
  const bool exchanges = p.traits().routes() && symmetric;
  return bytes >= 4 * mib ? CopyVariant::pcpy : exchanges ? CopyVariant::swap : CopyVariant::b2b;
}

/// The fastest variant by the phases of the machine's engines, or by the paper's tables if the phases are
/// unknown.
///
/// The phases do not show that ranks drift apart. Two engines that meet at one rank's link then slow each
/// other down, by 40% between eight GPUs. If that can happen, `ring`, which keeps them in step, is chosen if
/// it is nearly as fast.
CopyVariant by_size(const Problem& p, const Machine& machine, const CopyEngineParams& params,
                    bool symmetric) {
  if (!machine.engine.paced() || p.world < 2) return by_tables(p, symmetric);
  const auto us = [&](CopyVariant variant) {
    TransferShape shape{variant, p.world, static_cast<double>(total_bytes(p)) / p.world, is_gather(p),
                        engines_of(p, variant, params)};
    if (!p.traits().reduces() || p.traits().scatters()) return transfer_us(machine, shape, params);
    shape.variant = exchange_of(variant);
    const double exchange_us = transfer_us(machine, shape, params);
    shape.variant = gather_of(variant), shape.same_for_all = true;
    return exchange_us + transfer_us(machine, shape, params);
  };
  CopyVariant fastest = CopyVariant::b2b;
  for (const CopyVariant variant :
       {CopyVariant::bcst, CopyVariant::swap, CopyVariant::pcpy, CopyVariant::ring})
    if (!unfit(p, variant, params, symmetric) && us(variant) < us(fastest)) fastest = variant;
  constexpr double nearly = 1.2;
  const bool may_meet = p.world > 2 && machine.topology.pair.gbps == 0;
  if (may_meet && !unfit(p, CopyVariant::ring, params, symmetric) &&
      us(CopyVariant::ring) < nearly * us(fastest))
    return CopyVariant::ring;
  return fastest;
}

}  // namespace

Result<CopyEngineParams> engine_params(const Problem& problem, const Machine& machine,
                                       const CopyEngineParams& params, bool symmetric) {
  if (auto reason = unserved_by_engines(problem, machine, params)) return *reason;
  CopyEngineParams chosen;
  chosen.variant = params.variant == CopyVariant::automatic ? by_size(problem, machine, params, symmetric)
                                                            : params.variant;
  if (auto reason = unfit(problem, chosen.variant, params, symmetric)) return *reason;
  chosen.engines = engines_of(problem, chosen.variant, params);
  if (problem.traits().multiplies() && params.trigger == EngineTrigger::direct) {  // its tiles are counted
    const TileSize tile = tile_size(machine, params.tile);
    chosen.tile = {tile.rows, tile.cols,
                   params.tile.order == TileOrder{} ? machine.order : params.tile.order};
  }
  if (problem.traits().reduces()) {
    chosen.sum_slices = params.sum_slices;
    chosen.sum_workers = std::min(params.sum_workers, machine.workers);
  }
  chosen.prelaunch = params.prelaunch;
  chosen.unregistered = params.unregistered;
  chosen.poll = params.poll;
  chosen.trigger = params.trigger;
  chosen.launchers = params.launchers > 0 ? params.launchers : 1;
  return chosen;
}

}  // namespace shingle::planner
