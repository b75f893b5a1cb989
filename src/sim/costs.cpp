#include "costs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <ranges>
#include <utility>

#include "demand.hpp"
#include "lower/launch_rules.hpp"
#include "machine/shared_wave.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle {

namespace {

/// Read-only speed-up of memory. Machine::memory_gbps is the rate of reads and writes, but a cuBLASLt product
/// of few rows only reads. Measured on H200 (bench_cuda_gemm, 16x8192x14336): 4.1 against 3.77 TB/s.
/// Shingle's own GEMM does not reach it.
constexpr double only_reads = 1.09;

/// Min. time to read operands with `rows_and_cols` rows and columns in all.
double operands_us(const Machine& machine, std::int64_t rows_and_cols, double k) {
  return 2 * static_cast<double>(rows_and_cols) * k / (machine.memory_gbps * 1e3);
}

/// Time of a library's product with weights of n columns. `rows`: by weight.
double library_product_us(const Machine& machine, const std::vector<std::int64_t>& rows, std::int64_t n,
                          double k, int workers) {
  const std::int64_t m = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  // If edge tiles cost only what they hold, oneDNN cuts the matrix into one part per worker.
  if (!machine.whole_tiles)
    return wave_us(machine, m, ceil_div(n, larger(workers, 1)), k) / machine.library_rate;
  double best = std::numeric_limits<double>::infinity();
  for (const TileRate& tile : machine.tiles) {
    std::int64_t tiles = 0;
    for (const std::int64_t some : rows) tiles += ceil_div(some, tile.rows) * ceil_div(n, tile.cols);
    const double full = static_cast<double>(tiles) / larger(workers, 1);
    const double idle = std::ceil(full) - full;
    const double waves = full < 1 ? 1 : full + machine.library_tail * idle;
    const SharedTiles shared = shared_tiles(machine, KSplit::all, tiles, k, larger(workers, 1));
    best = std::min(best, waves * wave_us(machine, tile.rows, tile.cols, k, shared));
  }
  return std::max(best / machine.library_rate,
                  operands_us(machine, m + std::ssize(rows) * n, k) / only_reads);
}

}  // namespace

double library_gemm_us(const Machine& machine, std::int64_t m, std::int64_t n, std::int64_t k, int workers) {
  return library_product_us(machine, {m}, n, static_cast<double>(k), workers);
}

namespace sim {

Traffic traffic_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::allreduce:
      return Traffic::allreduce;
    case CollectiveKind::reducescatter:
      return Traffic::reducescatter;
    case CollectiveKind::allgather:
      return Traffic::allgather;
    case CollectiveKind::alltoall:
      break;
  }
  return Traffic::alltoall;
}

namespace {

double area(std::int64_t rows, std::int64_t cols) {
  return static_cast<double>(rows) * static_cast<double>(cols);
}

/// True if a tile holds rows of several shards of A.
bool picks_rows(const Gemm& gemm) {
  return gemm.a_rows.world > 1 && gemm.a_rows.block < gemm.grid.tile_rows;
}

/// Time of a multiply-add, in µs, with the tile that is fastest for long sums.
double fastest_flop(const Machine& machine) {
  double us = std::numeric_limits<double>::infinity();
  for (const TileRate& tile : machine.tiles)
    us = std::min(us, tile.us_per_k / (2 * area(tile.rows, tile.cols)));
  return us;
}

}  // namespace

Costs::Costs(const Plan& plan, const Machine& machine)
    : plan_(plan),
      machine_(machine),
      memory_bytes_per_us_(machine.memory_gbps * 1e3),
      us_per_flop_(fastest_flop(machine)) {
  const auto need = [&](bool there, std::string_view what) {
    if (!there)
      throw InvalidArgument(
          fmt::format("machine '{}' has no {}, so times cannot be predicted", machine.name, what));
  };
  const auto* const problem =
      std::get_if<Problem>(&plan.work);  // null: a workload has products and collectives
  need(!machine.tiles.empty() || (problem && problem->traits().is_collective()), "tiles");
  need(machine.memory_gbps > 0, "memory_gbps");
  need(plan.world() == 1 || (problem && problem->op == Op::gemm) || machine.link.gbps > 0 ||
           !machine.curves.empty(),
       "link rate or curves");
}

