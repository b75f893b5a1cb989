// Names of a plan's enums and steps in JSON.
#pragma once

#include <string_view>
#include <variant>

#include "shingle/plan/plan.hpp"

namespace shingle::plan_json {

/// The last value of an enum; the reader searches names up to it.
template <class E>
inline constexpr E last{};
template <>
inline constexpr Op last<Op> = Op::alltoall;
template <>
inline constexpr DType last<DType> = DType::i32;
template <>
inline constexpr Activation last<Activation> = Activation::swiglu;
template <>
inline constexpr RowOrder last<RowOrder> = RowOrder::zigzag;
template <>
inline constexpr Raster last<Raster> = Raster::along_m;
template <>
inline constexpr Axis last<Axis> = Axis::n;
template <>
inline constexpr Role last<Role> = Role::internal;
template <>
inline constexpr CounterKind last<CounterKind> = CounterKind::set;
template <>
inline constexpr CollectiveKind last<CollectiveKind> = CollectiveKind::alltoall;
template <>
inline constexpr ComputationKind last<ComputationKind> = ComputationKind::pass;
template <>
inline constexpr Algorithm last<Algorithm> = Algorithm::pat;
template <>
inline constexpr Protocol last<Protocol> = Protocol::simple;
template <>
inline constexpr Transport last<Transport> = Transport::engines;
template <>
inline constexpr LaneKind last<LaneKind> = LaneKind::host;
template <>
inline constexpr Mechanism last<Mechanism> = static_cast<Mechanism>(mechanism_count - 1);

constexpr std::string_view name(RowOrder order) {
  if (order == RowOrder::zigzag) return "zigzag";
  return order == RowOrder::contiguous ? "contiguous" : "block_cyclic";
}
constexpr std::string_view name(Raster raster) {
  return raster == Raster::along_n ? "along_n" : "along_m";
}
constexpr std::string_view name(Axis axis) {
  return axis == Axis::m ? "m" : "n";
}
constexpr std::string_view name(CounterKind kind) {
  return kind == CounterKind::add ? "add" : "set";
}

/// The value of "step" for each alternative of Step, by index.
inline constexpr std::string_view step_names[] = {
    "gemm",       "elementwise", "await", "notify", "fill",  "collective",      "exchange",
    "copy",       "broadcast",   "swap",  "attend", "merge", "attend-backward", "assign-slots",
    "merge-slots"};
static_assert(std::size(step_names) == std::variant_size_v<Step>);

}  // namespace shingle::plan_json
