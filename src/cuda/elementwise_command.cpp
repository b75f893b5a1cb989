// Elementwise steps.
#include <fmt/format.h>

#include "cuda/command.hpp"
#include "cuda/elements.hpp"
#include "cuda/raii/check.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

class Pass final : public Command {
 public:
  explicit Pass(const ElementwiseArgs& args) : args_(args) {}
  void enqueue(cudaStream_t stream) override { check(launch_elementwise(args_, stream), "launch a pass"); }

 private:
  ElementwiseArgs args_;
};

std::vector<TileAt> order_of(const TileGrid& grid) {
  std::vector<TileAt> order;
  for (std::int64_t p = 0; p < grid.positions(); ++p) {
    const Tile tile = grid.tile(p);
    order.push_back(grid.phantom(tile) ? TileAt{-1, -1}
                                       : TileAt{static_cast<std::int32_t>(tile.m), static_cast<std::int32_t>(tile.n)});
  }
  return order;
}

std::vector<std::int32_t> positions_of(const TileGrid& grid) {
  std::vector<std::int32_t> positions;
  for (std::int64_t m = 0; m < grid.tiles_m(); ++m)
    for (std::int64_t n = 0; n < grid.tiles_n(); ++n)
      positions.push_back(static_cast<std::int32_t>(grid.linear({m, n})));
  return positions;
}

}  // namespace

std::unique_ptr<Command> make_command(const Context& context, const Elementwise& step) {
  if (step.queue >= 0) throw Unsupported("passes that lanes share are not carried out on GPUs");
  const TileGrid& grid = step.grid;
  if (grid.tiles() == 0 || step.first >= last_item(step)) return nullptr;
  const auto& dtype = [&](const Placement& at) {
    return context.plan.buffers[static_cast<std::size_t>(at.slice.buffer)].dtype;
  };
  const Tables tables = context.tables();
  const Tiling tiling{grid, all_positions(grid), grid.tile_rows, 1, grid.tile_rows};
  ElementwiseArgs args;
  args.source_type = element(dtype(step.from.front()));
  args.type = element(dtype(step.to));
  args.rows = grid.rows, args.cols = grid.cols;
  args.tile_rows = grid.tile_rows, args.tile_cols = grid.tile_cols;
  args.tiles_n = static_cast<std::int32_t>(grid.tiles_n());
  args.first = step.first, args.last = last_item(step);
  args.order = context.arena.put(order_of(grid));
  if (row_wise(step)) args.position_of = context.arena.put(positions_of(grid));
  std::vector<Route> sources;
  for (const Placement& from : step.from) sources.push_back(tables.route(from, tiling));
  args.sources = context.arena.put(sources);
  args.source_count = static_cast<std::int32_t>(sources.size());
  args.to = tables.route(step.to, tiling);
  args.activate = activate(step.epilogue.activation);
  if (step.epilogue.bias) args.bias = context.memory.at(step.bias, context.parity);
  args.norm = step.norm.enabled;
  args.epsilon = step.norm.epsilon;
  if (args.norm) args.norm_weight = context.memory.at(step.norm_weight, context.parity);
  args.has_residual = step.norm.residual;
  if (args.has_residual) {
    args.residual = tables.route(step.residual, tiling);
    args.sum = tables.route(step.sum, tiling);
  }
  args.gate = tables.gates(step.gates, tiling, context.rank);
  args.notify = tables.notifies(step.notify, tiling, context.rank);
  args.watch = context.watch;
  // One that waits holds the SMs that it has: it leaves the others their own.
  args.ctas = step.gates.empty() ? 0 : step.resources.most;
  return std::make_unique<Pass>(args);
}

}  // namespace shingle::cuda
