#include "replicated_tokens.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "helpers.hpp"
#include "sliced_experts.hpp"

namespace shingle::planner {
namespace {

/// Waves of tiles of the last product, if they are full.
double waves_of(const Problem& p, const Machine& machine, const TileParams& asked) {
  const TileSize tile = tile_size(machine, asked);
  return static_cast<double>(p.expected_received(0)) / tile.rows *
         static_cast<double>(ceil_div(p.n, tile.cols)) / machine.workers;
}

}  // namespace

ReplicatedTokens::ReplicatedTokens(Builder& build, const Machine& machine, const TileParams& tile,
                                   std::int32_t workers)
    : build_(build),
      p_(build.problem()),
      machine_(machine),
      tile_(tile),
      workers_(workers),
      first_workers_(workers < build.workers() ? workers_beside_waits(build) : workers) {
  const std::int64_t rows = p_.routing->received(0);
  if (p_.has_slots()) slots_.emplace(build);
  if (p_.traits().takes_tokens()) sorted_ = build.buffer("sorted", rows, p_.k);
  if (p_.traits().chains()) hidden_ = build.buffer("hidden", rows, p_.inner);
  products_ = build.buffer("products", rows, p_.n);
}

void ReplicatedTokens::take(int rank) const {
  if (slots_) slots_->assign(rank);
  if (!p_.traits().takes_tokens()) return;
  Elementwise sort =
      sort_tokens(build_, slots(), p_.source_of(rank), build_.all(build_.a, rank), build_.all(sorted_, rank));
  sort.resources = {1, build_.workers()};
  build_.step(rank, compute_lane, std::move(sort));
  Gemm first =
      build_.up_gemm(rank, build_.one_tile(1, p_.inner), {}, Builder::in_place(build_.all(hidden_, rank)));
  first.resources = {1, first_workers_};
  build_.step(rank, compute_lane, in_groups(std::move(first), sorted_, tile_));
}

ReplicatedTokens::Product ReplicatedTokens::product(int rank, const std::vector<std::int64_t>& shares) const {
  TileParams tile = tile_;
  const std::int64_t all = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  const std::int64_t columns = ceil_div(p_.n, tile_size(machine_, tile).within(1, p_.n).cols);
  // A band is what a strip has some of: consecutive columns of tiles.
  const std::int64_t width = ceil_div(columns, smaller(all, columns)), bands = ceil_div(columns, width);
  if (bands > 1)
    tile.order = {Raster::along_m, static_cast<std::int32_t>(width), machine_.order.cluster_m, 1, 0};
  Gemm last = build_.gemm(rank, build_.one_tile(1), {}, Builder::in_place(build_.all(products_, rank)));
  last.resources = {1, workers_};
  Product made{in_groups(std::move(last), p_.traits().chains() ? hidden_ : build_.a, tile), {}};
  const TileGrid& grid = made.gemm.grid;
  std::int64_t shared = 0, taken = 0;
  for (const std::int64_t share : shares) {
    shared += share;
    const std::int64_t until = bands * shared / all;
    if (until == taken) continue;
    const std::int64_t first = taken * width * grid.tile_cols,
                       end = smaller(until * width * grid.tile_cols, p_.n);
    made.strips.push_back({first, end - first, grid.positions() / bands * until});
    taken = until;
  }
  return made;
}

std::vector<std::uint32_t> ReplicatedTokens::count_by_strip(Product& product, std::int32_t counter) {
  std::vector<std::uint32_t> tiles;
  TileNotify notify{counter, {product.gemm.a.rank}, {}};
  std::int64_t before = 0;
  for (const Strip& strip : product.strips) {
    notify.ends.push_back(strip.end);
    const std::int64_t until = product.gemm.grid.tiles_before(strip.end);
    tiles.push_back(static_cast<std::uint32_t>(until - before));
    before = until;
  }
  product.gemm.notify.push_back(std::move(notify));
  return tiles;
}

Elementwise ReplicatedTokens::combine(int rank, const Strip& strip, const TileGrid& grid) const {
  Elementwise pass = planner::combine(grid, build_.all(build_.topk_weights, rank), {});
  const Slice products = columns_of(build_.all(products_, rank), strip);
  for (std::int64_t choice = 0; choice < p_.experts.topk; ++choice)
    pass.from.push_back(slots_ ? picked(products, of_choice(slots_->slot_of(rank), choice))
                               : sorted_rows(p_, p_.source_of(rank), choice * p_.m, grid, products));
  return pass;
}

Gemm ReplicatedTokens::in_groups(Gemm product, std::int32_t a, const TileParams& tile) const {
  const int rank = product.a.rank;
  if (slots_) product.live = slots_->live(rank);
  return grouped(build_, machine_, tile, std::move(product), a, groups_by_expert(*p_.routing, rank));
}

std::int32_t workers_beside_waits(const Builder& build) {
  return larger(build.workers() - 1, 1);
}

std::int64_t strips_of(const Problem& problem, const Machine& machine, const TileParams& tile) {
  constexpr double most = 8;
  return static_cast<std::int64_t>(std::clamp(waves_of(problem, machine, tile), 1.0, most));
}

std::int32_t helpers_of_strips(const Problem& problem, const Machine& machine, const TileParams& tile,
                               std::int32_t asked) {
  constexpr double few = 2;         // waves
  constexpr double strip_us = 60;   // microseconds that a strip of sums takes more, on two H200
  constexpr double keep_up = 0.25;  // part of the workers that would have to help
  if (asked != 0) return asked;
  const Problem& p = problem;
  const double bytes =
      static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(size_bytes(p.dtype));
  // Helpers save no work: beside the product the sums are only on their way.
  const double way_us = machine.link.transfer_us(2 * bytes * (p.world - 1) / p.world);
  const auto strips = static_cast<double>(strips_of(p, machine, tile));
  const bool short_way = machine.link.paced() && way_us < strips * strip_us;
  const double summing = workers_to_sum(p, machine, tile);
  // Without times of sums the number of helpers is unknown, and too few delay the sums.
  const bool late = summing == 0 || summing > keep_up * machine.workers;
  const std::int32_t helpers = waves_of(p, machine, tile) < few || strips < 2 || short_way || late
                                   ? 0
                                   : helpers_of_experts(p, machine, tile, 0);
  return helpers == 0 ? FusedParams::no_helpers : helpers;
}

Slice columns_of(Slice slice, const ReplicatedTokens::Strip& strip) {
  slice.col += strip.first;
  slice.cols = strip.cols;
  return slice;
}

}  // namespace shingle::planner
