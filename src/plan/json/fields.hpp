// The JSON form of everything in a plan. Writer and reader use the same fields, so they cannot disagree.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <memory>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "shingle/base/error.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::plan_json {

constexpr std::string_view format = "shingle-plan";

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
    "gemm", "elementwise", "await", "notify", "fill",  "collective",      "exchange",
    "copy", "broadcast",   "swap",  "attend", "merge", "attend-backward", "assign-slots"};
static_assert(std::size(step_names) == std::variant_size_v<Step>);

/// True if T is Plain, const or not: writer and reader share the functions below.
template <class T, class Plain>
concept Is = std::same_as<std::remove_const_t<T>, Plain>;
template <class T>
inline constexpr bool reads = !std::is_const_v<T>;

// fields(f, x) passes every field of x to f. A field is required, or optional with the value that absence
// means (zero or empty if none is given). list_or_one() passes a required list, of which older plans hold the
// one element alone. alternative() passes the name of a variant's alternative, by index; absence means the
// first. work() passes what a plan computes.

void fields(auto& f, Is<Slice> auto& s) {
  f.required("buffer", s.buffer);
  f.required("rank", s.rank);
  f.optional("row", s.row);
  f.required("rows", s.rows);
  f.optional("col", s.col);
  f.required("cols", s.cols);
}

/// An absent field has the identity's value.
void fields(auto& f, Is<RowMap> auto& m) {
  f.required("len", m.len);
  f.optional("base", m.base);
  f.optional("world", m.world, 1);
  f.optional("block", m.block, larger(m.len, 1));
  f.optional("stride", m.stride);
  f.optional("limit", m.limit, m.base + m.len);
  f.optional("pitch", m.pitch);
  f.optional("without", m.without, -1);
}

void fields(auto& f, Is<Loop> auto& l) {
  f.required("axis", l.axis);
  f.required("extent", l.extent);
  f.optional("rotation", l.rotation);
  f.optional("descending", l.descending);
}

template <Is<TileGrid> Grid>
void fields(auto& f, Grid& g) {
  f.required("rows", g.rows);
  f.required("cols", g.cols);
  f.required("tile_rows", g.tile_rows);
  f.required("tile_cols", g.tile_cols);
  std::vector<Loop> loops(g.loops, g.loops + std::clamp(g.loop_count, 0, max_loops));
  f.optional("loops", loops);
  if constexpr (reads<Grid>) {
    if (loops.size() > max_loops)
      f.fail("loops", fmt::format("{} loops, at most {}", loops.size(), max_loops));
    std::copy(loops.begin(), loops.end(), g.loops);
    g.loop_count = static_cast<std::int32_t>(loops.size());
  }
}

void fields(auto& f, Is<TileOrder> auto& o) {
  f.optional("raster", o.raster);
  f.optional("swizzle", o.swizzle, 1);
  f.optional("cluster_m", o.cluster_m, 1);
  f.optional("cluster_n", o.cluster_n, 1);
  f.optional("rotation", o.rotation);
}

void fields(auto& f, Is<Epilogue> auto& e) {
  f.optional("bias", e.bias);
  f.optional("activation", e.activation);
  f.optional("scale", e.scale, 1.0f);
}

void fields(auto& f, Is<Norm> auto& n) {
  f.required("enabled", n.enabled);
  f.optional("residual", n.residual);
  f.optional("epsilon", n.epsilon, Norm{}.epsilon);
}

void fields(auto& f, Is<Attention> auto& a) {
  f.required("heads", a.heads);
  f.required("kv_heads", a.kv_heads);
  f.required("head_dim", a.head_dim);
  f.optional("causal", a.causal);
  f.optional("lengths", a.lengths);
  f.optional("returns_lse", a.returns_lse);
}

void fields(auto& f, Is<Workload::Computation> auto& c) {
  f.required("name", c.name);
  f.required("m", c.m);
  f.required("n", c.n);
  f.required("k", c.k);
  f.optional("kind", c.kind);
  f.optional("after", c.after);
}

void fields(auto& f, Is<Workload::Collective> auto& c) {
  f.required("name", c.name);
  f.required("kind", c.kind);
  f.required("bytes", c.bytes);
  f.optional("after", c.after);
}

/// A workload without its world and dtype.
struct Lists {
  std::vector<Workload::Computation> computations;
  std::vector<Workload::Collective> collectives;
};

