// Elementwise steps: passes over a tile grid.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "command.hpp"
#include "cuda/kernels/sync.hpp"
#include "cuda/raii/check.hpp"
#include "elements.hpp"
#include "grid/tiles.hpp"
#include "plan/steps.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

/// What a pass reads beside its matrices. Bias and norm weight are of the matrices' type.
struct Vectors {
  Address bias, norm_weight, factors;
};

/// One kernel for a pass, or one for each part of it. Each part first waits for an event or a counter.
class Pass final : public Command {
 public:
  struct Part {
    /// Event to wait for. If null, the part waits for a counter; if that is null too, for nothing.
    const Event* event = nullptr;
    SyncOp await{};
    std::int64_t first = 0, last = 0;
    ElementwiseLaunch launch{};  ///< set by the pass
  };
  Pass(const ElementwiseArgs& args, std::vector<Part> parts, const Vectors& vectors = {})
      : args_(args), parts_(std::move(parts)), vectors_(vectors) {
    args_.bias = vectors.bias.at;  // the launch depends on whether there is one
    args_.factors = reinterpret_cast<const float*>(vectors.factors.at);
    for (Part& part : parts_) {
      args_.first = part.first, args_.last = part.last;
      check(prepare_elementwise(args_, part.launch), "prepare a pass");
    }
  }
  /// In a call, rows beyond its tokens are left alone. Their tiles still notify.
  void limit_to_tokens() { limited_ = true; }
  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    ElementwiseArgs args = args_;
    args.shifts = shifts;
    if (limited_ && shifts.tokens >= 0) args.rows = std::min<std::int64_t>(args.rows, shifts.tokens);
    for (Route* const route : {&args.to, &args.residual, &args.sum}) route->shift = shifts.of[route->matrix];
    args.bias = vectors_.bias.in(shifts);
    args.norm_weight = vectors_.norm_weight.in(shifts);
    args.factors = reinterpret_cast<const float*>(vectors_.factors.in(shifts));
    for (const Part& part : parts_) {
      if (part.event != nullptr)
        part.event->make_wait(stream);
      else if (part.await.counter != nullptr)
        check(launch_sync(&part.await, 1, args_.watch, stream), "launch a wait");
      args.first = part.first, args.last = part.last;
      check(launch_elementwise(args, part.launch, stream), "launch a pass");
    }
  }

 private:
  ElementwiseArgs args_;
  std::vector<Part> parts_;
  Vectors vectors_;
  bool limited_ = false;
};

/// Splits a pass into parts that each wait on the stream, if lowering found groups of items that come in
/// order. A single kernel with gates would hold its SMs while it waits. Its many polling threads also slow
/// concurrent data movement (an NCCL collective ten times). With parts, one thread waits for each group.
/// Passes that share a work queue are not split: any lane may claim the next item.
std::vector<Pass::Part> parts_of(const Context& context, const Elementwise& step) {
  if (context.launch.parts.empty()) return {{nullptr, {}, step.first, last_item(step)}};
  std::vector<Pass::Part> parts;
  for (const LaunchPart& part : context.launch.parts)
    parts.push_back({part.event >= 0 ? &context.events[static_cast<std::size_t>(part.event)] : nullptr,
                     {SyncKind::await, context.memory.counter(part.counter), part.target,
                      context.memory.growth(part.counter)},
                     part.first,
                     part.last});
  return parts;
}

/// Positions of the tiles, by row and column of tiles.
std::vector<std::int32_t> positions_of(const Tiling& tiling) {
  std::vector<std::int32_t> positions(static_cast<std::size_t>(tiling.grid.tiles()));
  for (const std::int64_t position : tiling.positions)
    if (const Tile tile = tiling.tile(position); !tiling.grid.phantom(tile))
      positions[static_cast<std::size_t>(tile.m * tiling.grid.tiles_n() + tile.n)] =
          static_cast<std::int32_t>(position);
  return positions;
}