double Costs::bytes_of(const Slice& slice) const {
  return area(slice.rows, slice.cols) * width_of(slice);
}

double Costs::width_of(const Slice& slice) const {
  return element_bytes(plan_, slice);
}

/// Added time if several ranks receive the same output: threads that move the bytes themselves store to one
/// rank after the other.
double Costs::store_again_us(std::span<const Placement> places, double bytes) const {
  double ranks = 0;
  for (const Placement& at : places) ranks += std::max(static_cast<double>(replicas(at).size()), 1.0);
  return ranks > 1 ? machine_.contention.steals * (ranks - 1) * memory_us(bytes) : 0;
}

double Costs::memory_us(double bytes) const {
  return 2 * bytes / memory_bytes_per_us_;  // read and written
}

double Costs::library_us(const Gemm& gemm, std::int32_t workers) const {
  const double gated = gemm.epilogue.activation == Activation::swiglu ? 2 : 1;
  const std::int64_t k = gemm.transpose_a ? gemm.a.rows : gemm.a.cols;
  return gated * stand_in_factor(gemm) *
             library_product_us(machine_, rows_by_weight(plan_, gemm), gemm.grid.cols, static_cast<double>(k),
                                workers) +
         store_again_us({&gemm.out, 1}, area(gemm.grid.rows, gemm.grid.cols) * width_of(gemm.out.slice));
}

double Costs::multiply_us(std::int64_t rows, std::int64_t cols, std::int64_t tile_rows,
                          std::int64_t tile_cols, double k) const {
  return wave_us(machine_, tile_rows, tile_cols, k) * area(rows, cols) / area(tile_rows, tile_cols);
}

double Costs::multiply_wave_us(const Gemm& gemm, double k, std::int32_t workers, bool last) const {
  const TileGrid& grid = gemm.grid;
  const std::int64_t cluster = tiles_of_cluster(grid), tiles = live_tiles(gemm, grid.positions());
  SharedTiles shared;
  if (last)  // clusters share tiles as single workers do
    shared = shared_tiles(machine_, k_split(gemm), ceil_div(tiles, cluster), k, larger(workers / cluster, 1));
  return wave_us(machine_, grid.tile_rows, grid.tile_cols, k, shared);
}

double Costs::wave_of_us(const Gemm& gemm, std::int64_t item, double k, std::int32_t workers) const {
  const TileGrid& grid = gemm.grid;
  const std::int64_t most = larger(workers, 1);
  const auto wave_of = [&](std::int64_t position) { return live_tiles(gemm, position) / most; };
  const std::int64_t wave = wave_of(item);
  const auto [known, fresh] = waves_.try_emplace({&gemm, workers, wave}, 0);
  if (!fresh) return known->second;
  struct RowOfTiles {
    std::int64_t rows = -1;  // -1: not seen
    std::int32_t weight = 0;
  };
  const std::int32_t weights =
      gemm.groups.empty() ? 1 : std::ranges::max(gemm.groups, {}, &RowGroup::weight).weight + 1;
  std::vector<RowOfTiles> down(static_cast<std::size_t>(grid.tiles_m()));
  std::vector<char> across(static_cast<std::size_t>(weights * grid.tiles_n()), 0);  // of each weight
  std::int64_t rows = 0, cols = 0;
  for (const std::int64_t i :
       std::ranges::equal_range(std::views::iota(std::int64_t{0}, grid.positions()), wave, {}, wave_of)) {
    const Tile tile = grid.tile(i);
    if (grid.phantom(tile)) continue;
    RowOfTiles& row = down[static_cast<std::size_t>(tile.m)];
    if (row.rows < 0) {
      const ProductTile held = tile_of(gemm, i);
      row = {held.rect.rows, held.group != nullptr ? held.group->weight : 0};
      rows += row.rows;
    }
    if (row.rows > 0 &&
        !std::exchange(across[static_cast<std::size_t>(row.weight * grid.tiles_n() + tile.n)], 1))
      cols += grid.rect(tile).cols;
  }
  const bool last = live_tiles(gemm, grid.positions()) < (wave + 1) * most;
  return known->second =
             std::max(multiply_wave_us(gemm, k, workers, last), operands_us(machine_, rows + cols, k));
}

