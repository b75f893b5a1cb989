#include "overlap_patterns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "shingle/base/error.hpp"

namespace shingle {
namespace {

using Products = std::vector<Workload::Computation>;

constexpr std::array<std::string_view, 3> names{"fsdp", "tp", "ep"};

/// Computations of a model's blocks on one rank; `tp` ranks share each weight.
class Blocks {
 public:
  Blocks(const ModelConfig& model, const PatternOptions& options, int tp)
      : model_(model), options_(options), tp_(tp) {}

  Products attention(std::int64_t tokens) const {
    const std::int64_t cols = share("heads", model_.heads, tp_) * model_.head_dim;
    const std::int64_t kv = larger(model_.kv_heads / tp_, 1) * model_.head_dim;
    const std::int64_t seen = options_.sequence > 0 ? smaller(options_.sequence, tokens) : tokens;
    return {norm(tokens),
            {"qkv", tokens, cols + 2 * kv, model_.hidden},
            {"attention", tokens, cols, seen, {}, ComputationKind::attention},
            {"attn_out", tokens, model_.hidden, cols}};
  }

  Products dense(std::int64_t tokens) const {
    const std::int64_t inner = share("ffn", model_.ffn, tp_);
    return {norm(tokens),
            {"ffn_up", tokens, gated(inner), model_.hidden},
            activation(tokens, inner),
            {"ffn_down", tokens, model_.hidden, inner}};
  }

  /// A rank's part of the routed experts, which get as many rows as the rank sends, and the shared experts.
  /// `ranks` ranks share the routed experts.
  Products experts(std::int64_t tokens, int ranks) const {
    const std::int64_t rows = routed(tokens), own = share("experts", model_.experts, ranks);
    Products all{norm(tokens), grouped({"moe_up", rows, gated(model_.moe_ffn), model_.hidden}, own),
                 activation(rows, model_.moe_ffn),
                 grouped({"moe_down", rows, model_.hidden, model_.moe_ffn}, own)};
    if (model_.shared_ffn > 0) {
      all.push_back({"shared_up", tokens, gated(model_.shared_ffn), model_.hidden});
      all.push_back(activation(tokens, model_.shared_ffn));
      all.push_back({"shared_down", tokens, model_.hidden, model_.shared_ffn});
    }
    return all;
  }
  std::int64_t routed(std::int64_t tokens) const { return tokens * model_.experts_per_token; }

 private:
  /// A residual and a norm: reads both, and writes the sum and its norm.
  Workload::Computation norm(std::int64_t tokens) const { return pass("norm", tokens, 2 * model_.hidden); }
  /// Reads gate and up, if gated, and writes their product.
  Workload::Computation activation(std::int64_t tokens, std::int64_t inner) const {
    return pass("activation", tokens, model_.gated ? 3 * inner / 2 : inner);
  }
  /// The product of rows that experts share. The first ones have one more if the rows do not divide.
  static Workload::Computation grouped(Workload::Computation product, std::int64_t experts) {
    for (std::int64_t i = 0; i < experts; ++i)
      product.groups.push_back(product.m / experts + (i < product.m % experts ? 1 : 0));
    return product;
  }
  /// Reads and writes as many elements.
  static Workload::Computation pass(std::string name, std::int64_t rows, std::int64_t cols) {
    return {std::move(name), rows, cols, 1, {}, ComputationKind::pass};
  }
  std::int64_t gated(std::int64_t inner) const { return model_.gated ? 2 * inner : inner; }
  static std::int64_t share(std::string_view what, std::int64_t size, int ranks) {
    if (size == 0 || size % ranks != 0)
      throw InvalidArgument(fmt::format("{} = {} is not a multiple of {} ranks", what, size, ranks));
    return size / ranks;
  }

