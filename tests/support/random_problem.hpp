// Random problems, machines and params, with the awkward ones frequent: ragged sizes, worlds that are no
// power of two, fewer rows than ranks, ranks without rows. Draws come from a seed (`Dice`: fast, the same
// everywhere) or from RapidCheck (`Drawn`: shrinks).
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <variant>
#include <vector>

#include "shingle/planner/planner.hpp"

namespace shingle::test {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : bits_(seed) {}
  /// Uniform in [least, most]. By remainder, as the library's distributions differ between platforms.
  std::int64_t size(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(most - least + 1));
  }

 private:
  std::mt19937_64 bits_;
};

/// Inside a RapidCheck property only. Shrinks towards `least`; the whole range from the first case on.
struct Drawn {
  std::int64_t size(std::int64_t least, std::int64_t most) {
    return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(least, most + 1));
  }
};

template <class Source>
bool chance(Source& draw, int percent) {
  return draw.size(0, 99) >= 100 - percent;
}

template <class Source, class T>
T one_of(Source& draw, std::initializer_list<T> values) {
  return *std::next(values.begin(), draw.size(0, static_cast<std::int64_t>(values.size()) - 1));
}

/// How large problems may become. Cost of a proof is tiles × ranks, not elements.
struct Limits {
  int world = 16;
  std::int64_t m = 200;
  std::int64_t n = 96;
  std::int64_t k = 48;
  bool experts = true;  ///< also mixtures of experts
};

/// Rows of a rank are multiples of `step`. `experts`: destinations, if these are not the ranks.
template <class Source>
std::shared_ptr<const Routing> random_routing(Source& draw, int world, std::int64_t most_rows,
                                              std::int32_t experts = 0, std::int64_t step = 1,
                                              ExpertSplit split = ExpertSplit::by_expert) {
  const int pattern = static_cast<int>(draw.size(0, 3));
  const std::int32_t all = experts > 0 ? experts : world;
  const auto favourite = static_cast<std::int32_t>(draw.size(0, all - 1));
  std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(world));
  for (auto& rows : dest) {
    rows.resize(static_cast<std::size_t>(chance(draw, 20) ? 0 : draw.size(0, most_rows / step) * step));
    // Rows are drawn from a seed: RapidCheck would shrink each by itself, for ever.
    Dice row_dice(static_cast<std::uint64_t>(draw.size(0, 1 << 20)));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto any = static_cast<std::int32_t>(row_dice.size(0, all - 1));
      if (pattern == 0) rows[i] = any;
      if (pattern == 1) rows[i] = favourite;                                       // all to one
      if (pattern == 2) rows[i] = any == favourite ? (favourite + 1) % all : any;  // nothing to one
      if (pattern == 3) rows[i] = static_cast<std::int32_t>(i / 3) % all;          // runs of rows
    }
  }
  return std::make_shared<const Routing>(experts > 0 ? Routing::to_experts(std::move(dest), experts, split)
                                                     : Routing(std::move(dest)));
}

/// Another routing of a problem, of up to `most_rows` rows a source, and its m.
template <class Source>
void reroute(Source& draw, Problem& p, std::int64_t most_rows) {
  p.routing =
      random_routing(draw, p.sources(), most_rows, p.experts.count, p.choices(), p.traits().expert_split());
  p.m = 0;
  for (int source = 0; source < p.sources(); ++source)
    p.m = larger(p.m, p.routing->rows(source) / p.choices());
}

/// The same, with other experts if the problem has some.
template <class Source>
void route(Source& draw, Problem& p, std::int64_t most_rows) {
  const bool sliced = p.traits().slices_experts();
  if (p.traits().grouped) {
    p.experts.count = static_cast<std::int32_t>(sliced ? draw.size(1, 9) : p.world * draw.size(1, 4));
    p.experts.topk = static_cast<std::int32_t>(draw.size(1, std::min(p.experts.count, 4)));
  }
  // The rows of all ranks come to each: fewer of them, as a proof has a limit.
  if (sliced) most_rows = larger(most_rows / 2, std::int64_t{1});
  reroute(draw, p, most_rows);
}

/// The same experts with a capacity, for up to `most_tokens` tokens a rank. The routing is that of slots.
template <class Source>
void give_capacity(Source& draw, Problem& p, std::int64_t most_tokens) {
  p.experts.capacity =
      static_cast<std::int32_t>(draw.size(1, larger(2 * most_tokens * p.experts.topk / p.experts.count, 2)));
  p = with_m(p, draw.size(1, larger(most_tokens, 1)));
}

/// What the tokens of experts with a capacity choose: some ranks may have fewer tokens than m, or none.
template <class Source>
std::shared_ptr<const Routing> random_choices(Source& draw, const Problem& p) {
  return random_routing(draw, p.sources(), p.m * p.experts.topk, p.experts.count, p.experts.topk,
                        p.traits().expert_split());
}

