#include "shingle/planner/params.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/names.hpp"
#include "planner/common/param_table.hpp"

namespace shingle {
namespace {

constexpr Names<Mover, 3> movers{
    {{Mover::automatic, "auto"}, {Mover::copy_engine, "copy-engine"}, {Mover::store, "store"}}};
constexpr Names<CommOrder, 5> comm_orders{{{CommOrder::automatic, "auto"},
                                           {CommOrder::ring, "ring"},
                                           {CommOrder::reverse, "reverse"},
                                           {CommOrder::interleaved, "interleaved"},
                                           {CommOrder::same, "same"}}};
constexpr Names<SumsIn, 3> places_of_sums{
    {{SumsIn::automatic, "auto"}, {SumsIn::epilogue, "epilogue"}, {SumsIn::pass, "pass"}}};
constexpr Names<SlotOrder, 3> slot_orders{
    {{SlotOrder::automatic, "auto"}, {SlotOrder::by_source, "by-source"}, {SlotOrder::merged, "merged"}}};
constexpr Names<CopyVariant, 6> variants{{{CopyVariant::automatic, "auto"},
                                          {CopyVariant::pcpy, "pcpy"},
                                          {CopyVariant::bcst, "bcst"},
                                          {CopyVariant::swap, "swap"},
                                          {CopyVariant::b2b, "b2b"},
                                          {CopyVariant::ring, "ring"}}};
constexpr Names<PollScope, 3> polls{
    {{PollScope::engine, "engine"}, {PollScope::rank, "rank"}, {PollScope::collective, "collective"}}};
constexpr Names<EngineTrigger, 2> triggers{
    {{EngineTrigger::host, "host"}, {EngineTrigger::direct, "direct"}}};

/// Calls visit(P{}) with the params of a mechanism at their defaults.
template <class Visit>
auto with_params_of(Mechanism mechanism, Visit&& visit) {
  return std::visit([&](const auto& params) { return visit(params); }, default_params(mechanism));
}

template <class P>
const planner::ParamRow<P>* find_row(std::string_view name, bool is_workload) {
  for (const planner::ParamRow<P>& row : P::table())
    if (row.info.name == name && (is_workload || !row.info.only_of_workloads)) return &row;
  return nullptr;
}

template <std::size_t... I>
Params params_at(std::size_t index, std::index_sequence<I...>) {
  Params params;
  ((I == index && (params.emplace<I>(), true)) || ...);
  return params;
}

}  // namespace

std::string_view name(Mover mover) {
  return name_in(movers, mover);
}
Mover parse_mover(std::string_view text) {
  return parse_in(movers, "mover", text);
}
std::string_view name(SumsIn where) {
  return name_in(places_of_sums, where);
}
SumsIn parse_sums_in(std::string_view text) {
  return parse_in(places_of_sums, "sums", text);
}
std::string_view name(SlotOrder order) {
  return name_in(slot_orders, order);
}
SlotOrder parse_slot_order(std::string_view text) {
  return parse_in(slot_orders, "order of slots", text);
}
std::string_view name(CopyVariant variant) {
  return name_in(variants, variant);
}
CopyVariant parse_copy_variant(std::string_view text) {
  return parse_in(variants, "variant", text);
}
std::string_view name(PollScope poll) {
  return name_in(polls, poll);
}
PollScope parse_poll_scope(std::string_view text) {
  return parse_in(polls, "poll location", text);
}
std::string_view name(EngineTrigger trigger) {
  return name_in(triggers, trigger);
}
EngineTrigger parse_engine_trigger(std::string_view text) {
  return parse_in(triggers, "trigger", text);
}

std::string_view name(CommOrder order) {
  return name_in(comm_orders, order);
}
CommOrder parse_comm_order(std::string_view text) {
  return parse_in(comm_orders, "order", text);
}

static_assert(std::variant_size_v<Params> == mechanism_count);

Mechanism mechanism_of(const Params& params) {
  return static_cast<Mechanism>(params.index());
}

Params default_params(Mechanism mechanism) {
  return params_at(static_cast<std::size_t>(mechanism),
                   std::make_index_sequence<std::variant_size_v<Params>>{});
}

Params params_of(const Plan& plan) {
  return parse_params(plan.mechanism, plan.params);
}

ParamList list_of(const Params& params) {
  ParamList list;
  std::visit(
      [&]<class P>(const P& at) {
        for (const planner::ParamRow<P>& row : P::table())
          if (auto text = row.text(at)) list.push_back({std::string(row.info.name), std::move(*text)});
      },
      params);
  std::ranges::sort(list, {}, &Param::name);
  return list;
}

Params parse_params(Mechanism mechanism, const ParamList& list, bool is_workload) {
  if (const auto reason = why_refused(mechanism, list, is_workload)) throw InvalidArgument(reason->text);
  Params params = default_params(mechanism);
  std::visit(
      [&]<class P>(P& at) {
        for (const auto& [name, value] : list) {
          try {
            find_row<P>(name, is_workload)->parse(at, value);
          } catch (const InvalidArgument& error) {
            throw InvalidArgument(fmt::format("--{}: {}", name, error.what()));
          }
        }
      },
      params);
  return params;
}

bool is_symmetric(const Params& params) {
  return std::visit([](const auto& at) { return at.symmetric; }, params);
}

Params with_unregistered(Params params) {
  std::visit(
      [](auto& at) {
        if constexpr (requires { at.unregistered; }) at.unregistered = true;
      },
      params);
  return params;
}

std::vector<ParamInfo> param_infos(Mechanism mechanism) {
  return with_params_of(mechanism, []<class P>(const P&) {
    std::vector<ParamInfo> infos;
    for (const planner::ParamRow<P>& row : P::table()) infos.push_back(row.info);
    return infos;
  });
}

std::optional<Reason> why_refused(Mechanism mechanism, const ParamList& list, bool is_workload) {
  std::string known;
  std::vector<std::string_view> names;
  for (const ParamInfo& info : param_infos(mechanism)) {
    if (!is_workload && info.only_of_workloads) continue;
    names.push_back(info.name);
    known += fmt::format("{}--{}", known.empty() ? "" : ", ", info.name);
  }
  for (const Param& param : list)
    if (std::ranges::find(names, param.name) == names.end())
      return Reason{fmt::format("{} takes no --{}; its params are {}", name(mechanism), param.name, known)};
  return std::nullopt;
}

ParamList accepted(Mechanism mechanism, ParamList list, bool is_workload) {
  std::erase_if(list,
                [&](const Param& param) { return why_refused(mechanism, {param}, is_workload).has_value(); });
  return list;
}

Params parse_accepted(Mechanism mechanism, const ParamList& list) {
  return parse_params(mechanism, accepted(mechanism, list));
}

}  // namespace shingle
