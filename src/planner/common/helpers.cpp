#include "helpers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "experts.hpp"

namespace shingle::planner {
namespace {

/// Time of a grouped product of `rows` rows with k×cols weights; at most 0 if the machine does not know it.
double product_us(const Machine& machine, TileSize tile, double rows, std::int64_t k, std::int64_t cols) {
  const double waves = rows * static_cast<double>(cols) /
                       (static_cast<double>(tile.rows) * static_cast<double>(tile.cols)) / machine.workers;
  return waves * wave_us(machine, tile.rows, tile.cols, static_cast<double>(k));
}

/// Rows by expert of the rank that has most.
double most_received(const Problem& p) {
  std::int64_t most = 0;
  for (int rank = 0; rank < p.world; ++rank) most = larger(most, p.expected_received(rank));
  return static_cast<double>(most);
}

/// True if rows of a source are so few that tiles, or clusters of them, have rows of several sources. Most
/// tiles then await the last of the sources, and copies of few rows take mostly their latency.
bool tiles_span_sources(const Problem& p, const Machine& machine, const TileParams& asked) {
  if (!p.traits().before) return false;
  const double rows = static_cast<double>(p.expected_received(0)) / (p.world * p.routing->experts());
  return rows < static_cast<double>(unit_rows(machine, asked, p.epilogue));
}

/// True if pushing all tokens to all ranks takes so little of the product's time that workers should push and
/// sort them first. Sorting beside the product costs more: a few workers sort slowly, and tiles that come
/// source by source read each weight once a source.
bool tokens_arrive_soon(const Problem& p, const Machine& machine, const TileParams& asked) {
  constexpr double most_of_product = 0.25;
  if (!p.traits().before || !machine.link.paced()) return false;
  const double tokens = static_cast<double>(p.m * p.k) * static_cast<double>(size_bytes(p.dtype));
  const auto rows = static_cast<double>(p.expected_received(0));
  return machine.link.transfer_us(tokens * (p.world - 1)) <
         most_of_product * product_us(machine, tile_size(machine, asked), rows, p.k, p.b_cols());
}

}  // namespace

std::optional<Reason> wrong_helpers(std::int32_t asked, std::int32_t workers) {
  if (asked < FusedParams::no_helpers)
    return Reason{fmt::format("helpers = {} must be at least 1, or none", asked)};
  if (asked < larger(workers, 1)) return std::nullopt;
  return Reason{
      fmt::format("helpers = {} of {} workers leave none for the GEMM: take fewer, or none", asked, workers)};
}

std::int32_t helpers_of_experts(const Problem& p, const Machine& machine, const TileParams& asked_tile,
                                std::int32_t asked) {
  const bool sliced = p.traits().slices_experts();
  const std::int32_t least = helpers_of(machine, asked), most = helpers_of(machine, asked, 4),
                     most_summing = helpers_of(machine, asked, 8);
  if (asked != 0 || machine.pass_gbps == 0) return least;
  const double received = most_received(p);
  double sent = 0;  // rows of the rank that has most
  for (int source = 0; source < p.sources(); ++source)
    sent = std::max(sent, static_cast<double>(p.routing->rows(source)));
  if (p.has_slots()) sent = static_cast<double>(p.experts.count * p.expected_rows());
  const TileSize tile = tile_size(machine, asked_tile);
  // Workers that read and store `elements` at `gbps` each, `limit` at most, beside a product of k×cols
  // weights.
  const auto beside = [&](double elements, double gbps, double limit, std::int64_t k, std::int64_t cols) {
    const double moved_us = elements * static_cast<double>(size_bytes(p.dtype)) / (gbps * 1e3);
    const double us = product_us(machine, tile, received, k, cols);
    return us > 0 ? std::min(moved_us / us, limit) : limit;
  };
  // Each row that is pushed or sorted has a place of its own. A worker is assumed to move such rows at a
  // quarter of its rate of copying.
  constexpr double slower = 4;
  double workers = 0;
  if (p.traits().before)
    workers = beside(2 * slower * (sliced ? received : sent) * static_cast<double>(p.k), machine.pass_gbps,
                     most, p.k, p.b_cols());
  if (sliced && p.traits().after) {
    const double summing = workers_to_sum(p, machine, asked_tile);
    workers = std::max(workers, summing > 0 ? std::min(summing, 1.0 * most_summing) : most_summing);
  }
  return std::clamp(2 * static_cast<std::int32_t>(workers / 2 + 1), least, most);
}

double workers_to_sum(const Problem& p, const Machine& machine, const TileParams& tile) {
  const double received = most_received(p);
  // Sums of choices are stored. Those of tokens that all ranks have are also loaded and stored by the ranks
  // that add them.
  const double sums = p.traits().replicates_tokens() ? 3 : p.world;
  const double bytes = (received + sums * static_cast<double>(p.m)) * static_cast<double>(p.n) *
                       static_cast<double>(size_bytes(p.dtype));
  const double us =
      product_us(machine, tile_size(machine, tile), received, p.traits().chains() ? p.inner : p.k, p.n);
  return us > 0 && summing_gbps(machine) > 0 ? bytes / (summing_gbps(machine) * 1e3) / us : 0;
}

bool sorts_before_product(const Problem& p, const Machine& machine, const TileParams& tile) {
  return tiles_span_sources(p, machine, tile) || tokens_arrive_soon(p, machine, tile);
}

void share(Builder& build, int rank, Elementwise pass, std::int32_t lane, std::int32_t some,
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

}  // namespace shingle::planner