void fields(auto& f, Is<Lists> auto& l) {
  f.required("computations", l.computations);
  f.required("collectives", l.collectives);
}

void fields(auto& f, Is<Workload> auto& w) {
  f.required("world", w.world);
  f.required("dtype", w.dtype);
  f.required("computations", w.computations);
  f.required("collectives", w.collectives);
}

/// A workload in plans from before it had a type of its own: the problem of an operator "overlap", whose
/// sizes are the largest of its computations.
struct OverlapProblem {
  static constexpr std::string_view op_name = "overlap";

  std::string op;
  int world = 1;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType dtype = DType::f32;
  Lists overlap;
};

void fields(auto& f, Is<OverlapProblem> auto& p) {
  f.required("op", p.op);
  f.required("world", p.world);
  f.required("m", p.m);
  f.required("n", p.n);
  f.required("k", p.k);
  f.required("dtype", p.dtype);
  f.required("overlap", p.overlap);
}

void fields(auto& f, Is<CollectiveConfig> auto& c) {
  f.optional("channels", c.channels);
  f.optional("chunk_bytes", c.chunk_bytes);
  f.optional("threads", c.threads);
  f.optional("algorithm", c.algorithm);
  f.optional("protocol", c.protocol);
  f.optional("transport", c.transport);
  f.optional("spared", c.spared);
  f.optional("delay", c.delay);
}

void fields(auto& f, Is<Experts> auto& e) {
  f.required("count", e.count);
  f.required("topk", e.topk);
  f.optional("capacity", e.capacity);
}

template <Is<Problem> P>
void fields(auto& f, P& p) {
  f.required("op", p.op);
  f.required("world", p.world);
  f.required("m", p.m);
  f.required("n", p.n);
  f.required("k", p.k);
  f.optional("inner", p.inner);
  f.required("dtype", p.dtype);
  f.optional("transpose_a", p.transpose_a);
  f.optional("transpose_b", p.transpose_b);
  f.optional("epilogue", p.epilogue);
  f.optional("f32_sums", p.f32_sums);
  f.optional("norm", p.norm);
  f.optional("row_order", p.row_order);
  f.optional("row_block", p.row_block);
  f.optional("attention", p.attention);
  f.optional("experts", p.experts);
  // That of slots follows from the capacity.
  auto table = p.routing ? p.routing->table() : std::vector<std::vector<std::int32_t>>{};
  f.optional("routing", table);
  if constexpr (reads<P>) {
    if (p.has_slots() && p.traits().grouped) {
      if (!table.empty()) f.fail("routing", "is given beside a capacity, from which it follows");
      try {
        p.routing =
            std::make_shared<const Routing>(Routing::slots(p.world, p.experts.count, p.experts.capacity));
      } catch (const InvalidArgument& e) {
        f.fail("experts", e.what());
      }
    }
    if (table.empty()) return;
    if (table.size() > max_world)
      f.fail("routing", fmt::format("{} ranks, at most {}", table.size(), max_world));
    try {
      p.routing = std::make_shared<const Routing>(
          p.experts.count > 0
              ? Routing::to_experts(std::move(table), p.experts.count, p.traits().expert_split())
              : Routing(std::move(table)));
    } catch (const InvalidArgument& e) {
      f.fail("routing", e.what());
    }
  }
}

void fields(auto& f, Is<Buffer> auto& b) {
  f.required("name", b.name);
  f.optional("role", b.role, Role::internal);
  f.required("dtype", b.dtype);
  f.required("rows", b.rows);
  f.required("cols", b.cols);
  f.optional("depth", b.depth, 1);
  f.optional("flagged", b.flagged);
}

void fields(auto& f, Is<Counter> auto& c) {
  f.required("name", c.name);
  f.optional("kind", c.kind);
  f.required("growth", c.growth);
  f.optional("of_begins", c.of_begins);
  f.optional("of_arrivals", c.of_arrivals);
}

void fields(auto& f, Is<CounterRef> auto& c) {
  f.required("counter", c.counter);
  f.required("rank", c.rank);
  f.optional("entry", c.entry);
}

void fields(auto& f, Is<placement::Matrix> auto& p) {
  f.optional("rows", p.rows);
  f.optional("ranks", p.ranks);
}