double Costs::store_gbps(const Step& step, std::int32_t workers) const {
  const auto* gemm = std::get_if<Gemm>(&step);
  if (gemm == nullptr) return machine_.store_gbps;
  // The warps that multiplied a worker's only tile store it, and no load of another tile waits for them.
  if (on_streams(machine_) && live_tiles(*gemm, gemm->grid.positions()) <= workers)
    return machine_.store_gbps;
  const std::int64_t cols =
      gemm->epilogue.activation == Activation::swiglu ? 2 * gemm->grid.tile_cols : gemm->grid.tile_cols;
  const TileRate* least = nullptr;  // the smallest tile that holds the step's
  for (const TileRate& tile : machine_.tiles)
    if (tile.rows >= gemm->grid.tile_rows && tile.cols >= cols &&
        (least == nullptr || area(tile.rows, tile.cols) < area(least->rows, least->cols)))
      least = &tile;
  if (least != nullptr && least->alone_store_gbps > 0 && cluster_of(*gemm) == 1)
    return least->alone_store_gbps;
  return least != nullptr && least->store_gbps > 0 ? least->store_gbps : machine_.store_gbps;
}

double Costs::items_us(const Step& step, std::int64_t first, std::int64_t last, std::int32_t workers) const {
  double longest = 0;
  if (const auto* gemm = std::get_if<Gemm>(&step)) {
    const auto k = static_cast<double>(gemm->transpose_a ? gemm->a.rows : gemm->a.cols);
    const double gated = (gemm->epilogue.activation == Activation::swiglu ? 2 : 1) * stand_in_factor(*gemm);
    const TileGrid& grid = gemm->grid;
    const double rate = picks_rows(*gemm) ? machine_.picking_rate : 1;
    for (std::int64_t i = first; i < last; ++i) {
      const TileRect rect = tile_of(*gemm, i).rect;
      if (rect.rows == 0 || rect.cols == 0) continue;  // phantom
      double one = machine_.whole_tiles
                       ? wave_of_us(*gemm, i, k, workers)
                       : multiply_us(rect.rows, rect.cols, grid.tile_rows, grid.tile_cols, k);
      if (const double more = uneven(*gemm, workers); more > 1)
        one = std::max(one, more * multiply_wave_us(*gemm, k, workers, false));
      const double us =
          gated * one / rate +
          store_again_us(stored_at(*gemm, rect.row), area(rect.rows, rect.cols) * width_of(gemm->out.slice));
      longest = std::max(longest, us);
      if (machine_.whole_tiles) break;  // all tiles take the same time
    }
  } else if (const auto* attend = std::get_if<Attend>(&step)) {
    for (std::int64_t i = first; i < last; ++i) longest = std::max(longest, attend_us(*attend, i));
  } else if (const auto* back = std::get_if<AttendBackward>(&step)) {
    for (std::int64_t i = first; i < last; ++i)
      longest = std::max(longest, attend_backward_us(*back, i, workers));
  } else if (const auto* merge = std::get_if<Merge>(&step)) {
    for (std::int64_t i = first; i < last; ++i) longest = std::max(longest, merge_us(*merge, i, workers));
  } else if (const auto* pass = std::get_if<Elementwise>(&step)) {
    for (std::int64_t i = first; i < last; ++i) longest = std::max(longest, pass_us(*pass, i, workers));
  }
  return longest;
}

double Costs::adding_us(const Gemm& gemm, std::int64_t item, bool awaited) const {
  const TileRect rect = tile_of(gemm, item).rect;
  const double parts = static_cast<double>(gemm.sums.from.size());
  const double part = area(rect.rows, rect.cols) * width_of(gemm.sums.to.front().slice);
  const double read = (parts + (awaited ? 1 : 0)) * part;
  const double gbps = summing_gbps(machine_);
  const double landed_us = machine_.parts_gbps > 0 ? (parts - 1) * part / (machine_.parts_gbps * 1e3) : 0;
  return (gbps > 0 ? read / (gbps * 1e3) : memory_us(read) / 2) + landed_us;
}