/// The tiles of a pass in the order of execution. Where tiles wait for nothing and count for the same
/// counters, those with the same source rows follow each other. A pass that sorts tokens reads each token
/// once for each of its experts: once from memory, then from caches.
Tiling in_turn(const Context& context, const Elementwise& step, const std::vector<Tile>& tiles) {
  const TileGrid& grid = step.grid;
  Tiling tiling{grid, tiles, all_positions(grid), grid.tile_rows, 1, grid.tile_rows};
  const bool in_any_order =
      step.gates.empty() && context.launch.parts.empty() && step.queue < 0 && step.first == 0 &&
      last_item(step) == grid.positions() && grid.tiles_n() == 1 && step.from.size() == 1 &&
      !row_wise(step) && std::ranges::all_of(step.notify, [](const auto& to) { return to.ends.size() == 1; });
  const auto* const matrix = std::get_if<placement::Matrix>(&step.from.front().form);
  if (!in_any_order || matrix == nullptr || matrix->rows.world == 1) return tiling;
  std::ranges::stable_sort(tiling.positions, {}, [&](std::int64_t position) {
    const Tile& tile = tiling.tile(position);
    if (grid.phantom(tile)) return std::numeric_limits<std::int64_t>::max();
    return matrix->rows.run_at(tile.m * grid.tile_rows, 1).matrix_row;
  });
  return tiling;
}

/// Where row 0 of a slice lies.
Route first_row(const Context& context, const Slice& slice) {
  const Address at = context.memory.at(slice, context.parity);
  Route route;
  route.base = at.at;
  route.row_bytes = context.memory.row_bytes(slice.buffer);
  route.matrix = at.matrix;
  return route;
}

/// A pass with its tables. Only if `waits` its items await their gates.
ElementwiseArgs tabled(const Context& context, const Elementwise& step, bool waits) {
  const TileGrid& grid = step.grid;
  const auto& dtype = [&](const Placement& at) {
    return context.plan.buffers[static_cast<std::size_t>(at.slice.buffer)].dtype;
  };
  const Tables tables = context.tables();
  const std::vector<Tile> tiles = tiles_of(grid);
  const Tiling tiling = in_turn(context, step, tiles);
  ElementwiseArgs args;
  const auto is_wide = [&](const Placement& from) { return dtype(from) == DType::f32; };
  const auto narrow = std::ranges::find_if_not(step.from, is_wide);
  args.source_type = narrow == step.from.end() ? Element::f32 : element(dtype(*narrow));
  args.mixed = narrow != step.from.end() && std::ranges::any_of(step.from, is_wide);
  args.type = element(dtype(step.to));
  args.rows = grid.rows, args.cols = grid.cols;
  args.tile_rows = grid.tile_rows, args.tile_cols = grid.tile_cols;
  args.tiles_n = static_cast<std::int32_t>(grid.tiles_n());
  args.first = step.first, args.last = last_item(step);
  args.order = context.table_memory.put(order_of(tiling, true));
  if (row_wise(step)) args.position_of = context.table_memory.put(positions_of(tiling));
  std::vector<Route> sources;
  for (const Placement& from : step.from) {
    sources.push_back(is_indexed(from) ? first_row(context, from.slice) : tables.route(from, tiling));
    sources.back().wide = is_wide(from);
  }
  if (is_indexed(step.from.front())) {
    const Slice& index = std::get<placement::Indexed>(step.from.front().form).index;
    args.index = reinterpret_cast<const std::int32_t*>(context.memory.at(index, context.parity).at);
    args.index_row = context.memory.row_bytes(index.buffer) / std::int64_t{sizeof(std::int32_t)};
  }
  args.sources = context.table_memory.put(sources);
  args.source_count = static_cast<std::int32_t>(sources.size());
  args.to = tables.route(step.to, tiling);
  args.scale = step.epilogue.scale;
  args.activate = activate(step.epilogue.activation);
  args.norm = step.norm.enabled;
  args.epsilon = step.norm.epsilon;
  args.has_residual = step.norm.residual;
  if (args.has_residual) {
    args.residual = tables.route(step.residual, tiling);
    args.sum = tables.route(step.sum, tiling);
  }
  if (waits) args.gate = tables.gates(step.gates, tiling, context.rank);
  args.notify = tables.notifies(step.notify, tiling, context.rank);
  return args;
}

