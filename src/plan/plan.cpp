#include "shingle/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "shingle/base/error.hpp"

namespace shingle {

std::string_view name(Role role) {
  static constexpr std::string_view names[] = {"a",      "b",    "bias", "residual", "norm_weight", "keys",
                                               "values", "down", "out",  "sum",      "internal"};
  return names[static_cast<std::size_t>(role)];
}

std::string_view name(PlacementKind kind) {
  static constexpr std::string_view names[] = {"matrix", "slots", "subtiles", "pools", "routed", "owners"};
  return names[static_cast<std::size_t>(kind)];
}

std::string_view name(CollectiveKind kind) {
  static constexpr std::string_view names[] = {"allreduce", "reducescatter", "allgather", "alltoall"};
  return names[static_cast<std::size_t>(kind)];
}

std::string_view name(LaneKind kind) {
  static constexpr std::string_view names[] = {"compute", "communicate", "copy"};
  return names[static_cast<std::size_t>(kind)];
}

std::string_view name(Mechanism mechanism) {
  static constexpr std::string_view names[] = {"sequential", "chunked", "signal", "ring", "fused"};
  return names[static_cast<std::size_t>(mechanism)];
}

Mechanism parse_mechanism(std::string_view text) {
  for (const auto mechanism :
       {Mechanism::sequential, Mechanism::chunked, Mechanism::signal, Mechanism::ring, Mechanism::fused})
    if (name(mechanism) == text) return mechanism;
  throw InvalidArgument(
      fmt::format("unknown mechanism '{}' (one of sequential, chunked, signal, ring, fused)", text));
}

std::string_view name(Mover mover) {
  return mover == Mover::copy_engine ? "copy-engine" : "store";
}

Mover parse_mover(std::string_view text) {
  for (const auto mover : {Mover::copy_engine, Mover::store})
    if (name(mover) == text) return mover;
  throw InvalidArgument(fmt::format("unknown mover '{}' (one of copy-engine, store)", text));
}

std::string_view name(CommOrder order) {
  static constexpr std::string_view names[] = {"ring", "reverse", "interleaved"};
  return names[static_cast<std::size_t>(order)];
}

CommOrder parse_comm_order(std::string_view text) {
  for (const auto order : {CommOrder::ring, CommOrder::reverse, CommOrder::interleaved})
    if (name(order) == text) return order;
  throw InvalidArgument(fmt::format("unknown order '{}' (one of ring, reverse, interleaved)", text));
}

std::string_view name(const Step& step) {
  struct Namer {
    std::string_view operator()(const Gemm&) const { return "gemm"; }
    std::string_view operator()(const Elementwise& e) const {
      if (e.from.size() > 1) return "reduce";
      const bool leaves = e.to.kind == PlacementKind::owners || !e.to.ranks.empty() ||
                          (e.to.kind == PlacementKind::routed && e.to.dest < 0);
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
  };
  return std::visit(Namer{}, step);
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

std::vector<std::int32_t> ranks_of(const Placement& at, int world) {
  if (!at.ranks.empty()) return at.ranks;
  if (at.kind != PlacementKind::owners && (at.kind != PlacementKind::routed || at.dest >= 0))
    return {at.slice.rank};
  std::vector<std::int32_t> everyone(static_cast<std::size_t>(world));
  std::iota(everyone.begin(), everyone.end(), 0);
  return everyone;
}

std::int64_t group_of(const std::vector<std::int64_t>& ends, std::int64_t position) {
  return std::upper_bound(ends.begin(), ends.end(), position) - ends.begin();
}

}  // namespace shingle
