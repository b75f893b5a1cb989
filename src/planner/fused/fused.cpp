// fused: communication inside the GEMM (FLUX; docs/mechanisms/fused.md). Tiles are stored directly to remote
// memory, or wait for their rows from there. No NCCL or MPI collective takes part.
#include "fused.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "planner/common/experts.hpp"
#include "planner/common/helpers.hpp"
#include "planner/common/merged_slots.hpp"
#include "planner/common/reach.hpp"
#include "planner/common/replicated_tokens.hpp"
#include "planner/common/symmetry.hpp"
#include "shingle/machine/machine.hpp"

namespace shingle {

std::int64_t planner::most_moved_rows(const Problem& problem) {
  if (!dispatches_tokens(problem)) return problem.shard_rows();
  std::int64_t most = 1;
  for (int source = 0; source < problem.world; ++source)
    for (int dest = 0; dest < problem.world; ++dest)
      if (dest != source) most = larger(most, problem.routing->count_to_rank(source, dest));
  return most;
}

namespace {

/// Why owners cannot add the ranks' parts in the epilogue of their own tiles; nothing if they can. Every tile
/// must have one owner, and parts must travel in the type of the sums.
std::optional<std::string> why_not_in_epilogue(const Problem& p, const Machine& machine,
                                               const FusedParams& params) {
  if (p.world == 1) return "one rank has no parts of others";
  if (params.one_shot) return "in one shot (--one-shot) every rank sums all rows";
  if (params.stage_fp32 || p.f32_sums) return "parts and sums have different types";
  if (!p.traits().chains() &&
      planner::ShardTiles::together(p, p.n, machine, params, planner::ShardTiles::Bands::of_any))
    return fmt::format("a tile has rows of all ranks, as M = {} rows fit one", p.m);
  return std::nullopt;
}

std::optional<Reason> unserved_by_fused(const Problem& p, const Machine& machine, const FusedParams& params) {
  if (auto reason = planner::nothing_to_overlap(p)) return *reason;
  if (p.traits().shards_tokens()) return Reason{fmt::format("fused does not plan {}: use ring", name(p.op))};
  if (auto reason = planner::out_of_reach(p.world, machine, "fused stores to",
                                          "use sequential, chunked, ring or signal"))
    return *reason;
  if (p.op == Op::gemm_allgather_gemm)
    return Reason{
        "fused gathers inputs only, but this operator gathers a product: use chunked or copy-engine"};
  if (p.row_order == RowOrder::block_cyclic && p.op != Op::allgather_gemm)
    return Reason{"fused gathers block-cyclic rows, but does not scatter them: use signal"};
  if (auto reason = planner::wrong_helpers(params.helpers, machine.workers)) return reason;
  if (params.comm_order == CommOrder::same && p.traits().shards_a())
    return Reason{"comm-order = same is for sums; a gather takes ring, reverse or interleaved"};
  if (params.slots == SlotOrder::merged && params.helpers > 0)
    return Reason{
        fmt::format("helpers = {} sort the tokens of one source after the other, but slots = merged "
                    "needs all of them first: take helpers = none",
                    params.helpers)};
  if (params.comm_rows < 0) return Reason{"a communication tile has at least one row"};
  if (params.one_shot && !planner::sums_on_all(p))
    return Reason{"one-shot is for gemm+allreduce, grouped-gemm+allreduce and moe+allreduce only"};
  if (params.sums != SumsIn::automatic && (!p.traits().reduces() || p.traits().grouped))
    return Reason{fmt::format("sums = {} is for sums over ranks of one product, which {} does not have",
                              name(params.sums), name(p.op))};
  if (params.sums == SumsIn::epilogue) {
    if (auto why = why_not_in_epilogue(p, machine, params))
      return Reason{fmt::format("sums = epilogue: {}: use sums = pass", *why)};
    if (params.helpers > 0 && !params.unregistered && !p.traits().shards_a())
      return Reason{
          fmt::format("helpers = {} sum in a pass: leave them out, or use sums = pass", params.helpers)};
  }
  return std::nullopt;
}

/// Bytes of a product in the dtype in which it travels.
double staged_bytes(const Problem& p, const FusedParams& params) {
  const DType dtype = params.stage_fp32 ? DType::f32 : p.dtype;
  return static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(size_bytes(dtype));
}

/// Rows of a communication tile: a quarter of a shard. It is more if a copy would take less time than its
/// fixed cost.
std::int64_t communication_rows(const Problem& p, const Machine& machine) {
  constexpr std::int64_t most_pieces = 4;
  const double row_bytes = static_cast<double>(p.k) * static_cast<double>(size_bytes(p.dtype));
  const double worth_us = machine.engine.copy_us + machine.engine.sync_us;
  const std::int64_t rows = planner::most_moved_rows(p);
  std::int64_t pieces = most_pieces;
  while (pieces > 1 && machine.link.paced() &&
         row_bytes * static_cast<double>(rows) / static_cast<double>(pieces) <
             worth_us * machine.link.gbps * 1e3)
    --pieces;
  return ceil_div(rows, pieces);
}

/// Size of a product: its waves of tiles, their time (0: unknown to the machine), and its bytes if all of it
/// is sent.
struct Product {
  double waves = 0;
  double us = 0;
  double bytes = 0;
};
Product product_of(const Problem& p, const Machine& machine, const FusedParams& params) {
  const auto [rows, cols] = planner::tile_size(machine, params.tile);
  const auto tiles = static_cast<double>(ceil_div(p.m, rows) * ceil_div(p.n, cols));
  const double waves = tiles / machine.workers;
  return {waves, std::max(waves * wave_us(machine, rows, cols, static_cast<double>(p.k)), 0.0),
          staged_bytes(p, params)};
}

/// True if storing `times` times the product to other ranks takes longer than computing it.
bool wire_bound(const Machine& machine, const Product& product, double times) {
  if (!machine.link.paced() || product.us == 0) return false;
  const double gbps = machine.store_gbps > 0 ? machine.store_gbps : machine.link.gbps;
  return times * product.bytes / (gbps * 1e3) > product.us;
}

/// True if one shot is faster than two hops of a shard each. In one shot every rank sends its product to all
/// ranks and sums all rows. `in_epilogue`: with two hops, epilogues would sum.
bool one_shot_is_faster(const Problem& p, const Machine& machine, const FusedParams& params,
                        const Product& product, bool in_epilogue) {
  const Link& link = machine.link;
  if (!link.paced()) return false;
  const auto in_memory_us = [&](double moved) {
    return machine.memory_gbps > 0 ? moved / (machine.memory_gbps * 1e3) : 0;
  };
  const double others = product.bytes * (p.world - 1) / p.world;
  // Summing the other ranks' rows: one read for each source, and one write.
  const double shot_us =
      link.transfer_us(product.bytes * (p.world - 1)) + in_memory_us(others * (p.world + 1));
  // With unregistered outputs, rows that arrive in internal memory are copied to the output. An epilogue
  // stores the own rows there.
  const double fill_us = params.unregistered ? in_memory_us(2 * (in_epilogue ? others : product.bytes)) : 0;
  return shot_us < 2 * link.transfer_us(others) + fill_us;
}

/// Order of the shards that are summed; one shot has none, and sums in the epilogue come last: the parts that
/// they await have then long arrived.
///
/// If links are the bottleneck, they must be busy all the time, with all peers. Shard by shard, ranks that
/// drift apart would send to the same rank. Also, no link would be busy while a rank computes its own shard.
CommOrder order_of_sums(const FusedParams& params, bool one_shot, bool own_last, bool bound) {
  if (one_shot || params.comm_order == CommOrder::reverse) return CommOrder::ring;
  if (params.comm_order != CommOrder::automatic) return params.comm_order;
  return bound && !own_last ? CommOrder::interleaved : CommOrder::ring;
}

/// Number of workers that sum beside the product.
///
/// A product of few waves needs all workers, so there are none. A long product gets as many as keep up, if
/// `busy` holds and the machine gives their rate. `busy`: sums go to all ranks, or links are the bottleneck.
/// Otherwise there are a few, because all workers sum the rest soon after.
///
/// `moved`: elements that a rank reads and stores for its sums, in multiples of the product.
std::int32_t summing(const Machine& machine, const FusedParams& params, const Product& product, double moved,
                     bool busy) {
  constexpr double few = 2, many = 6;
  if (params.helpers == 0 && product.waves < few) return 0;
  if (params.helpers != 0 || !busy || product.waves < many)
    return planner::helpers_of(machine, params.helpers);
  const std::int32_t least = planner::helpers_of(machine, params.helpers),
                     most = planner::helpers_of(machine, params.helpers, 8);
  const double gbps = summing_gbps(machine);
  if (product.us == 0 || gbps == 0) return most;
  const double needed = moved * product.bytes / (gbps * 1e3) / product.us;
  return std::clamp(2 * static_cast<std::int32_t>(std::min(needed, 1.0 * most) / 2), least, most);
}

/// True if all tokens should arrive before the product begins. Its tiles then have rows of all ranks.
///
/// Otherwise a tile has rows of one rank, so that tiles hide the exchange. But the last tile of each rank and
/// expert is half empty, and all weights are read once for each rank. Half a tile of empty rows costs N·K
/// multiply-adds a row, and a hidden row saves K elements on the link. So wide weights need more rows.
bool awaits_all_tokens(const Problem& p, const Machine& machine, const FusedParams& params) {
  // Below this N, rows are few if reading a weight takes longer than multiplying them. Both from H200: 1000
  // multiply-adds while the link moves a byte, and 160 to 200 rows.
  constexpr double wide = 4000, tiles = 1.5;
  // With slots, tiles have rows of one rank anyway. What is hidden is one push, and helpers are missing in
  // the products: those of wide weights take long, whatever the rows are. From predictions for eight H200.
  constexpr double hidden_rows = 6;
  const double width = static_cast<double>(p.b_cols()) / wide;
  if (p.has_slots()) return static_cast<double>(p.expected_rows()) < hidden_rows * (width - 1);
  const auto groups = static_cast<double>(p.world * p.routing->experts());
  double rows = 0;
  for (int rank = 0; rank < p.world; ++rank) rows += static_cast<double>(p.routing->received(rank));
  const double tall = planner::tile_size(machine, params.tile).rows;
  return rows / groups < tiles * tall * std::max(1.0, width);
}

/// True if taking in the parts of an epilogue's sums takes no longer than a pass over all sources. Parts land
/// one after another, and the product waits for all but the first.
bool parts_land_in_time(const Problem& p, const Machine& machine) {
  if (machine.parts_gbps == 0) return true;
  const double gbps = summing_gbps(machine);
  return gbps == 0 || (p.world - 2) / machine.parts_gbps <= (p.world + 1) / gbps;
}

/// True if sums in the epilogue are faster than in a pass. Own tiles then come last, so other tiles must have
/// arrived before: not if all tiles are computed at once. Links stand still meanwhile, as sums that stay on
/// their rank do not use them: so the other tiles must take longer to compute than on the way.
bool own_tiles_can_wait(const Problem& p, const Machine& machine, const Product& product) {
  constexpr double few = 2;
  const bool stay = p.op != Op::gemm_allreduce;
  return product.waves >= few && !(stay && wire_bound(machine, product, 1)) && parts_land_in_time(p, machine);
}

/// Number of workers that copy arriving sums to the output beside the product: those that its last wave
/// leaves idle, but no more than keep up. Own tiles come last on every rank, so sums arrive during the time
/// of a shard. More than two ranks, or links that do not keep up, leave helpers too little of that time.
std::int32_t filling(const Problem& p, const Machine& machine, const FusedParams& params,
                     const Product& product) {
  if (params.helpers != 0) return params.helpers;
  if (product.us == 0 || machine.pass_gbps == 0) return planner::helpers_of(machine, params.helpers, 64);
  if (p.world > 2 || wire_bound(machine, product, p.world - 1)) return 0;
  const double tiles = product.waves * machine.workers;
  const auto idle = machine.workers - static_cast<std::int32_t>(std::ceil(tiles / std::ceil(product.waves)));
  const double copied_us = 2 * product.bytes * (p.world - 1) / p.world / (machine.pass_gbps * 1e3);
  const double needed = std::min(copied_us / (product.us / p.world), 1.0 * machine.workers);
  return std::min(2 * static_cast<std::int32_t>(std::ceil(needed / 2)), idle / 2 * 2);
}

/// True if every rank should store its sums of tokens on all ranks, rather than with their owners, which
/// return the result. Ranks copy that from internal memory to the output.
bool sends_to_all(const Problem& p, const Machine& machine, FusedParams params) {
  if (params.one_shot) return true;
  if (params.comm_order != CommOrder::automatic) return false;  // as of gemm+allreduce
  if (p.world <= 2) return true;
  params.unregistered = true;
  return one_shot_is_faster(p, machine, params, {0, 0, staged_bytes(p, params)}, false);
}

/// The params that the operator uses, including the planner's choices.
FusedParams choose(const Problem& p, const Machine& machine, const FusedParams& params) {
  FusedParams chosen;
  chosen.tile = params.tile;
  if (params.tile.rows > 0 || params.tile.cols > 0) {
    const planner::TileSize tile = planner::tile_size(machine, params.tile);
    chosen.tile.rows = tile.rows, chosen.tile.cols = tile.cols;
  }
  chosen.unregistered = params.unregistered;
  if (p.traits().reduces()) chosen.stage_fp32 = params.stage_fp32;
  if (p.traits().reduces() && !p.traits().grouped) {
    const bool asked =
        params.comm_order != CommOrder::automatic;  // true if the user asks for an order; one shot has none
    const Product product = product_of(p, machine, params);
    const auto share = [&] { return chosen.one_shot ? 1 : 1.0 / p.world; };  // of all rows, that a rank sums
    const auto bound_by_links = [&] {
      return !p.traits().shards_a() && wire_bound(machine, product, share() * (p.world - 1));
    };
    const auto where_to_sum = [&] {
      if (params.sums != SumsIn::automatic) return params.sums;
      return params.helpers == 0 && !asked && !why_not_in_epilogue(p, machine, chosen) &&
                     own_tiles_can_wait(p, machine, product)
                 ? SumsIn::epilogue
                 : SumsIn::pass;
    };
    chosen.one_shot = params.one_shot ||
                      (p.op == Op::gemm_allreduce && !asked && params.sums != SumsIn::epilogue &&
                       one_shot_is_faster(p, machine, params, product, where_to_sum() == SumsIn::epilogue));
    chosen.sums = where_to_sum();
    const bool for_all = p.op == Op::gemm_allreduce && !chosen.one_shot, bound = bound_by_links(),
               in_epilogue = chosen.sums == SumsIn::epilogue;
    chosen.comm_order = order_of_sums(params, chosen.one_shot, in_epilogue, bound);
    const double moved = share() * (p.world + (for_all ? p.world : 1));
    if (!in_epilogue) chosen.helpers = summing(machine, params, product, moved, bound || for_all);
    if (in_epilogue && for_all && params.unregistered && !planner::row_wise_finishing(p))
      chosen.helpers = filling(p, machine, params, product);
  }
  const bool fills = params.unregistered && p.op == Op::gemm_alltoall && !p.norm.enabled;
  if (p.op == Op::alltoall_gemm || fills) chosen.helpers = planner::helpers_of(machine, params.helpers);
  if (planner::dispatches_tokens(p)) {
    const bool open = p.has_slots() ? params.helpers == 0 : params.mover == Mover::automatic;
    // A copy engine would move all slots: only the device knows which of them have a token.
    chosen.mover = p.has_slots() ? Mover::store : params.mover;
    if (open && awaits_all_tokens(p, machine, params)) {
      chosen.mover = Mover::store;
      chosen.helpers = FusedParams::no_helpers;
    } else if (chosen.mover == Mover::store) {
      chosen.helpers = planner::helpers_of_experts(p, machine, params.tile, params.helpers);
    } else {
      chosen.comm_rows = params.comm_rows > 0 ? params.comm_rows : communication_rows(p, machine);
    }
  }
  if (p.traits().replicates_tokens()) {
    chosen.one_shot = sends_to_all(p, machine, params);
    if (!chosen.one_shot) chosen.comm_order = CommOrder::ring;
    chosen.helpers = planner::helpers_of_strips(p, machine, params.tile, params.helpers);
  } else if (p.traits().slices_experts()) {
    const bool open = params.helpers == 0 && (p.has_slots() || params.mover == Mover::automatic);
    // The device knows how many tokens there are: a copy engine moves as many as there may be.
    chosen.mover = p.has_slots() ? Mover::store : params.mover;
    chosen.helpers = planner::helpers_of_experts(p, machine, params.tile, params.helpers);
    if (open && planner::sorts_before_product(p, machine, params.tile)) {
      chosen.mover = Mover::store;
      chosen.helpers = FusedParams::no_helpers;
    }
    const bool beside = params.helpers > 0 && params.slots == SlotOrder::automatic;
    if (p.has_slots())
      chosen.slots =
          beside ? SlotOrder::by_source : planner::slot_order(p, machine, params.tile, params.slots);
    if (chosen.slots == SlotOrder::merged) chosen.helpers = FusedParams::no_helpers;
  }
  if (p.traits().shards_a()) {
    chosen.comm_rows = params.comm_rows > 0 ? params.comm_rows : communication_rows(p, machine);
    chosen.pull = params.pull && !params.unregistered;
    // A copy engine would fetch in a queue of the peer's device, behind copies that wait there.
    chosen.mover = chosen.pull ? Mover::store : params.mover;
    chosen.comm_order = params.comm_order == CommOrder::automatic ? CommOrder::ring : params.comm_order;
    // The product takes rows of all shards in their order.
    if (p.row_order == RowOrder::block_cyclic) chosen.comm_order = CommOrder::interleaved;
    if (chosen.mover == Mover::store) chosen.helpers = planner::helpers_of(machine, params.helpers);
  }
  return chosen;
}

/// True if the last tiles of a reduce-scatter's product should all be the rank's own. No data is then in
/// flight when the product ends. All earlier tiles leave the rank, and the links must keep up with them.
bool ends_with_own(const Problem& p, const Machine& machine, const FusedParams& chosen) {
  return p.traits().scatters() && !p.traits().shards_a() && chosen.comm_order == CommOrder::ring &&
         !wire_bound(machine, product_of(p, machine, chosen), 1);
}

Rounding rounding(const Problem& p, const FusedParams& params) {
  if (!p.traits().reduces()) return planner::rounding(p);
  return {params.sums == SumsIn::epilogue ? Summing::owner_first : Summing::rank_order,
          params.stage_fp32 ? DType::f32 : p.dtype};
}

}  // namespace

Result<Plan> plan_fused(const Problem& problem, const Machine& host, const FusedParams& asked) {
  problem.validate();
  FusedParams params = asked;
  params.tile.order.rotation = 0;  // the planner's alone: each rank starts at a different shard
  Machine machine = host;
  machine.collective_workers = 0;  // no collective takes part
  if (auto reason = planner::infeasible(problem, machine, params)) return *reason;
  if (auto reason = planner::needs_all_ranks(problem, params.symmetric, "fused")) return *reason;
  if (auto reason = unserved_by_fused(problem, machine, params)) return *reason;
  planner::FusedBuilder build(problem, machine, choose(problem, machine, params));
  switch (problem.op) {
    case Op::gemm_allreduce:
    case Op::gemm_reducescatter:
    case Op::attention_reducescatter:
      planner::fuse_reduction(build, machine, ends_with_own(problem, machine, build.params()));
      break;
    case Op::allgather_gemm:
      planner::fuse_gather(build, machine);
      break;
    case Op::gemm_alltoall:
      planner::fuse_scatter(build, machine);
      break;
    case Op::alltoall_gemm:
      planner::fuse_dispatch(build, machine);
      break;
    case Op::alltoall_grouped_gemm:
    case Op::grouped_gemm_alltoall:
    case Op::moe:
      planner::fuse_experts(build, machine);
      break;
    case Op::allgather_grouped_gemm:
    case Op::grouped_gemm_reducescatter:
    case Op::moe_tp:
      if (build.params().slots == SlotOrder::merged)
        planner::fuse_merged_experts(build, machine);
      else
        planner::fuse_sliced_experts(build, machine);
      break;
    case Op::grouped_gemm_allreduce:
    case Op::moe_allreduce:
      planner::fuse_replicated_tokens(build, machine);
      break;
    case Op::mlp:
      planner::fuse_mlp(build, machine);
      break;
    default:  // refused above
      break;
  }
  const FusedParams chosen = build.params();
  return std::move(build).finish(rounding(problem, chosen));
}

}  // namespace shingle