/// As tabled(). Steps that share a queue are one pass in several lanes, and share its tables.
ElementwiseArgs tabled_once(const Context& context, const Elementwise& step, bool waits) {
  if (step.queue < 0 || context.queued == nullptr) return tabled(context, step, waits);
  const auto known = context.queued->find(step.queue);
  if (known != context.queued->end()) return known->second;
  return context.queued->emplace(step.queue, tabled(context, step, waits)).first->second;
}

/// Limit of a pass's CTAs; 0: none. A pass with gates holds its SMs while it waits, and a pass that notifies
/// runs beside other kernels. Both take only their share of the SMs, and so does a pass that asks for an
/// exact number of them.
std::int32_t most_ctas(const Elementwise& step, bool waits) {
  const bool exact = step.resources.least == step.resources.most;
  return waits || !step.notify.empty() || exact ? step.resources.most : 0;
}

/// True if the CTAs of a pass take SMs in pairs.
bool in_pairs(const Context& context, const Elementwise& step, std::int32_t ctas) {
  return context.pairs && step.gates.empty() && ctas > 0;
}

/// Throws Unsupported unless adjacent columns of one index pick the rows of all sources, or there is none.
/// Sources have one type: that of the output, which may also be f32.
void require_index(const Plan& plan, const Elementwise& step) {
  if (std::ranges::none_of(step.from, is_indexed)) return;
  const auto type = [&](const Placement& at) {
    return plan.buffers[static_cast<std::size_t>(at.slice.buffer)].dtype;
  };
  std::optional<Slice> next;
  for (const Placement& from : step.from) {
    const auto* const picked = std::get_if<placement::Indexed>(&from.form);
    const bool typed =
        type(from) == type(step.from.front()) && (type(from) == type(step.to) || type(step.to) == DType::f32);
    if (picked == nullptr || (next && picked->index != *next) || !typed)
      throw Unsupported(
          "CUDA: a pass picks the rows of all its sources by adjacent columns of one index, in one type");
    next = picked->index;
    ++next->col;
  }
}

}  // namespace

void require_served(const Plan& plan, const Elementwise& step) {
  if (step.from.empty()) return;
  const auto dtype = [&](const Slice& slice) {
    return plan.buffers[static_cast<std::size_t>(slice.buffer)].dtype;
  };
  const DType type = dtype(step.to.slice);
  const DType first = dtype(step.from.front().slice);
  DType narrow = type;  // of sources that are not f32
  for (const Placement& from : step.from) {
    const DType source = dtype(from.slice);
    if (row_wise(step) && (source != first || (source != type && source != DType::f32)))
      throw Unsupported(
          fmt::format("CUDA: a row-wise pass (RMSNorm, SwiGLU) reads sources in f32 or in the output's type; "
                      "here it reads {} and {}, and writes {}",
                      name(first), name(source), name(type)));
    if (narrow == DType::f32) narrow = source;
    if (source != narrow && source != DType::f32)
      throw Unsupported(
          fmt::format("CUDA: a pass reads and writes f32 and one other type; this one uses {} and {}",
                      name(narrow), name(source)));
  }
  const auto same = [&](bool used, const Slice& slice) {
    if (used && dtype(slice) != type)
      throw Unsupported(fmt::format(
          "CUDA: bias, norm weight and residual of a pass must have the output's type {1}, not {0}",
          name(dtype(slice)), name(type)));
  };
  same(step.epilogue.bias, step.bias);
  same(step.norm.enabled, step.norm_weight);
  same(step.norm.residual, step.residual.slice);
  same(step.norm.residual, step.sum.slice);
  require_index(plan, step);
  if ((step.factors.buffer >= 0 || step.epilogue.scale != 1) && row_wise(step))
    throw Unsupported("CUDA: a weighted or scaled sum has neither norm nor SwiGLU");
}

