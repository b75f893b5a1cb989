// The params of `fused`.
#include <algorithm>

#include "fused.hpp"
#include "planner/common/param_table.hpp"

namespace shingle {
namespace planner {
namespace {

using P = FusedParams;

/// True if shards are gathered in communication tiles.
bool gathers(const Tuning<P>& tuning) {
  return tuning.problem.traits().shards_a();
}

/// True if copy engines may take shards or tokens where the product reads them.
bool moves_inputs(const Tuning<P>& tuning) {
  return gathers(tuning) || (dispatches_tokens(tuning.problem) && !tuning.problem.has_slots());
}

std::vector<std::int64_t> comm_rows_to_try(const Tuning<P>& tuning) {
  if (!moves_inputs(tuning)) return {};
  const std::int64_t rows = most_moved_rows(tuning.problem);
  return {rows, ceil_div(rows, 2), ceil_div(rows, 4), ceil_div(rows, 8)};
}

/// By default shards go by copy engine, and tokens by size.
std::vector<Mover> movers_to_try(const Tuning<P>& tuning) {
  const OperatorTraits& traits = tuning.problem.traits();
  const bool gathers_tokens =
      traits.slices_experts() && !traits.replicates_tokens() && !tuning.problem.has_slots();
  if (!moves_inputs(tuning) && !gathers_tokens) return {};
  if (dispatches_tokens(tuning.problem)) return {Mover::automatic, Mover::copy_engine, Mover::store};
  return {Mover::automatic, Mover::store};
}

std::vector<CommOrder> comm_orders_to_try(const Tuning<P>& tuning) {
  if (gathers(tuning)) return {CommOrder::ring, CommOrder::reverse, CommOrder::interleaved};
  const OperatorTraits& traits = tuning.problem.traits();
  if (traits.replicates_tokens()) return {CommOrder::automatic, CommOrder::ring};
  if (!traits.reduces() || traits.grouped) return {};
  // An explicit order excludes one-shot; `automatic` keeps it possible.
  return {CommOrder::automatic, CommOrder::ring, CommOrder::interleaved};
}

std::vector<SumsIn> sums_to_try(const Tuning<P>& tuning) {
  if (!tuning.problem.traits().reduces() || tuning.problem.traits().grouped || tuning.at.helpers != 0)
    return {};
  // Where sums stay on their rank, the planner's rule is measured, and predictions of epilogues that wait for
  // links are up to a quarter too fast.
  if (tuning.problem.op != Op::gemm_allreduce) return {SumsIn::automatic, SumsIn::pass};
  return {SumsIn::automatic, SumsIn::epilogue, SumsIn::pass};
}

/// The planner sets the rotation: each rank starts at a different shard.
ParamTable<P> tiles_without_rotation() {
  ParamTable<P> rows = tuned_tile_rows<P>();
  std::erase_if(rows, [](const ParamRow<P>& row) { return row.info.name == "rotation"; });
  return rows;
}

}  // namespace

}  // namespace planner

const planner::ParamTable<FusedParams>& FusedParams::table() {
  using namespace planner;
  static const ParamTable<P> table = joined(
      tiles_without_rotation(),
      {
          slots_row<P>(),
          helpers_row<P>(helpers_to_try<P>),
          row<&P::sums>("sums", "WHERE",
                        "Where owners add the ranks' parts: epilogue (the default, if it can) or pass",
                        sums_to_try),
          row<&P::stage_fp32>("stage-fp32", "", "Send partial products in fp32"),
          row<&P::one_shot>(
              "one-shot", "", "All-reduce: each rank sends its product, or its sums of tokens, to all ranks",
              [](const Tuning<P>& tuning) {
                // Two ranks send sums of tokens in one shot anyway.
                const Problem& p = tuning.problem;
                const bool open = sums_on_all(p) && !(p.traits().replicates_tokens() && p.world <= 2);
                return open ? std::vector{false, true} : std::vector<bool>{};
              }),
          row<&P::comm_rows>("comm-rows", "ROWS",
                             "Rows of a communication tile (allgather+gemm, mlp); tokens of a copy (experts)",
                             comm_rows_to_try),
          row<&P::pull>("pull", "", "Workers fetch the shards of peers; by default their holders send them",
                        [](const Tuning<P>& tuning) {
                          return gathers(tuning) && !tuning.fixed.unregistered ? std::vector{false, true}
                                                                               : std::vector<bool>{};
                        }),
          row<&P::mover>("mover", "NAME",
                         "What moves shards and tokens: copy-engine or store (default: by size)",
                         movers_to_try),
          row<&P::comm_order>("comm-order", "ORDER",
                              "Order of communication tiles. Gathers: ring (the default), reverse, "
                              "interleaved. Sums: ring, same, interleaved (the default if links are the "
                              "bound)",
                              comm_orders_to_try),
          unregistered_row<P>(),
          symmetric_row<P>(),
      });
  return table;
}

}  // namespace shingle