double Costs::assign_us(const AssignSlots& step) const {
  return memory_us(bytes_of(step.slot_of) + bytes_of(step.row_of)) + 2 * machine_.load_us;
}

double Costs::merge_slots_us(const MergeSlots& step) const {
  double bytes = bytes_of(step.slot_of);
  for (const Slice* made : outputs_of(step)) bytes += bytes_of(*made);
  return memory_us(bytes) + 2 * machine_.load_us;
}

/// Rows that a pass moves of a tile. Passes over the same rows, one for each destination, move their own rows
/// only. A GPU backend carries them out as one kernel, which the simulator counts once.
std::int64_t Costs::moved_rows(const Elementwise& step, const TileRect& rect) const {
  const auto* const routed = std::get_if<placement::Routed>(&step.to.form);
  if (!routed || routed->dest < 0 || on_streams(machine_)) return rect.rows;
  const Routing& routing = *plan_.problem().routing;
  return routing.count_before(routed->source, routed->dest, rect.row + rect.rows) -
         routing.count_before(routed->source, routed->dest, rect.row);
}

/// Workers that share an item. A kernel for flagged data deals single rows of all items to its CTAs.
double Costs::workers_of_item(const Elementwise& step) const {
  const auto flagged = [&](const Placement& at) {
    return plan_.buffers[static_cast<std::size_t>(at.slice.buffer)].flagged;
  };
  if (!on_streams(machine_) || !(flagged(step.to) || std::ranges::any_of(step.from, flagged))) return 1;
  const std::int32_t most = step.resources.most > 0 ? step.resources.most : plan_.workers;
  return std::max(static_cast<double>(most) / static_cast<double>(larger(step.grid.tiles(), 1)), 1.0);
}

/// Time of an item's reads and writes, at a worker's rate or at its share of the memory bandwidth.
double Costs::pass_us(const Elementwise& step, std::int64_t item, std::int32_t workers) const {
  const bool rows = row_wise(step);
  const TileRect rect = step.grid.rect(step.grid.tile(rows ? step.grid.linear({item, 0}) : item));
  const double elements = filled(step) * area(moved_rows(step, rect), rows ? step.grid.cols : rect.cols);
  const double written = elements * width_of(step.to.slice);
  const auto ranks_stored = static_cast<double>(replicas(step.to).size());
  const double bytes = pass_bytes(plan_, step, elements);
  const double in_memory = bytes * static_cast<double>(larger(workers, 1)) / memory_bytes_per_us_;
  const double of_one = step.from.size() > 1 ? summing_gbps(machine_) : machine_.pass_gbps;
  const double gbps = of_one * workers_of_item(step);
  // The index, then the row that it names, also of slots without a token.
  const double looked_up = std::ranges::any_of(step.from, is_indexed) ? 2 * machine_.load_us : 0;
  if (gbps == 0) return std::max(in_memory, looked_up) + store_again_us({&step.to, 1}, written);
  // A kernel's worker stores to the second and later ranks itself; for host threads see store_again_us.
  const double more = machine_.contention.steals > 0 ? 0 : std::max(ranks_stored - 1, 0.0) * written;
  return std::max({(bytes + more) / (gbps * 1e3), in_memory, looked_up}) +
         store_again_us({&step.to, 1}, written);
}

/// Scores of the queries [first, first + rows) with some keys.
double Costs::scores(std::int64_t first, std::int64_t rows, const TokenRange& keys) const {
  const Problem& problem = plan_.problem();
  const TokenRange all = problem.seen_by(first, rows);
  const TokenRange seen = common(all, keys);
  // In a causal block whose last query sees all these keys, each earlier query sees one fewer.
  const bool triangular = problem.attention.causal && seen.end == all.end;
  return static_cast<double>(rows) *
         (static_cast<double>(seen.count()) - (triangular ? static_cast<double>(rows) / 2 : 0));
}