std::unique_ptr<Command> make_command(const Context& context, const std::vector<Elementwise>& steps) {
  const Elementwise& first = steps.front();
  const TileGrid& grid = first.grid;
  if (grid.tiles() == 0 || first.first >= last_item(first)) return nullptr;
  std::vector<std::pair<Placement, Placement>> passes;
  for (const Elementwise& step : steps) passes.emplace_back(step.from.front(), step.to);
  const std::vector<Tile> tiles = tiles_of(grid);
  const Tiling tiling = in_turn(context, first, tiles);
  const auto moves = context.tables().moves(passes, tiling);
  if (!moves) {
    std::vector<std::unique_ptr<Command>> parts;
    for (const Elementwise& step : steps) parts.push_back(make_command(context, step));
    return std::make_unique<Sequence>(std::move(parts));
  }
  ElementwiseArgs args;
  args.type = args.source_type =
      element(context.plan.buffers[static_cast<std::size_t>(first.to.slice.buffer)].dtype);
  args.rows = grid.tiles_m() * moves->rows, args.cols = grid.cols;
  args.tile_rows = moves->rows, args.tile_cols = grid.tile_cols;
  args.tiles_n = static_cast<std::int32_t>(grid.tiles_n());
  args.order = context.table_memory.put(order_of(tiling, true));
  args.sources = context.table_memory.put(std::vector<Route>{moves->from});
  args.source_count = 1;
  args.to = moves->to;
  args.ctas = most_ctas(first, false);
  args.pairs = in_pairs(context, first, args.ctas);
  args.watch = context.watch;
  return std::make_unique<Pass>(args, parts_of(context, first));
}

std::unique_ptr<Command> make_command(const Context& context, const Elementwise& step) {
  require_served(context.plan, step);
  if (step.grid.tiles() == 0 || step.first >= last_item(step)) return nullptr;
  const bool waits = !step.gates.empty() && context.launch.parts.empty();
  ElementwiseArgs args = tabled_once(context, step, waits);
  Vectors vectors;
  if (step.epilogue.bias) vectors.bias = context.memory.at(step.bias, context.parity);
  if (args.norm) vectors.norm_weight = context.memory.at(step.norm_weight, context.parity);
  if (step.factors.buffer >= 0) {
    vectors.factors = context.memory.at(step.factors, context.parity);
    args.factors_row = context.memory.row_bytes(step.factors.buffer) / std::int64_t{sizeof(float)};
  }
  if (step.queue >= 0) args.queue = context.queues + step.queue;
  args.queue_grows = !context.memory.by_call();
  args.watch = context.watch;
  args.ctas = most_ctas(step, waits);
  args.pairs = in_pairs(context, step, args.ctas);
  args.early = context.launch.may_start_early;
  auto pass = std::make_unique<Pass>(args, parts_of(context, step), vectors);
  if (matrix_of_tokens(context.plan, step) != nullptr) pass->limit_to_tokens();
  return pass;
}

std::unique_ptr<Command> make_fetch(const Context& context, const Slice& from, const Slice& to) {
  const auto whole = [](const Slice& slice) {
    return Placement{slice, placement::Matrix{RowMap::identity(slice.rows)}};
  };
  Elementwise pass;
  pass.grid = make_grid(to.rows, to.cols, fetch_tile_rows, fetch_tile_cols);
  pass.from.push_back(whole(from));
  pass.to = whole(to);
  ElementwiseArgs args = tabled(context, pass, false);
  args.watch = context.watch;
  args.ctas = fetch_ctas;
  return std::make_unique<Pass>(args, std::vector<Pass::Part>{{nullptr, {}, 0, last_item(pass)}});
}

}  // namespace shingle::cuda
