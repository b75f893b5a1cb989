// Fields of problems and workloads, and of what they share with steps.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <memory>
#include <type_traits>
#include <vector>

#include "shingle/base/error.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::plan_json {

/// True if T is Plain, const or not: writer and reader share the functions below.
template <class T, class Plain>
concept Is = std::same_as<std::remove_const_t<T>, Plain>;
template <class T>
inline constexpr bool reads = !std::is_const_v<T>;

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
  f.optional("groups", c.groups);
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
        p.routing = std::make_shared<const Routing>(
            Routing::slots(p.sources(), p.experts.count, p.experts.capacity, p.traits().expert_split()));
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

}  // namespace shingle::plan_json
