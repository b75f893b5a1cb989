#include "param_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

namespace shingle {
namespace {

constexpr std::uint32_t bits(std::initializer_list<Mechanism> mechanisms) {
  std::uint32_t all = 0;
  for (const Mechanism mechanism : mechanisms) all |= 1u << static_cast<unsigned>(mechanism);
  return all;
}

constexpr std::uint32_t none = 0;
constexpr std::uint32_t sequential = bits({Mechanism::sequential}), chunked = bits({Mechanism::chunked}),
                        signal = bits({Mechanism::signal}), ring = bits({Mechanism::ring}),
                        fused = bits({Mechanism::fused}), copy_engine = bits({Mechanism::copy_engine});
constexpr std::uint32_t tiled = signal | fused | copy_engine, lists = sequential | chunked;

/// A param that consists of fields of Params.
template <auto... Fields>
constexpr ParamEntry param(std::string_view flag, std::uint32_t mechanisms, std::uint32_t for_overlaps = 0) {
  return {flag, [](const Params& params) { return (!(params.*Fields == Params{}.*Fields) || ...); },
          [](Params& params) { ((params.*Fields = Params{}.*Fields), ...); }, mechanisms, for_overlaps};
}

/// A param that consists of fields of the tile order.
template <auto... Fields>
constexpr ParamEntry order(std::string_view flag) {
  return {flag, [](const Params& params) { return ((params.order.*Fields != TileOrder{}.*Fields) || ...); },
          [](Params& params) { ((params.order.*Fields = TileOrder{}.*Fields), ...); }, tiled, lists};
}

constexpr ParamEntry table[] = {
    param<&Params::comm_workers>("comm-workers", sequential | chunked | ring | signal),
    param<&Params::chunks>("chunks", chunked),
    param<&Params::slices>("slices", ring),
    param<&Params::group_waves, &Params::equal_groups>("groups", signal),
    param<&Params::helpers>("helpers", fused),
    param<&Params::stage_fp32>("stage-fp32", fused),
    param<&Params::one_shot>("one-shot", fused),
    param<&Params::comm_rows>("comm-rows", fused),
    param<&Params::pull>("pull", fused),
    param<&Params::mover>("mover", fused),
    param<&Params::comm_order>("comm-order", fused),
    param<&Params::row_parallel>("row-parallel", ring),
    param<&Params::variant>("variant", copy_engine),
    param<&Params::engines>("engines", ring | copy_engine),
    param<&Params::prelaunch>("prelaunch", copy_engine),
    param<&Params::poll>("poll", copy_engine),
    param<&Params::trigger>("trigger", copy_engine),
    param<&Params::launchers>("launchers", copy_engine),
    param<&Params::unregistered>("unregistered", ring | fused | copy_engine),
    param<&Params::tile_rows, &Params::tile_cols>("tile", tiled, lists),
    order<&TileOrder::raster>("raster"),
    order<&TileOrder::swizzle>("swizzle"),
    order<&TileOrder::cluster_m, &TileOrder::cluster_n>("cluster"),
    order<&TileOrder::rotation>("rotation"),
    param<&Params::configs>("configs", none, lists),
    param<&Params::symmetric>("symmetric", sequential | chunked | tiled | ring),
};

}  // namespace

std::span<const ParamEntry> param_table() {
  return table;
}

std::optional<Reason> untaken(Mechanism mechanism, Op op, const Params& params) {
  const auto other = std::ranges::find_if(
      table, [&](const ParamEntry& entry) { return entry.given(params) && !entry.taken_by(mechanism, op); });
  if (other == std::end(table)) return std::nullopt;
  std::string known;
  for (const ParamEntry& entry : table)
    if (entry.taken_by(mechanism, op)) known += fmt::format("{}--{}", known.empty() ? "" : ", ", entry.flag);
  return Reason{fmt::format("{} takes no --{}; its params are {}", name(mechanism), other->flag, known)};
}

Params taken(Mechanism mechanism, Op op, Params params) {
  for (const ParamEntry& entry : table)
    if (!entry.taken_by(mechanism, op)) entry.reset(params);
  return params;
}

}  // namespace shingle