template <class Source>
Problem random_problem(Source& draw, const Limits& limits = {}) {
  Problem p;
  p.op = one_of(draw, {Op::gemm_allreduce, Op::gemm_reducescatter, Op::gemm_alltoall, Op::allgather_gemm,
                       Op::alltoall_gemm, Op::mlp, Op::gemm_allgather_gemm, Op::gemm, Op::allgather,
                       Op::reducescatter, Op::allreduce, Op::alltoall});
  if (limits.experts && chance(draw, 15))
    p.op = one_of(
        draw, {Op::alltoall_grouped_gemm, Op::grouped_gemm_alltoall, Op::moe, Op::allgather_grouped_gemm,
               Op::grouped_gemm_reducescatter, Op::moe_tp, Op::grouped_gemm_allreduce, Op::moe_allreduce});
  p.world = static_cast<int>(draw.size(1, limits.world));
  p.m = chance(draw, 20) ? draw.size(1, std::min<std::int64_t>(p.world, limits.m)) : draw.size(1, limits.m);
  p.n = draw.size(1, limits.n);
  p.k = draw.size(1, limits.k);
  p.dtype = one_of(draw, {DType::f32, DType::bf16, DType::f16});
  if (!p.traits().multiplies()) p.k = p.n;
  if (p.traits().chains()) p.inner = draw.size(1, limits.n);
  const bool grouped = p.traits().grouped, plain = p.traits().combines() && !p.traits().chains();
  p.transpose_a = p.traits().multiplies() && !p.traits().chains() && !grouped && chance(draw, 25);
  p.transpose_b = p.traits().multiplies() && chance(draw, 25);
  if (p.traits().multiplies() && !plain && chance(draw, 40)) {
    p.epilogue.bias = !grouped && chance(draw, 50);
    p.epilogue.activation = one_of(
        draw, {Activation::none, Activation::relu, Activation::gelu, Activation::silu, Activation::swiglu});
    if (p.epilogue.activation == Activation::swiglu && !p.traits().chains()) p.n *= 2;
  }
  if (p.traits().multiplies() && !grouped && chance(draw, 35)) p.norm = {true, chance(draw, 50)};
  if (p.traits().is_collective() && p.traits().reduces()) {  // by what is drawn already
    constexpr float scales[] = {1.0f, 0.5f, 1.0f / 3, -2.0f};
    p.f32_sums = p.n % 2 == 0;
    p.epilogue.scale = scales[p.m % std::ssize(scales)];
  }
  if ((p.op == Op::gemm_reducescatter || p.op == Op::allgather_gemm) && chance(draw, 40)) {
    p.row_order = RowOrder::block_cyclic;
    p.row_block = draw.size(1, 20);
  }
  if (p.traits().routes()) route(draw, p, p.m);
  return p;
}

/// Attention of one sequence, whose heads the world divides where ranks split them.
template <class Source>
Problem random_attention(Source& draw, int world, std::int64_t most_tokens) {
  Problem p;
  p.op = one_of(draw, {Op::attention_reducescatter, Op::ulysses_attention, Op::allgather_attention,
                       Op::attention_backward});
  p.world = world;
  p.m = draw.size(1, most_tokens);
  p.dtype = one_of(draw, {DType::f32, DType::bf16, DType::f16});
  Attention& attention = p.attention;
  attention.kv_heads = (p.traits().splits_heads() ? world : 1) * draw.size(1, 3);
  attention.heads = attention.kv_heads * draw.size(1, 2);
  attention.head_dim = 4 * draw.size(1, 3);
  attention.causal = chance(draw, 50);
  attention.returns_lse = p.op == Op::allgather_attention && chance(draw, 50);
  p.k = attention.heads * attention.head_dim / (p.traits().shards_tokens() ? 1 : world);
  p.n = p.traits().shards_tokens() ? p.k : draw.size(1, 40);
  if (p.traits().shards_tokens() && !p.traits().splits_heads() && chance(draw, 50))
    p.row_order = RowOrder::zigzag;
  return p;
}

template <class Source>
Machine random_machine(Source& draw) {
  Machine machine;
  machine.workers = static_cast<std::int32_t>(draw.size(1, 7));
  machine.collective_workers = static_cast<std::int32_t>(draw.size(0, 2));
  machine.tile_rows = static_cast<std::int32_t>(draw.size(8, 64));
  machine.tile_cols = static_cast<std::int32_t>(draw.size(8, 64));
  return machine;
}