void fields(auto& f, Is<placement::Slots> auto& p) {
  f.optional("ends", p.ends);
  f.optional("bases", p.bases);
  f.optional("ranks", p.ranks);
}

void fields(auto& f, Is<placement::Subtiles> auto& p) {
  f.optional("ends", p.ends);
  f.optional("parts", p.parts, 1);
}

void fields(auto& f, Is<placement::Pools> auto& p) {
  f.optional("ends", p.ends);
  f.optional("source", p.source, -1);
  f.optional("dest", p.dest, -1);
  f.optional("bases", p.bases);
  f.optional("first", p.first);
}

void fields(auto& f, Is<placement::Routed> auto& p) {
  f.optional("source", p.source, -1);
  f.optional("dest", p.dest, -1);
  f.optional("bases", p.bases);
  f.optional("one_rank", p.one_rank);
}

void fields(auto& f, Is<placement::Returned> auto& p) {
  f.required("rank", p.rank);
}

void fields(auto& f, Is<placement::Indexed> auto& p) {
  f.required("index", p.index);
}

void fields(auto& f, Is<placement::Owners> auto& p) {
  f.optional("rows", p.rows);
}

void fields(auto& f, Is<Placement> auto& p) {
  f.alternative("kind", Placement::names, p.form);
  f.required("slice", p.slice);
  std::visit([&](auto& form) { fields(f, form); }, p.form);
}

void fields(auto& f, Is<TileGate> auto& g) {
  f.required("counter", g.counter);
  f.required("ends", g.ends);
  f.required("targets", g.targets);
  f.optional("entries", g.entries);
  f.optional("of_parts", g.of_parts);
}

void fields(auto& f, Is<TileNotify> auto& n) {
  f.required("counter", n.counter);
  f.optional("ranks", n.ranks);
  f.required("ends", n.ends);
  f.optional("entries", n.entries, -1);
  f.optional("owners", n.owners);
}

void fields(auto& f, Is<Resources> auto& r) {
  f.optional("least", r.least);
  f.optional("most", r.most);
}

void fields(auto& f, Is<RowGroup> auto& g) {
  f.required("a_row", g.a_row);
  f.required("row", g.row);
  f.required("rows", g.rows);
  f.required("weight", g.weight);
  f.optional("live", g.live, -1);
}

void fields(auto& f, Is<TileSums> auto& s) {
  f.required("from", s.from);
  f.list_or_one("to", s.to);
}

void fields(auto& f, Is<Gemm> auto& g) {
  f.required("grid", g.grid);
  f.required("a", g.a);
  f.required("b", g.b);
  f.required("a_rows", g.a_rows);
  f.optional("groups", g.groups);
  f.optional("group_tiles", g.group_tiles, Gemm{}.group_tiles);
  f.optional("live", g.live);
  f.optional("transpose_a", g.transpose_a);
  f.optional("transpose_b", g.transpose_b);
  f.optional("epilogue", g.epilogue);
  f.optional("bias", g.bias);
  f.required("out", g.out);
  f.optional("sums", g.sums);
  f.optional("gates", g.gates);
  f.optional("notify", g.notify);
  f.optional("resources", g.resources, Gemm{}.resources);
  f.optional("stands_for", g.stands_for);
}

void fields(auto& f, Is<Elementwise> auto& e) {
  f.required("grid", e.grid);
  f.optional("first", e.first);
  f.optional("count", e.count, -1);
  f.required("from", e.from);
  f.optional("factors", e.factors);
  f.required("to", e.to);
  f.optional("epilogue", e.epilogue);
  f.optional("bias", e.bias);
  f.optional("norm", e.norm);
  f.optional("norm_weight", e.norm_weight);
  f.optional("residual", e.residual);
  f.optional("sum", e.sum);
  f.optional("gates", e.gates);
  f.optional("notify", e.notify);
  f.optional("resources", e.resources, Elementwise{}.resources);
  f.optional("queue", e.queue, -1);
}

void fields(auto& f, Is<Attend> auto& a) {
  f.required("grid", a.grid);
  f.optional("first_token", a.first_token);
  f.required("q", a.q);
  f.optional("first_key", a.first_key);
  f.required("keys", a.keys);
  f.required("values", a.values);
  f.required("out", a.out);
  f.optional("lse", a.lse);
  f.optional("gates", a.gates);
  f.optional("notify", a.notify);
  f.optional("resources", a.resources, Attend{}.resources);
}

