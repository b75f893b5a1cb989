// Tables of params: one row a param, one table a mechanism (src/planner/<mechanism>/params.cpp).
#pragma once

#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "shingle/machine/machine.hpp"
#include "shingle/planner/params.hpp"

namespace shingle::planner {

/// What a tuner starts from when it varies one param of a mechanism.
template <class P>
struct Tuning {
  const Problem& problem;
  const Machine& machine;
  const P& at;     ///< the params so far
  const P& fixed;  ///< the params that the user gave
};

/// A param of a mechanism; it may consist of several fields of P.
template <class P>
struct ParamRow {
  ParamInfo info{};
  /// Text of the value. Returns nullopt if it is the default.
  std::function<std::optional<std::string>(const P&)> text{};
  /// Throws InvalidArgument if the text is no value of the param.
  std::function<void(P&, const std::string&)> parse{};
  /// The params to try in turn, if the user leaves this param open; empty: the param is not tuned.
  std::function<std::vector<P>(const Tuning<P>&)> tried{};
};

// ----------------------------------------------------------------------------------------------------------
// values as text: `text` of a value, and `parse`, which throws InvalidArgument

template <class T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
std::string text(T value) {
  if constexpr (std::is_enum_v<T>)
    return std::string(name(value));
  else
    return std::is_same_v<T, bool> ? "" : std::to_string(value);  // a switch has no value
}
std::string text(const std::vector<std::int64_t>& values);
std::string text(const std::vector<CollectiveConfig>& configs);

void parse(bool& value, const std::string& text);
void parse(std::int32_t& value, const std::string& text);  ///< from 1 to 2^20
void parse(std::int64_t& value, const std::string& text);  ///< from 1 to max_extent
void parse(std::vector<std::int64_t>& values, const std::string& text);
void parse(std::vector<CollectiveConfig>& configs, const std::string& text);
inline void parse(Mover& value, const std::string& text) {
  value = parse_mover(text);
}
inline void parse(SumsIn& value, const std::string& text) {
  value = parse_sums_in(text);
}
inline void parse(CommOrder& value, const std::string& text) {
  value = parse_comm_order(text);
}
inline void parse(SlotOrder& value, const std::string& text) {
  value = parse_slot_order(text);
}
inline void parse(CopyVariant& value, const std::string& text) {
  value = parse_copy_variant(text);
}
inline void parse(PollScope& value, const std::string& text) {
  value = parse_poll_scope(text);
}
inline void parse(EngineTrigger& value, const std::string& text) {
  value = parse_engine_trigger(text);
}

// ----------------------------------------------------------------------------------------------------------
// rows

template <class P, class T>
P owner_of(T P::*);
template <class P, class T>
T type_of(T P::*);

/// The row of a param that is one field. `values` lists what a tuner tries; null: the param is not tuned.
template <auto Field>
auto row(std::string_view name, std::string_view type, std::string_view help,
         std::function<std::vector<decltype(type_of(Field))>(const Tuning<decltype(owner_of(Field))>&)>
             values = nullptr) {
  using P = decltype(owner_of(Field));
  ParamRow<P> made;
  made.info = {.name = name, .type = type, .help = help};
  made.text = [](const P& params) -> std::optional<std::string> {
    if (params.*Field == P{}.*Field) return std::nullopt;
    return text(params.*Field);
  };
  made.parse = [](P& params, const std::string& value) { parse(params.*Field, value); };
  if (values)
    made.tried = [values = std::move(values)](const Tuning<P>& tuning) {
      std::vector<P> all;
      for (const auto& value : values(tuning)) {
        all.push_back(tuning.at);
        all.back().*Field = value;
      }
      return all;
    };
  return made;
}

/// A row that several mechanisms have, under one heading in `--help`.
template <class P>
ParamRow<P> shared(ParamRow<P> row, std::string_view group) {
  row.info.group = group;
  return row;
}

/// Worker counts of collectives for which the machine has curves, ascending. NCCL's own choice is not among
/// them.
std::vector<std::int32_t> known_comm_workers(const Machine& machine);

template <class P>
ParamRow<P> comm_workers_row() {
  return shared(row<&P::comm_workers>("comm-workers", "N",
                                      "Workers of each rank that collectives occupy (default: the machine's)",
                                      [](const Tuning<P>& tuning) {
                                        return tuning.machine.collective_workers > 0
                                                   ? known_comm_workers(tuning.machine)
                                                   : std::vector<std::int32_t>{};
                                      }),
                mechanism_heading);
}

template <class P>
ParamRow<P> unregistered_row() {
  return shared(row<&P::unregistered>("unregistered", "",
                                      "Peers cannot access the matrices; data goes through the operator's "
                                      "staging memory"),
                mechanism_heading);
}

/// Numbers of helpers that are worth a try.
template <class P>
std::vector<std::int32_t> helpers_to_try(const Tuning<P>& tuning) {
  if (tuning.machine.workers <= 1) return {};
  const std::int32_t few = std::max(tuning.machine.workers / 32, 1);
  return {FusedParams::no_helpers, few, 2 * few, 4 * few};
}

template <class P>
ParamRow<P> helpers_row(std::function<std::vector<std::int32_t>(const Tuning<P>&)> values) {
  ParamRow<P> helpers = shared(
      row<&P::helpers>("helpers", "N", "Workers that sum, sort or push beside the GEMM, or none", values),
      mechanism_heading);
  helpers.text = [](const P& params) -> std::optional<std::string> {
    if (params.helpers == 0) return std::nullopt;
    return params.helpers == FusedParams::no_helpers ? "none" : text(params.helpers);
  };
  helpers.parse = [](P& params, const std::string& value) {
    if (value == "none")
      params.helpers = FusedParams::no_helpers;
    else
      parse(params.helpers, value);
  };
  return helpers;
}

template <class P>
ParamRow<P> slots_row() {
  return shared(row<&P::slots>("slots", "ORDER",
                               "Rows of a tensor-parallel expert with a capacity: by-source, or merged "
                               "(default: by size)",
                               [](const Tuning<P>& tuning) {
                                 const Problem& p = tuning.problem;
                                 return p.orders_slots() && p.world > 1
                                            ? std::vector{SlotOrder::by_source, SlotOrder::merged}
                                            : std::vector<SlotOrder>{};
                               }),
                mechanism_heading);
}

template <class P>
ParamRow<P> symmetric_row() {
  return row<&P::symmetric>("symmetric", "", "");
}

template <class P>
ParamRow<P> configs_row() {
  ParamRow<P> configs = row<&P::configs>("configs", "LIST", "");
  configs.info.only_of_workloads = true;
  return configs;
}

/// The rows of TileParams: tile, raster, swizzle, cluster and rotation.
const ParamTable<TileParams>& tile_table();

/// These rows, for the tiles of a mechanism.
template <class P>
ParamTable<P> tile_rows(bool only_of_workloads = false) {
  ParamTable<P> rows;
  for (const ParamRow<TileParams>& tile : tile_table()) {
    ParamRow<P>& row = rows.emplace_back();
    row.info = tile.info;
    row.info.group = tiles_heading;
    row.info.only_of_workloads = only_of_workloads;
    row.text = [&tile](const P& params) { return tile.text(params.tile); };
    row.parse = [&tile](P& params, const std::string& value) { tile.parse(params.tile, value); };
  }
  return rows;
}
/// The tiles with known times on this machine that are worth a try for a problem.
std::vector<TileRate> tiles_to_try(const Problem& problem, const Machine& machine);

/// The rows of tiles, with a shape that is tuned.
template <class P>
ParamTable<P> tuned_tile_rows() {
  ParamTable<P> rows = tile_rows<P>();
  rows.front().tried = [](const Tuning<P>& tuning) {
    std::vector<P> all;
    for (const TileRate& tile : tiles_to_try(tuning.problem, tuning.machine)) {
      all.push_back(tuning.at);
      all.back().tile.rows = tile.rows, all.back().tile.cols = tile.cols;
    }
    return all;
  };
  return rows;
}
/// Concatenates rows.
template <class P>
ParamTable<P> joined(ParamTable<P> first, ParamTable<P> rest) {
  first.insert(first.end(), std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
  return first;
}

}  // namespace shingle::planner
