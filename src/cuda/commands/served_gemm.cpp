#include "served_gemm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "cuda/raii/check.hpp"
#include "cuda/runtime/devices.hpp"
#include "elements.hpp"
#include "grid/tiles.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/placement.hpp"

namespace shingle::cuda {
namespace {

RowsOfA rows_of_groups(const Gemm& step) {
  RowsOfA rows{0, step.a.rows, 1, step.grid.tile_rows, 0};
  for (std::int64_t m = 0; m < step.grid.tiles_m(); ++m) {
    const ProductTile tile = product_tile(step, {m, 0});
    rows.first.push_back(static_cast<std::int32_t>(tile.group->a_row + tile.in_group));
    rows.weight.push_back(tile.group->weight);
  }
  return rows;
}

RowsOfA rows_of_a(const Gemm& step, std::int64_t stored_rows) {
  if (!step.groups.empty()) return rows_of_groups(step);
  const RowMap& map = step.a_rows;
  const TileGrid& grid = step.grid;
  if (map.world == 1 && map.pitch == 0) {
    const std::int64_t first = map.shard_at(0);
    return {first, std::min(map.limit, stored_rows) - first, 1, grid.tile_rows, 0, {}};
  }
  if (map.pitch == 0 && map.without < 0 && map.world * map.block == grid.tile_rows)
    return {map.base,   std::min(map.limit, stored_rows) - map.base,
            map.world,  static_cast<std::int32_t>(map.block),
            map.stride, {}};
  RowsOfA rows{0, std::min(map.limit, stored_rows), 1, grid.tile_rows, 0, {}};
  bool in_order = true;
  for (std::int64_t m = 0; m < grid.tiles_m(); ++m) {
    const TileRect rect = grid.rect({m, 0});
    std::int64_t begin = -1, found = 0;
    map.for_each_run(rect.row, rect.rows, [&](const RowRun& run) {
      if (run.matrix_row < 0) return;
      if (begin < 0 && run.virtual_row == rect.row) begin = run.matrix_row;
      found += begin >= 0 && run.matrix_row == begin + (run.virtual_row - rect.row) ? 0 : 1;
    });
    if (found > 0)
      throw Unsupported(fmt::format(
          "CUDA: the rows of A in a tile of {} rows have no regular stride; choose other tile rows",
          grid.tile_rows));
    rows.first.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(begin, 0)));
    in_order = in_order && (begin < 0 || begin == m * grid.tile_rows);
  }
  if (in_order) rows.first.clear();
  return rows;
}

/// Positions of the grid, without clusters that have phantom tiles only. Empty if consecutive positions do
/// not form clusters of `cluster` tiles along m.
std::vector<std::int64_t> positions_for(const TileGrid& grid, const std::vector<Tile>& tiles,
                                        std::int32_t cluster) {
  std::vector<std::int64_t> positions;
  const std::int64_t count = grid.positions();
  if (count % cluster != 0) return {};
  for (std::int64_t p = 0; p < count; p += cluster) {
    const Tile first = tiles[static_cast<std::size_t>(p)];
    bool any = !grid.phantom(first);
    for (std::int64_t i = 1; i < cluster; ++i) {
      const Tile tile = tiles[static_cast<std::size_t>(p + i)];
      if (tile.m != first.m + i || tile.n != first.n) return {};
      any = any || !grid.phantom(tile);
    }
    for (std::int64_t i = 0; any && i < cluster; ++i) positions.push_back(p + i);
  }
  return positions;
}

/// Kernel family of the current device.
GemmFamily family_here() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return family_of(device);
}

/// The smallest instance that fits the grid's tiles, in the largest clusters that the grid's order allows.
/// `group_tiles`: of a grouped product, else 0.
Choice choose(const GemmArgs& args, const TileGrid& grid, const std::vector<Tile>& tiles,
              std::int32_t group_tiles, GemmKind kind) {
  const bool gated = args.activate == Activate::swiglu;
  std::vector<const GemmInstance*> fitting;
  for (const GemmInstance& one : gemm_instances(family_here(), kind)) {
    if (one.type != args.type || one.transpose_a != args.transpose_a || one.transpose_b != args.transpose_b)
      continue;
    // If columns of B are contiguous in memory, halves of a tile are loaded in boxes of 64 columns.
    if ((gated || group_tiles > 0) && !one.transpose_b && one.tile.cols % 128 != 0) continue;
    if (group_tiles > 0 && group_tiles % one.tile.cluster != 0)
      continue;  // its tiles would have several weights
    const std::int32_t cols = one.tile.cols / (gated ? 2 : 1);
    const bool fits = (one.tile.rows == grid.tile_rows ||
                       (one.tile.rows > grid.tile_rows && (grid.tiles_m() == 1 || !one.transpose_a))) &&
                      (cols == grid.tile_cols || (cols > grid.tile_cols && grid.tiles_n() == 1));
    if (fits) fitting.push_back(&one);
  }
  std::ranges::stable_sort(fitting, {}, [](const GemmInstance* one) {
    return std::pair(one->tile.rows * one->tile.cols, -one->tile.cluster);
  });
  for (const GemmInstance* const one : fitting)
    if (auto positions = positions_for(grid, tiles, one->tile.cluster); !positions.empty())
      return {one, std::move(positions)};
  return {};
}