void fields(auto& f, Is<Merge::Part> auto& p) {
  f.optional("row", p.row);
  f.required("value", p.value);
  f.required("lse", p.lse);
}

void fields(auto& f, Is<Merge> auto& m) {
  f.required("grid", m.grid);
  f.required("parts", m.parts);
  f.required("to", m.to);
  f.optional("lse", m.lse);
  f.optional("gates", m.gates);
  f.optional("notify", m.notify);
  f.optional("resources", m.resources, Merge{}.resources);
}

void fields(auto& f, Is<AttendBackward> auto& a) {
  f.required("grid", a.grid);
  f.optional("first_token", a.first_token);
  f.required("q", a.q);
  f.required("grad", a.grad);
  f.required("attended", a.attended);
  f.required("lse", a.lse);
  f.optional("first_key", a.first_key);
  f.required("keys", a.keys);
  f.required("values", a.values);
  f.required("q_grad", a.q_grad);
  f.required("keys_grad", a.keys_grad);
  f.required("values_grad", a.values_grad);
  f.optional("gates", a.gates);
  f.optional("notify", a.notify);
  f.optional("resources", a.resources, AttendBackward{}.resources);
}

void fields(auto& f, Is<AssignSlots> auto& r) {
  f.required("ids", r.ids);
  f.required("row_of", r.row_of);
  f.required("slot_of", r.slot_of);
  f.required("counts", r.counts);
  f.required("dropped", r.dropped);
  f.optional("resources", r.resources, AssignSlots{}.resources);
}

void fields(auto& f, Is<Await> auto& a) {
  f.required("counter", a.counter);
  f.required("target", a.target);
}

void fields(auto& f, Is<Notify> auto& n) {
  f.required("counter", n.counter);
  f.optional("value", n.value, 1);
}

void fields(auto& f, Is<Fill> auto& s) {
  f.required("slice", s.slice);
}

void fields(auto& f, Is<Collective> auto& c) {
  f.required("kind", c.kind);
  f.required("communicator", c.communicator);
  f.required("send", c.send);
  f.required("recv", c.recv);
  f.optional("send_rows", c.send_rows);
  f.optional("recv_rows", c.recv_rows);
  f.optional("resources", c.resources);
  f.optional("config", c.config);
}

void fields(auto& f, Is<Exchange::Message> auto& m) {
  f.required("peer", m.peer);
  f.required("slice", m.slice);
}

void fields(auto& f, Is<Exchange> auto& e) {
  f.required("communicator", e.communicator);
  f.optional("sends", e.sends);
  f.optional("receives", e.receives);
  f.optional("resources", e.resources);
}

void fields(auto& f, Is<Copy> auto& c) {
  f.required("from", c.from);
  f.required("to", c.to);
}

void fields(auto& f, Is<Broadcast> auto& b) {
  f.required("from", b.from);
  f.required("to", b.to);
}

void fields(auto& f, Is<Swap> auto& s) {
  f.required("a", s.a);
  f.required("b", s.b);
}

void fields(auto& f, Is<Submission> auto& s) {
  f.optional("launcher", s.launcher, -1);
  f.optional("prelaunched", s.prelaunched);
  f.optional("timed", s.timed);
  f.optional("doorbells", s.doorbells);
}

void fields(auto& f, Is<Lane> auto& l) {
  f.required("kind", l.kind);
  f.required("name", l.name);
  f.optional("submission", l.submission);
  f.required("steps", l.steps);
}

void fields(auto& f, Is<RankPlan> auto& r) {
  f.required("lanes", r.lanes);
  f.required("issue", r.issue);
}

void fields(auto& f, Is<Communicator> auto& c) {
  f.required("name", c.name);
  f.required("ranks", c.ranks);
}

void fields(auto& f, Is<Plan> auto& p) {
  f.work(p.work);
  f.required("mechanism", p.mechanism);
  f.optional("params", p.params);
  f.required("workers", p.workers);
  f.required("rounding", p.rounding);
  f.required("buffers", p.buffers);
  f.optional("counters", p.counters);
  f.optional("communicators", p.communicators);
  f.required("ranks", p.ranks);
}

}  // namespace shingle::plan_json
