// fused: communication inside the GEMM (FLUX; docs/mechanisms/fused.md). Tiles are stored straight into other
// ranks' memory, or wait for their rows to come from there; no collective library takes part.
#include "fused.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "planner/common/symmetry.hpp"
#include "shingle/machine/machine.hpp"

namespace shingle {

void planner::share(Builder& build, int rank, Elementwise pass, std::int32_t lane, std::int32_t some,
                    std::int32_t rest) {
  if (some > 0) {
    Elementwise beside = pass;
    beside.resources = {1, some};
    const TileGate& gate = pass.gates.front();
    build.await(rank, lane, gate.counter, gate.entry(0), gate.targets.front());
    build.step(rank, lane, std::move(beside));
  }
  pass.resources = {1, rest};
  build.step(rank, compute_lane, std::move(pass));
}

namespace {

using planner::Builder;

std::optional<Reason> unserved_by_fused(const Problem& p, const Machine& machine, const Params& params) {
  if (auto reason = planner::nothing_to_overlap(p)) return *reason;
  if (p.traits().attends) return Reason{"attention is cut into slices by ring"};
  if (!machine.peer_memory && p.world > 1)
    return Reason{"fused stores into other ranks' memory, which ranks cannot reach here"};
  if (p.op == Op::gemm_allgather_gemm)
    return Reason{"fused moves rows that are there when it begins: use chunked or copy-engine"};
  if (p.row_order == RowOrder::block_cyclic)
    return Reason{"fused keeps every rank's rows together: rows dealt in blocks are signal's"};
  if (params.helpers < Params::no_helpers || params.helpers >= larger(machine.workers, 1))
    return Reason{
        fmt::format("{} of {} workers beside the GEMM leave none for it", params.helpers, machine.workers)};
  if (params.comm_order == CommOrder::same && p.traits().shards_a())
    return Reason{
        "a rank gathers its own rows first: no order of communication tiles is the same on all ranks"};
  if (params.comm_rows < 0) return Reason{"a communication tile has at least one row"};
  if (params.one_shot && p.op != Op::gemm_allreduce) return Reason{"one shot is for gemm+allreduce"};
  return std::nullopt;
}

/// Of a product as it travels.
double staged_bytes(const Problem& p, const Params& params) {
  const DType dtype = params.stage_fp32 ? DType::f32 : p.dtype;
  return static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(size_bytes(dtype));
}

/// Rows of a communication tile: a quarter of a shard, or more where a copy would take less time than what
/// comes with it.
std::int64_t communication_rows(const Problem& p, const Machine& machine) {
  constexpr std::int64_t most_pieces = 4;
  const double row_bytes = static_cast<double>(p.k) * static_cast<double>(size_bytes(p.dtype));
  const double worth_us = machine.engine.copy_us + machine.engine.sync_us;
  std::int64_t pieces = most_pieces;
  while (pieces > 1 && machine.link.paced() &&
         row_bytes * static_cast<double>(p.shard_rows()) / static_cast<double>(pieces) <
             worth_us * machine.link.gbps * 1e3)
    --pieces;
  return ceil_div(p.shard_rows(), pieces);
}

/// Of the workers a few, where nothing else was said: they keep up with what arrives, and those of a GPU
/// leave its waves as they are (docs/mechanisms/fused.md).
std::int32_t helpers_of(const Machine& machine, const Params& params, std::int32_t one_in = 32) {
  return params.helpers != 0 ? params.helpers : machine.workers / one_in;
}

/// How many waves of tiles the product is, how long they take (0: the machine does not say), and how many
/// bytes of it travel if all do.
struct Product {
  double waves = 0;
  double us = 0;
  double bytes = 0;
};
Product product_of(const Problem& p, const Machine& machine, const Params& params) {
  const auto [rows, cols] = planner::tile_size(machine, params);
  const auto tiles = static_cast<double>(ceil_div(p.m, rows) * ceil_div(p.n, cols));
  const double waves = tiles / machine.workers;
  return {waves, std::max(waves * wave_us(machine, rows, cols, static_cast<double>(p.k)), 0.0),
          staged_bytes(p, params)};
}

/// Whether so many times a product take longer to store to others than the product takes.
bool wire_bound(const Machine& machine, const Product& product, double times) {
  if (!machine.link.paced() || product.us == 0) return false;
  const double gbps = machine.store_gbps > 0 ? machine.store_gbps : machine.link.gbps;
  return times * product.bytes / (gbps * 1e3) > product.us;
}

/// Whether sending everything to everybody, who then sums all rows, is sooner there than two hops of a shard
/// each.
bool one_shot_is_faster(const Problem& p, const Machine& machine, const Params& params,
                        const Product& product) {
  const Link& link = machine.link;
  if (!link.paced()) return false;
  const auto in_memory_us = [&](double moved) {
    return machine.memory_gbps > 0 ? moved / (machine.memory_gbps * 1e3) : 0;
  };
  const double others = product.bytes * (p.world - 1) / p.world;
  // The sums of the others' rows: a read for each source, a write.
  const double shot_us =
      link.transfer_us(product.bytes * (p.world - 1)) + in_memory_us(others * (p.world + 1));
  // What comes to memory beside the output goes on to it.
  const double fill_us = params.unregistered ? in_memory_us(2 * product.bytes) : 0;
  return shot_us < 2 * link.transfer_us(others) + fill_us;
}

/// The order of the shards that are summed; one shot has none. Where links are the bound, they are to be busy
/// all the time, and with all of the others: shard after shard, ranks that drift meet at one of them, and
/// none is sent to while a rank computes its own.
CommOrder order_of_sums(const Params& params, bool one_shot, bool bound) {
  if (one_shot || params.comm_order == CommOrder::reverse) return CommOrder::ring;
  if (params.comm_order != CommOrder::automatic) return params.comm_order;
  return bound ? CommOrder::interleaved : CommOrder::ring;
}

/// Workers that sum beside the product: none where it is soon over and needs all of them. Where it is long,
/// and either each sum goes to all or the product has time, as many as keep up with it, if the machine says
/// how fast they sum; else a few, as what they leave is soon summed by all. `moved`: what a rank reads and
/// stores for its sums, in products.
std::int32_t summing(const Machine& machine, const Params& params, const Product& product, double moved,
                     bool busy) {
  constexpr double few = 2, many = 6;
  if (params.helpers == 0 && product.waves < few) return 0;
  if (params.helpers != 0 || !busy || product.waves < many) return helpers_of(machine, params);
  const std::int32_t least = helpers_of(machine, params), most = helpers_of(machine, params, 8);
  const double gbps = machine.reduce_gbps > 0 ? machine.reduce_gbps : machine.pass_gbps;
  if (product.us == 0 || gbps == 0) return most;
  const double needed = moved * product.bytes / (gbps * 1e3) / product.us;
  return std::clamp(2 * static_cast<std::int32_t>(std::min(needed, 1.0 * most) / 2), least, most);
}

/// The parameters that the operator uses, with what the planner chooses.
Params choose(const Problem& p, const Machine& machine, const Params& params) {
  Params chosen;
  chosen.tile_rows = params.tile_rows;
  chosen.tile_cols = params.tile_cols;
  chosen.order = params.order;
  chosen.unregistered = params.unregistered;
  if (p.traits().reduces()) {
    chosen.stage_fp32 = params.stage_fp32;
    const bool asked = params.comm_order != CommOrder::automatic;  // for an order, which one shot has not
    const Product product = product_of(p, machine, params);
    chosen.one_shot = params.one_shot || (p.op == Op::gemm_allreduce && !asked &&
                                          one_shot_is_faster(p, machine, params, product));
    const double share = chosen.one_shot ? 1 : 1.0 / p.world;  // of the rows that a rank sums
    const bool bound = !p.traits().shards_a() && wire_bound(machine, product, share * (p.world - 1));
    chosen.comm_order = order_of_sums(params, chosen.one_shot, bound);
    const bool for_all = p.op == Op::gemm_allreduce && !chosen.one_shot;
    const double moved = share * (p.world + (for_all ? p.world : 1));
    chosen.helpers = summing(machine, params, product, moved, bound || for_all);
  }
  const bool fills = params.unregistered && p.op == Op::gemm_alltoall && !p.norm.enabled;
  if (p.op == Op::alltoall_gemm || fills) chosen.helpers = helpers_of(machine, params);
  if (p.traits().shards_a()) {
    chosen.comm_rows = params.comm_rows > 0 ? params.comm_rows : communication_rows(p, machine);
    chosen.pull = params.pull && !params.unregistered;
    chosen.mover = params.mover;
    chosen.comm_order = params.comm_order == CommOrder::automatic ? CommOrder::ring : params.comm_order;
    if (params.mover == Mover::store) chosen.helpers = helpers_of(machine, params);
  }
  return chosen;
}

/// Whether the last tiles of a product that is summed on one rank only are all to be the rank's own: nothing
/// of them is on its way when the product ends. Links have to keep up with tiles that all leave, which come
/// before.
bool ends_with_own(const Problem& p, const Machine& machine, const Params& chosen) {
  return p.op == Op::gemm_reducescatter && chosen.comm_order == CommOrder::ring &&
         !wire_bound(machine, product_of(p, machine, chosen), 1);
}

Rounding rounding(const Problem& p, const Params& params) {
  if (!p.traits().reduces()) return planner::rounding(p);
  return {Summing::rank_order, params.stage_fp32 ? DType::f32 : p.dtype};
}

}  // namespace

Result<Plan> plan_fused(const Problem& problem, const Machine& host, const Params& params) {
  problem.validate();
  Machine machine = host;
  machine.collective_workers = 0;  // no library takes part
  if (auto reason = planner::infeasible(problem, machine, params)) return *reason;
  if (auto reason = planner::needs_all_ranks(problem, params, "fused")) return *reason;
  if (auto reason = unserved_by_fused(problem, machine, params)) return *reason;
  Builder build(problem, machine, Mechanism::fused, choose(problem, machine, params));
  switch (problem.op) {
    case Op::gemm_allreduce:
    case Op::gemm_reducescatter:
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
    case Op::mlp:
      planner::fuse_mlp(build, machine);
      break;
    default:  // refused above
      break;
  }
  const Params chosen = build.params();
  return std::move(build).finish(rounding(problem, chosen));
}

}  // namespace shingle
