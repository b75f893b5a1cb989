#include "shingle/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/names.hpp"
#include "shingle/base/error.hpp"

namespace shingle {

std::string_view name(Role role) {
  static constexpr std::string_view names[] = {
      "a",       "b",        "bias",         "residual", "norm_weight", "keys",
      "values",  "down",     "topk_weights", "payload",  "grad",        "attended",
      "lse",     "topk_ids", "out",          "sum",      "keys_grad",   "values_grad",
      "out_lse", "dropped",  "counts",       "internal"};
  static_assert(std::size(names) == static_cast<std::size_t>(Role::internal) + 1);
  return names[static_cast<std::size_t>(role)];
}

std::string_view name(CollectiveKind kind) {
  static constexpr std::string_view names[] = {"allreduce", "reducescatter", "allgather", "alltoall"};
  return names[static_cast<std::size_t>(kind)];
}

bool serves(CollectiveKind kind, const CollectiveConfig& config) {
  if (config.by_engines())
    return config.algorithm == Algorithm::automatic && config.protocol == Protocol::automatic &&
           config.threads == 0;
  const bool shards = kind == CollectiveKind::allgather || kind == CollectiveKind::reducescatter;
  switch (config.algorithm) {
    case Algorithm::tree:
      return kind == CollectiveKind::allreduce;
    case Algorithm::pat:
      return shards && (config.protocol == Protocol::simple || config.protocol == Protocol::automatic);
    case Algorithm::ring:
      return kind != CollectiveKind::alltoall;
    case Algorithm::automatic:
      break;
  }
  return kind != CollectiveKind::alltoall || config.protocol == Protocol::automatic;
}

std::string_view name(LaneKind kind) {
  static constexpr std::string_view names[] = {"compute", "communicate", "copy", "host"};
  return names[static_cast<std::size_t>(kind)];
}

namespace {

constexpr Names<Mechanism, mechanism_count> mechanisms{{{Mechanism::sequential, "sequential"},
                                                        {Mechanism::chunked, "chunked"},
                                                        {Mechanism::signal, "signal"},
                                                        {Mechanism::ring, "ring"},
                                                        {Mechanism::fused, "fused"},
                                                        {Mechanism::copy_engine, "copy-engine"},
                                                        {Mechanism::low_latency, "low-latency"}}};

/// True if every row lies on a rank of its own: the owner or the destination.
bool spreads_by_row(const Placement& at) {
  const auto* const routed = std::get_if<placement::Routed>(&at.form);
  return std::holds_alternative<placement::Owners>(at.form) ||
         std::holds_alternative<placement::Returned>(at.form) ||
         (routed != nullptr && routed->dest < 0 && !routed->one_rank);
}

}  // namespace

bool is_sum(const Gemm& gemm, std::int64_t row) {
  const auto* const owners =
      gemm.sums.from.empty() ? nullptr : std::get_if<placement::Owners>(&gemm.out.form);
  if (owners == nullptr) return false;
  const RowRun first = owners->rows.run_at(row, 1);
  return first.matrix_row >= 0 && first.matrix_row / owners->rows.stride == gemm.a.rank;
}

std::string_view name(Mechanism mechanism) {
  return name_in(mechanisms, mechanism);
}
Mechanism parse_mechanism(std::string_view text) {
  return parse_in(mechanisms, "mechanism", text);
}
std::string describe(const ParamList& params) {
  std::string text;
  for (const auto& [name, value] : params)
    text += fmt::format("{}{}{}{}", text.empty() ? "" : " ", name, value.empty() ? "" : "=", value);
  return text;
}

std::vector<const Slice*> outputs_of(const MergeSlots& step) {
  std::vector<const Slice*> made;
  for (const Slice* one : {&step.live, &step.merged_of, &step.token_of, &step.row_of, &step.slot_at})
    if (one->buffer >= 0) made.push_back(one);
  return made;
}

bool is_command(const Step& step) {
  return std::holds_alternative<Fill>(step) || std::holds_alternative<Copy>(step) ||
         std::holds_alternative<Broadcast>(step) || std::holds_alternative<Swap>(step);
}

int world_of(const Work& work) {
  return std::visit([](const auto& of) { return of.world; }, work);
}
DType dtype_of(const Work& work) {
  return std::visit([](const auto& of) { return of.dtype; }, work);
}
std::string describe(const Work& work) {
  return std::visit([](const auto& of) { return describe(of); }, work);
}

std::string_view name(const Step& step) {
  struct Namer {
    std::string_view operator()(const Gemm&) const { return "gemm"; }
    std::string_view operator()(const Elementwise& e) const {
      if (e.from.size() > 1) return "reduce";
      const bool leaves = spreads_by_row(e.to) || !replicas(e.to).empty();
      return leaves || (!e.from.empty() && e.from[0].slice.rank != e.to.slice.rank) ? "push" : "permute";
    }
    std::string_view operator()(const Await&) const { return "await"; }
    std::string_view operator()(const Notify&) const { return "notify"; }
    std::string_view operator()(const Fill&) const { return "fill"; }
    std::string_view operator()(const Collective& c) const { return name(c.kind); }
    std::string_view operator()(const Exchange&) const { return "exchange"; }
    std::string_view operator()(const Copy&) const { return "copy"; }
    std::string_view operator()(const Broadcast&) const { return "broadcast"; }
    std::string_view operator()(const Swap&) const { return "swap"; }
    std::string_view operator()(const Attend&) const { return "attend"; }
    std::string_view operator()(const Merge&) const { return "merge"; }
    std::string_view operator()(const AttendBackward&) const { return "attend-backward"; }
    std::string_view operator()(const AssignSlots&) const { return "assign-slots"; }
    std::string_view operator()(const MergeSlots&) const { return "merge-slots"; }
  };
  return std::visit(Namer{}, step);
}

std::string asymmetry(const Problem& problem) {
  if (problem.traits().replicates_tokens()) return "experts of replicated tokens are planned for all ranks";
  if (problem.traits().routes()) return "its routing sends different rows to each rank";
  if (problem.traits().attends) return "attention takes longer for some tokens than for others";
  if (problem.m % problem.world != 0)
    return fmt::format("m = {} is not a multiple of {} ranks", problem.m, problem.world);
  return {};
}

std::string asymmetry(const Work& work) {
  const auto* problem = std::get_if<Problem>(&work);
  return problem ? asymmetry(*problem) : std::string();
}

std::int32_t find_buffer(const Plan& plan, Role role) {
  for (std::size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].role == role) return static_cast<std::int32_t>(i);
  return -1;
}

