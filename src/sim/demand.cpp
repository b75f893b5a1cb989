// How much of a step's time waits for memory (Lagom Eq. 6, for each computation).
#include "demand.hpp"

#include <algorithm>
#include <map>
#include <ranges>
#include <utility>
#include <variant>

#include "costs.hpp"
#include "plan/steps.hpp"

namespace shingle::sim {
namespace {

ComputationKind kind_of(const Step& step) {
  if (const auto* gemm = std::get_if<Gemm>(&step)) return gemm->stands_for;
  if (std::holds_alternative<Attend>(step) || std::holds_alternative<AttendBackward>(step))
    return ComputationKind::attention;
  return ComputationKind::pass;
}

double area(const TileGrid& grid) {
  return static_cast<double>(grid.rows) * static_cast<double>(grid.cols);
}

}  // namespace

double element_bytes(const Plan& plan, const Slice& slice) {
  return static_cast<double>(size_bytes(plan.buffers[static_cast<std::size_t>(slice.buffer)].dtype));
}

std::vector<std::int64_t> rows_by_weight(const Plan& plan, const Gemm& gemm) {
  if (gemm.groups.empty()) return {gemm.grid.rows};
  std::map<std::int32_t, std::int64_t> rows;
  for (const RowGroup& group : gemm.groups)
    if (group.rows > 0)
      rows[group.weight] += gemm.live.buffer >= 0
                                ? smaller(group.rows, expected_rows_of_group(plan.problem(), group))
                                : group.rows;
  const auto values = std::views::values(rows);
  return {values.begin(), values.end()};
}

double pass_bytes(const Plan& plan, const Elementwise& step, double elements) {
  const double written = elements * element_bytes(plan, step.to.slice);
  double bytes = written;
  for (const Placement& from : step.from) bytes += elements * element_bytes(plan, from.slice);
  if (step.norm.residual) bytes += 2 * written;
  return bytes;
}

MovedBytes moved_by(const Plan& plan, const Step& step, const Machine& machine) {
  const auto attention = [&](const Slice& q, const Slice& keys, double times) {
    const MovedBytes moved =
        attention_moves(static_cast<double>(q.rows), static_cast<double>(keys.rows),
                        static_cast<double>(q.cols), plan.problem().attention.causal, element_bytes(plan, q));
    return MovedBytes{times * moved.once, times * moved.again};
  };
  if (const auto* gemm = std::get_if<Gemm>(&step)) {
    const TileGrid& grid = gemm->grid;
    const double element = element_bytes(plan, gemm->a);
    const std::int64_t k = gemm->transpose_a ? gemm->a.rows : gemm->a.cols;
    // The queries of a layer attend to each other, in sequences of k.
    if (gemm->stands_for == ComputationKind::attention) {
      const auto keys = static_cast<double>(k);
      const double sequences = static_cast<double>(grid.rows) / keys;
      const MovedBytes one = attention_moves(keys, keys, static_cast<double>(grid.cols), true, element);
      return {sequences * one.once, sequences * one.again};
    }
    const auto [tall, wide] = Costs::is_library(*gemm) ? std::pair{machine.tile_rows, machine.tile_cols}
                                                       : std::pair{grid.tile_rows, grid.tile_cols};
    MovedBytes all;
    for (const std::int64_t rows : rows_by_weight(plan, *gemm)) {
      const MovedBytes moved = product_moves({rows, grid.cols, k, tall, wide}, element);
      all.once += moved.once, all.again += moved.again;
    }
    return all;
  }
  if (const auto* attend = std::get_if<Attend>(&step)) return attention(attend->q, attend->keys, 1);
  // Five products instead of two, and the gradients of all operands.
  if (const auto* back = std::get_if<AttendBackward>(&step)) return attention(back->q, back->keys, 2.5);
  if (const auto* pass = std::get_if<Elementwise>(&step))
    return {pass_bytes(plan, *pass, area(pass->grid)), 0};
  const auto& merge = std::get<Merge>(step);
  double bytes = area(merge.grid) * element_bytes(plan, merge.to.slice);
  for (const Merge::Part& part : merge.parts)
    bytes += static_cast<double>(part.value.rows) * static_cast<double>(part.value.cols) *
             element_bytes(plan, part.value);
  return {bytes, 0};
}

double Costs::stand_in_factor(const Gemm& gemm) const {
  constexpr std::int64_t head_dim = 128;  // assumed
  if (gemm.stands_for != ComputationKind::attention) return 1;
  return 1 / attention_rate(machine_, {gemm.grid.rows, gemm.a.cols, larger(gemm.grid.cols / head_dim, 1),
                                       head_dim, true});
}

double Costs::alone_us(const Step& step, std::int32_t workers) const {
  const auto* gemm = std::get_if<Gemm>(&step);
  if (gemm != nullptr && is_library(*gemm)) return library_us(*gemm, workers);
  const TileGrid& grid = *grid_of(step);
  const auto* pass = std::get_if<Elementwise>(&step);
  const std::int64_t items = pass != nullptr && row_wise(*pass) ? grid.tiles_m() : grid.tiles();
  const std::int64_t first = run_boundaries(step).front();
  if (gemm != nullptr || pass != nullptr)
    return items_us(step, first, first + 1, workers) * static_cast<double>(items) / workers;
  double us = 0;  // blocks of queries see different numbers of keys
  for (std::int64_t item = first; item < first + items; ++item) us += items_us(step, item, item + 1, workers);
  return us / workers;
}

double Costs::memory_share(const Step& step, std::int32_t workers) const {
  const Contention& contention = machine_.contention;
  const ComputationKind kind = kind_of(step);
  if (!contention.misses_of(kind)) return contention.memory_share;
  const auto [known, fresh] = shares_.try_emplace({&step, workers}, 0);
  if (fresh)
    known->second = contention.share(kind, moved_by(plan_, step, machine_),
                                     alone_us(step, std::max(workers, 1)), machine_.memory_gbps);
  return known->second;
}

}  // namespace shingle::sim