std::optional<std::string> unserved(const GemmArgs& args, std::int64_t base, bool scattered, bool grouped) {
  if (args.type == Element::f32)
    return fmt::format("tensor cores do not keep the precision of f32: use bf16 or f16{}",
                       grouped ? "" : ", or the sequential mechanism");
  const auto odd = [](std::int64_t elements) { return elements % 8 != 0; };
  if (odd(args.cols) || odd(args.k) || odd(args.lda) || odd(args.ldb))
    return fmt::format(
        "N = {} and K = {} (and with transpose_a M) must be multiples of 8 for bulk loads (TMA)", args.cols,
        args.k);
  if (args.a_parts > 1 && args.transpose_a)
    return "a tile cannot pick rows of a transposed A from all shards: use row order block-cyclic";
  if (args.transpose_a && scattered)
    return "a tile cannot pick single rows of a transposed A: choose M so that tiles divide each rank's rows";
  if (args.transpose_a && odd(base))
    return fmt::format("the first column {} of a transposed A must be a multiple of 8 for bulk loads (TMA)",
                       base);
  return std::nullopt;
}

/// Own tiles by their row in the grid. Throws Unsupported if ranks do not have whole rows of tiles in turn.
GemmSums own_tiles(const Gemm& step, const TileGrid& grid) {
  const RowMap& rows = std::get<placement::Owners>(step.out.form).rows;
  GemmSums sums;
  sums.count = static_cast<std::int32_t>(step.sums.from.size());
  sums.owners = rows.world;
  sums.turn = static_cast<std::int32_t>(std::max<std::int64_t>(rows.pitch / grid.tile_rows, 1));
  sums.own = step.a.rank;
  for (std::int64_t m = 0; m < grid.tiles_m(); ++m) {
    const std::int64_t row = m * grid.tile_rows;
    if (rows.run_at(row, 1).matrix_row >= 0 && sums.holds(static_cast<std::int32_t>(m)) != is_sum(step, row))
      throw Unsupported("CUDA: the rows of tiles that are sums have no regular distance; use --sums pass");
  }
  return sums;
}

}  // namespace

ServedGemm serve(const Plan& plan, const Gemm& step) {
  const auto& buffer = [&](const Slice& slice) -> const Buffer& {
    return plan.buffers[static_cast<std::size_t>(slice.buffer)];
  };
  const bool gated = step.epilogue.activation == Activation::swiglu;
  Gemm tiled = step;
  // A step that was planned as one call of cuBLASLt is cut into tiles here.
  if (step.grid.positions() == 1 && step.groups.empty() && step.gates.empty() && step.notify.empty())
    tiled.grid =
        make_grid(step.grid.rows, step.grid.cols, 128, gated ? 64 : 128, {Raster::along_m, 8, 1, 1, 0});
  ServedGemm served{tiled.grid,
                    tiles_of(tiled.grid),
                    rows_of_a(tiled, step.transpose_a ? step.a.cols : step.a.rows),
                    {},
                    {}};
  const TileGrid& grid = served.grid;
  const RowsOfA& rows = served.rows;
  GemmArgs& args = served.args;
  args.type = element(buffer(step.a).dtype);
  args.out_type = element(buffer(step.out.slice).dtype);
  args.rows = rows.parts > 1 ? step.a_rows.len : grid.rows;
  args.cols = grid.cols;
  args.transpose_a = step.transpose_a;
  args.transpose_b = step.transpose_b;
  args.k = step.transpose_a ? step.a.rows : step.a.cols;
  args.lda = buffer(step.a).cols;
  args.ldb = buffer(step.b).cols;
  args.activate = activate(step.epilogue.activation);
  args.a_rows = rows.rows;
  args.a_parts = rows.parts;
  args.a_stride = rows.stride;
  if (auto reason = unserved(args, rows.base, !rows.first.empty(), !step.groups.empty()))
    throw Unsupported(*reason);
  if (!step.sums.from.empty()) {
    args.sums = own_tiles(step, grid);
    std::vector<Slice> parts{step.out.slice};
    for (const Placement& from : step.sums.from) parts.push_back(from.slice);
    const auto fits = [&](const Slice& part) {
      return buffer(part).dtype == buffer(step.a).dtype && buffer(part).role == Role::internal;
    };
    const Buffer& part = buffer(step.out.slice);
    const auto matches = [&](const Placement& to) {
      const Buffer& sum = buffer(to.slice);
      return sum.dtype == part.dtype && sum.cols == part.cols;
    };
    if (!std::ranges::all_of(parts, fits) || rows.parts > 1 || !std::ranges::all_of(step.sums.to, matches))
      throw Unsupported(
          "CUDA: parts of a sum are internal, of the type of A and as wide as the sum: use --sums pass");
    std::set<Role> matrices;
    for (const Placement& to : step.sums.to)
      if (buffer(to.slice).role != Role::internal) matrices.insert(buffer(to.slice).role);
    if (matrices.size() > 1)
      throw Unsupported(fmt::format("CUDA: sums are stored to {} matrices of the user; expected one at most",
                                    matrices.size()));
  }
  const GemmKind kind = step.live.buffer >= 0     ? GemmKind::counted
                        : !step.sums.from.empty() ? GemmKind::sums
                                                  : GemmKind::plain;
  served.choice = choose(args, grid, served.tiles, step.groups.empty() ? 0 : step.group_tiles, kind);
  const GemmInstance* const instance = served.choice.instance;
  if (instance == nullptr)
    throw Unsupported(fmt::format("this build has no GEMM kernel for {} with tiles of {}x{} in this order{}",
                                  name(family_here()), grid.tile_rows, grid.tile_cols,
                                  step.transpose_a ? " for a transposed A" : ""));
  args.tile = instance->tile;
  args.part_rows =
      rows.parts == 1 && rows.first.empty() && grid.tiles_m() == 1 ? args.tile.rows : rows.part_rows;
  return served;
}

}  // namespace shingle::cuda