/// Time of a multiply-add of the heads of a step, on a worker.
template <class Step>
double Costs::attention_flop_us(const Step& step) const {
  if (attention_.first == &step) return attention_.second;
  const Attention& of = plan_.problem().attention;
  const TokenRange keys{step.first_key, step.first_key + step.keys.rows};
  const bool causal = of.causal && common(plan_.problem().seen_by(step.first_token, 1), keys).end < keys.end;
  const double rate = attention_rate(machine_, {step.q.rows, step.keys.rows, step.q.cols / of.head_dim,
                                                of.head_dim, causal, std::is_same_v<Step, AttendBackward>});
  attention_ = {&step, us_per_flop_ / rate};
  return attention_.second;
}

/// Time of the scores and weighted sums of a block of queries over the keys that they see.
double Costs::attend_us(const Attend& step, std::int64_t item) const {
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  const TokenRange keys{step.first_key, step.first_key + step.keys.rows};
  return 4 * scores(step.first_token + rect.row, rect.rows, keys) * static_cast<double>(rect.cols) *
         attention_flop_us(step);
}

/// Time of the five products of the heads that share one head of K and V. `items`: that run at a time. On
/// GPUs cuDNN spreads the heads over all SMs, also if there are fewer heads than SMs.
double Costs::attend_backward_us(const AttendBackward& step, std::int64_t item, std::int32_t items) const {
  constexpr std::int64_t block = 64;
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  const TokenRange keys{step.first_key, step.first_key + step.keys.rows};
  double all = 0;
  for (std::int64_t row = rect.row; row < rect.row + rect.rows; row += block)
    all += scores(step.first_token + row, smaller(block, rect.row + rect.rows - row), keys);
  const double most = step.resources.most > 0 ? step.resources.most : plan_.workers;
  const double workers = on_streams(machine_) ? std::max(most / std::max(items, 1), 1.0) : 1;
  return 10 * all * static_cast<double>(rect.cols) * attention_flop_us(step) / workers;
}

/// Time of an item's reads and writes, as that of a pass that sums.
double Costs::merge_us(const Merge& step, std::int64_t item, std::int32_t workers) const {
  const TileRect rect = step.grid.rect(step.grid.tile(item));
  const double cols = static_cast<double>(rect.cols);
  const double heads = cols / static_cast<double>(plan_.problem().attention.head_dim);
  double bytes = area(rect.rows, rect.cols) * width_of(step.to.slice);
  if (step.lse.buffer >= 0) bytes += static_cast<double>(rect.rows) * heads * width_of(step.lse);
  for (const Merge::Part& part : step.parts) {
    const TokenRange rows = common({rect.row, rect.row + rect.rows}, {part.row, part.row + part.value.rows});
    bytes += static_cast<double>(rows.count()) * (cols * width_of(part.value) + heads * width_of(part.lse));
  }
  const double in_memory = bytes * static_cast<double>(larger(workers, 1)) / memory_bytes_per_us_;
  const double gbps = summing_gbps(machine_);
  return gbps == 0 ? in_memory : std::max(bytes / (gbps * 1e3), in_memory);
}

double Costs::moving_us(CollectiveKind kind, int ranks, std::int32_t workers, double bytes) const {
  return std::max(shingle::collective_us(machine_.curves, traffic_of(kind), ranks, workers, bytes), 0.0);
}

double Costs::wire_bytes(CollectiveKind kind, int ranks, double bytes) const {
  return wire_factor(traffic_of(kind), ranks) * bytes;
}

double Costs::wake_us() const {
  if (!machine_.topology.serial || !machine_.link.paced()) return 0;
  return std::max(shingle::collective_us(machine_.curves, Traffic::alltoall, 2, 0, 0), 0.0);
}

double Costs::message_gbps(std::int32_t workers) const {
  constexpr double bytes = 64 << 20;  // large enough that latency does not matter
  if (machine_.collective_workers == 0 || workers == 0) return 0;
  const double us = shingle::collective_us(machine_.curves, Traffic::alltoall, 2, workers, bytes);
  return us > 0 ? wire_factor(Traffic::alltoall, 2) * bytes / us * 1e-3 : 0;
}

double Costs::collective_us(CollectiveKind kind, int ranks, const CollectiveConfig& config,
                            double bytes) const {
  return shingle::collective_us(machine_, traffic_of(kind), ranks, config, bytes);
}

}  // namespace sim
}  // namespace shingle