/// Cuts `total` into parts of at least one.
template <class Source>
std::vector<std::int64_t> random_partition(Source& draw, std::int64_t total, std::int64_t most = 6) {
  std::vector<std::int64_t> parts;
  for (; total > 0; total -= parts.back()) parts.push_back(draw.size(1, std::min(total, most)));
  return parts;
}

/// Params of all mechanisms, in the order of Mechanism. Groups of waves are left open: they depend on the
/// plan. Those of tensor-parallel experts are shares, which do not.
template <class Source>
std::array<Params, std::variant_size_v<Params>> random_params(Source& draw, const Problem& problem) {
  TileParams tile;
  ChunkedParams chunked;
  RingParams ring;
  FusedParams fused;
  CopyEngineParams engines;
  if (chance(draw, 80)) {
    // At most about 16 × 12 tiles, whatever the matrix; also larger than it.
    tile.rows =
        static_cast<std::int32_t>(draw.size(ceil_div(problem.m, 16) + (problem.m == 0), problem.m + 2));
    const std::int64_t cols = larger(problem.n, problem.inner);
    tile.cols = static_cast<std::int32_t>(draw.size(ceil_div(cols, 12), cols + 2));
  }
  tile.order.raster = one_of(draw, {Raster::along_n, Raster::along_m});
  tile.order.swizzle = static_cast<std::int32_t>(draw.size(1, 4));
  tile.order.cluster_m = static_cast<std::int32_t>(draw.size(1, 3));
  tile.order.cluster_n = static_cast<std::int32_t>(draw.size(1, 3));
  tile.order.rotation = static_cast<std::int32_t>(draw.size(0, 5));
  if (chance(draw, 70)) chunked.chunks = static_cast<std::int32_t>(draw.size(1, 7));
  if (chance(draw, 60)) fused.helpers = static_cast<std::int32_t>(draw.size(1, 3));
  fused.stage_fp32 = chance(draw, 30);
  fused.one_shot =
      (problem.op == Op::gemm_allreduce || problem.traits().replicates_tokens()) && chance(draw, 40);
  if (chance(draw, 70)) fused.comm_rows = draw.size(1, larger(problem.m, 1));
  fused.pull = chance(draw, 50);
  fused.mover = one_of(draw, {Mover::copy_engine, Mover::store});
  fused.comm_order = one_of(draw, {CommOrder::ring, CommOrder::reverse, CommOrder::interleaved});
  if (chance(draw, 70)) ring.slices = static_cast<std::int32_t>(draw.size(1, 5));
  engines.variant = one_of(draw, {CopyVariant::automatic, CopyVariant::pcpy, CopyVariant::bcst,
                                  CopyVariant::swap, CopyVariant::b2b, CopyVariant::ring});
  if (chance(draw, 30)) ring.engines = engines.engines = static_cast<std::int32_t>(draw.size(1, 4));
  if (ring.engines == 0 && problem.traits().shards_tokens() && chance(draw, 40)) ring.mover = Mover::store;
  engines.prelaunch = chance(draw, 50);
  engines.trigger = one_of(draw, {EngineTrigger::host, EngineTrigger::direct});
  engines.poll = one_of(draw, {PollScope::engine, PollScope::rank, PollScope::collective});
  if (chance(draw, 50)) engines.launchers = static_cast<std::int32_t>(draw.size(1, problem.world));
  engines.sum_slices = ring.slices;
  engines.sum_workers = chunked.chunks % 3;
  ring.unregistered = fused.unregistered = engines.unregistered = chance(draw, 30);
  fused.tile = engines.tile = tile;
  LowLatencyParams low_latency;
  const bool everywhere = problem.traits().reduces() && !problem.traits().scatters();
  if (everywhere) low_latency.hops = chunked.chunks % 3;
  SignalParams signal{.tile = tile};
  if (problem.traits().slices_experts()) {
    if (chance(draw, 50))
      signal.group_waves = random_partition(draw, static_cast<std::int64_t>(draw.size(1, 12)));
    signal.helpers = chance(draw, 20) ? FusedParams::no_helpers : fused.helpers;
  }
  return {SequentialParams{}, chunked, signal, ring, fused, engines, low_latency};
}
/// Params of one mechanism, from the same draws for each.
template <class Source>
Params random_params(Source& draw, const Problem& problem, Mechanism mechanism) {
  return random_params(draw, problem)[static_cast<std::size_t>(mechanism)];
}

/// The waves of a signal plan, whose groups the planner chose, cut into other groups.
template <class Source>
std::vector<std::int64_t> random_groups(Source& draw, const Plan& plan) {
  const auto params = std::get<SignalParams>(params_of(plan));
  const std::int64_t waves =
      std::accumulate(params.group_waves.begin(), params.group_waves.end(), std::int64_t{0});
  return random_partition(draw, waves, larger(1, draw.size(1, waves + 1)));
}

}  // namespace shingle::test