Slice whole(const Plan& plan, std::int32_t buffer, std::int32_t rank) {
  const Buffer& b = plan.buffers[static_cast<std::size_t>(buffer)];
  return {buffer, rank, 0, b.rows[static_cast<std::size_t>(rank)], 0, b.cols};
}

bool is_indexed(const Placement& at) {
  return std::holds_alternative<placement::Indexed>(at.form);
}

std::vector<std::int32_t> ranks_of(const Placement& at, int world) {
  if (spreads_by_row(at)) {
    std::vector<std::int32_t> everyone(static_cast<std::size_t>(world));
    std::iota(everyone.begin(), everyone.end(), 0);
    return everyone;
  }
  const auto ranks = replicas(at);
  return ranks.empty() ? std::vector{at.slice.rank} : std::vector(ranks.begin(), ranks.end());
}

std::span<const std::int32_t> replicas(const Placement& at) {
  return std::visit(
      [](const auto& form) -> std::span<const std::int32_t> {
        if constexpr (requires { form.ranks; })
          return form.ranks;
        else
          return {};
      },
      at.form);
}

Placement first_replica(Placement at) {
  if (!replicas(at).empty()) at.slice.rank = replicas(at).front();
  std::visit(
      [](auto& form) {
        if constexpr (requires { form.ranks; }) form.ranks.clear();
      },
      at.form);
  return at;
}

bool stacks_tiles(const Placement& at) {
  return std::holds_alternative<placement::Slots>(at.form) ||
         std::holds_alternative<placement::Subtiles>(at.form) ||
         std::holds_alternative<placement::Pools>(at.form);
}

std::int64_t group_of(const std::vector<std::int64_t>& ends, std::int64_t position) {
  return std::upper_bound(ends.begin(), ends.end(), position) - ends.begin();
}

}  // namespace shingle