  const ModelConfig& model_;
  const PatternOptions& options_;
  int tp_;
};

/// For each GEMM dX = dY · Wᵀ and dW = Xᵀ · dY, last GEMM first. Attention's own work counts twice. Passes
/// move as many bytes as before. The dW of experts are one grouped product. All have the depth of the expert
/// that has most rows, and experts without rows have none.
Products backward(const Products& forward) {
  Products all;
  for (auto it = forward.rbegin(); it != forward.rend(); ++it) {
    Workload::Computation dx = *it, dw = *it;
    dx.name += it->kind == ComputationKind::pass ? "_backward" : "_dx", dw.name += "_dw";
    if (it->kind == ComputationKind::product) {
      dx.n = it->k, dx.k = it->n;
      dw.m = it->k, dw.k = it->m;
    }
    if (!it->groups.empty()) {
      dw.m = 0, dw.k = std::ranges::max(it->groups);
      for (std::int64_t& rows : dw.groups) {
        rows = rows > 0 ? it->k : 0;
        dw.m += rows;
      }
    }
    all.push_back(std::move(dx));
    if (it->kind != ComputationKind::pass) all.push_back(std::move(dw));
  }
  return all;
}

Products joined(Products first, const Products& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::int64_t weights_of(const Products& products) {
  std::int64_t weights = 0;
  for (const Workload::Computation& item : products)
    if (item.kind == ComputationKind::product) weights += item.weights() * item.n * item.k;
  return weights;
}

class Patterns {
 public:
  explicit Patterns(const PatternOptions& options) : options_(options) {}

  /// One layer's GEMMs beside the collectives of neighbouring layers.
  void fsdp(const std::string& kind, const Products& layer, std::int64_t weights, std::int64_t times) {
    const std::int64_t bytes = weights * element();
    const Workload::Collective gather{"allgather", CollectiveKind::allgather, bytes};
    add(kind + " forward", layer, {gather}, times);
    add(kind + " backward", backward(layer),
        {gather, {"reducescatter", CollectiveKind::reducescatter, bytes}}, times);
  }

  /// Two halves alternate in each block; the collective after a half's block runs beside the other half's
  /// block. `blocks`: GEMMs of the two blocks of a layer for one half. `bytes`: bytes of the collective after
  /// each block.
  void two_halves(CollectiveKind kind, const std::array<Products, 2>& blocks,
                  const std::array<std::int64_t, 2>& bytes, std::int64_t times) {
    add("forward", halves(kind, blocks, bytes), times);
    add("backward", halves(kind, {backward(blocks[1]), backward(blocks[0])}, {bytes[1], bytes[0]}), times);
  }

  std::vector<OverlapPattern> take() { return std::move(patterns_); }

 private:
  std::int64_t element() const { return static_cast<std::int64_t>(size_bytes(options_.dtype)); }

  /// In steady state, a layer begins with the collective that follows the second half's last block.
  Workload halves(CollectiveKind kind, const std::array<Products, 2>& blocks,
                  const std::array<std::int64_t, 2>& bytes) const {
    Workload list = empty();
    const auto send = [&](std::string name, std::size_t block, std::vector<std::int32_t> after) {
      list.collectives.push_back(
          {fmt::format("{} {}", shingle::name(kind), name), kind, bytes[block], std::move(after)});
    };
    send("of the layer before", 1, {});
    for (std::size_t block = 0; block < 2; ++block)
      for (std::size_t half = 0; half < 2; ++half) {
        const auto turn = static_cast<std::int32_t>(2 * block + half);
        const std::size_t first = list.computations.size();
        for (Workload::Computation item : blocks[block]) {
          item.name += fmt::format(" {}", half + 1);
          list.computations.push_back(std::move(item));
        }
        // The half's previous collective. That of the first half has ended when the layer begins.
        if (turn > 0) list.computations[first].after = {turn - 1};
        if (turn < 3)
          send(fmt::format("{}", turn + 1), block, {static_cast<std::int32_t>(list.computations.size()) - 1});
      }
    return list;
  }

  Workload empty() const { return {.world = options_.ranks, .dtype = options_.dtype}; }

  void add(std::string name, Products computations, std::vector<Workload::Collective> collectives,
           std::int64_t times) {
    Workload workload = empty();
    workload.computations = std::move(computations);
    workload.collectives = std::move(collectives);
    add(std::move(name), std::move(workload), times);
  }
  void add(std::string name, Workload workload, std::int64_t times) {
    workload.validate();
    patterns_.push_back({std::move(name), std::move(workload), times});
  }

  const PatternOptions& options_;
  std::vector<OverlapPattern> patterns_;
};

void validate(const ModelConfig& model, const PatternOptions& options) {
  if (options.ranks < 2 || options.ranks > max_planned_world)
    throw InvalidArgument(fmt::format("ranks = {} is outside [2, {}]", options.ranks, max_planned_world));
  if (options.tokens < 2 || options.tokens > max_extent)
    throw InvalidArgument(fmt::format("tokens = {} is outside [2, {}]", options.tokens, max_extent));
  if (model.has(Mixer::mamba))
    throw InvalidArgument("the model has Mamba layers; overlaps are supported for transformers only");
  if (const auto left = left_out_operators(model); !left.empty())
    throw InvalidArgument(fmt::format("overlaps need the operator {}: {}", left[0].name, left[0].reason));
  if (options.parallelism == Parallelism::ep && !model.has(FeedForward::moe))
    throw InvalidArgument("expert parallelism (ep) needs experts, and the model has none");
  if (options.parallelism == Parallelism::tp && !model.has(FeedForward::dense))
    throw InvalidArgument(
        "tensor parallelism of half-batches (tp) needs dense layers, and the model has none");
}

}  // namespace

std::string_view name(Parallelism parallelism) {
  return names[static_cast<std::size_t>(parallelism)];
}

Parallelism parse_parallelism(std::string_view text) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == text) return static_cast<Parallelism>(i);
  throw InvalidArgument(fmt::format("unknown pattern '{}' (one of fsdp, tp, ep)", text));
}

std::vector<OverlapPattern> overlap_patterns(const ModelConfig& model, const PatternOptions& options) {
  validate(model, options);
  const std::int64_t half = options.tokens / 2;
  const auto element = static_cast<std::int64_t>(size_bytes(options.dtype));
  std::int64_t dense = 0, moe = 0;
  for (const LayerKind& kind : model.kinds) ++(kind.feed_forward == FeedForward::moe ? moe : dense);
  Patterns patterns(options);
  switch (options.parallelism) {
    case Parallelism::fsdp: {
      const Blocks blocks(model, options, 1);
      const Products attention = blocks.attention(options.tokens);
      if (dense > 0) {
        const Products layer = joined(attention, blocks.dense(options.tokens));
        patterns.fsdp(moe > 0 ? "dense" : "layer", layer, weights_of(layer), dense);
      }
      if (moe > 0) {
        const Products layer = joined(attention, blocks.experts(options.tokens, 1));
        patterns.fsdp("moe", layer, weights_of(layer), moe);
      }
      break;
    }
    case Parallelism::tp: {
      const Blocks blocks(model, options, options.ranks);
      const std::int64_t bytes = half * model.hidden * element;
      patterns.two_halves(CollectiveKind::allreduce, {blocks.attention(half), blocks.dense(half)},
                          {bytes, bytes}, dense);
      break;
    }
    case Parallelism::ep: {
      const Blocks blocks(model, options, 1);
      const std::int64_t bytes = blocks.routed(half) * model.hidden * element;
      patterns.two_halves(CollectiveKind::alltoall,
                          {blocks.attention(half), blocks.experts(half, options.ranks)}, {bytes, bytes}, moe);
      break;
    }
  }
  return patterns.take();
}

}  // namespace shingle
