#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "routing_patterns.hpp"
#include "shingle/base/error.hpp"
#include "shingle/workload/model.hpp"

namespace shingle {
namespace {

class Layers {
 public:
  Layers(const ModelConfig& model, const LayerOptions& options) : model_(model), options_(options) {}

  void add(LayerKind kind) {
    if (kind.mixer == Mixer::attention) {
      attention();
    } else if (kind.mixer == Mixer::mamba) {
      const std::int64_t inner = share("d_inner", model_.mamba.d_inner);
      column("in_proj", 2 * inner, Activation::none);
      row("out_proj", inner, true);
    }
    if (kind.feed_forward == FeedForward::dense) feed_forward("ffn", "ffn size", model_.ffn, true);
    if (kind.feed_forward == FeedForward::moe) {
      experts();
      if (model_.shared_ffn > 0)
        feed_forward("shared", "ffn size of the shared experts", model_.shared_ffn, false);
    }
  }

  std::vector<LayerOp> take() { return std::move(operators_); }

 private:
  /// One rank's share of a size that Megatron only divides evenly.
  std::int64_t share(std::string_view what, std::int64_t size) const {
    if (size % options_.tp != 0)
      throw InvalidArgument(
          fmt::format("{} = {} is not a multiple of tp = {} ranks", what, size, options_.tp));
    return size / options_.tp;
  }

  void attention() {
    const std::int64_t heads = share("heads", model_.heads);
    // With fewer groups than ranks, each rank has a copy of the group of its heads.
    const bool replicated =
        model_.kv_heads >= 1 && model_.kv_heads < options_.tp && options_.tp % model_.kv_heads == 0;
    const std::int64_t kv = replicated ? 1 : share("kv_heads", model_.kv_heads);
    column("qkv", (heads + 2 * kv) * model_.head_dim, Activation::none);
    row("attn_out", heads * model_.head_dim, true);
  }

  void feed_forward(const std::string& prefix, std::string_view what, std::int64_t size, bool ends_layer) {
    const std::int64_t inner = share(what, size);
    if (options_.mlp) return mlp(prefix, inner);
    column(prefix + "_up", model_.gated ? 2 * inner : inner, model_.activation);
    row(prefix + "_down", inner, ends_layer);
  }

  /// Both projections and the activation between them.
  void mlp(const std::string& name, std::int64_t inner) {
    if (!options_.sequence_parallel)
      throw InvalidArgument(
          fmt::format("{}: an mlp needs sequence parallelism, because it gathers and scatters tokens", name));
    require_activation(name);
    Problem problem = base(Op::mlp, options_.tokens, model_.hidden, model_.hidden);
    problem.inner = inner;
    problem.epilogue.activation = model_.activation;
    add(name, problem);
    if (!options_.backward) return;
    weight_gradients(name + "_up", model_.hidden, problem.b_cols());
    weight_gradients(name + "_down", inner, model_.hidden);
  }

  /// Routed experts: a rank has some of them whole, or its part of each (options.ep = 1).
  void experts() {
    const bool sliced = options_.ep == 1 && options_.tp > 1;
    const bool replicated = sliced && !options_.sequence_parallel;  // all ranks have all tokens
    const std::int64_t inner = sliced ? share("ffn size of an expert", model_.moe_ffn) : model_.moe_ffn;
    if (!sliced) share("experts", model_.experts);
    if (options_.mlp) {
      require_activation("moe");
      Problem both = routed(replicated ? Op::moe_allreduce
                            : sliced   ? Op::moe_tp
                                       : Op::moe,
                            model_.hidden, model_.hidden);
      both.inner = inner;
      both.epilogue.activation = model_.activation;
      return add("moe", both);
    }
    if (replicated)  // the first product does not communicate
      return add("moe_down", routed(Op::grouped_gemm_allreduce, model_.hidden, inner));
    Problem up = routed(sliced ? Op::allgather_grouped_gemm : Op::alltoall_grouped_gemm,
                        model_.gated ? 2 * inner : inner, model_.hidden);
    up.epilogue.activation = model_.activation;
    add("moe_up", up);
    add("moe_down",
        routed(sliced ? Op::grouped_gemm_reducescatter : Op::grouped_gemm_alltoall, model_.hidden, inner));
  }

  Problem routed(Op op, std::int64_t n, std::int64_t k) {
    Problem problem = base(op, 0, n, k);
    problem.experts = {static_cast<std::int32_t>(model_.experts),
                       static_cast<std::int32_t>(model_.experts_per_token)};
    const int sources = problem.sources();
    const std::int64_t most = ceil_div(options_.tokens, sources);
    problem.m = most;
    if (routing_ == nullptr) {  // the operators of a model share it, as it is large
      std::vector<std::int64_t> tokens;
      for (int source = 0; source < sources; ++source)
        tokens.push_back(std::clamp<std::int64_t>(options_.tokens - source * most, 0, most));
      routing_ = std::make_shared<const Routing>(make_topk_routing(RoutingPattern::random, sources, tokens,
                                                                   problem.experts, options_.seed,
                                                                   problem.traits().expert_split()));
    }
    problem.routing = routing_;
    return problem;
  }

  void require_activation(const std::string& name) const {
    if (model_.activation == Activation::none)
      throw InvalidArgument(fmt::format(
          "{}: one operator needs an activation that a GEMM can apply; the model has another one", name));
  }

  /// Weight split by outputs: needs all tokens and leaves no sum.
  void column(const std::string& name, std::int64_t outputs, Activation activation) {
    const Op op = options_.sequence_parallel ? Op::allgather_gemm : Op::gemm;
    Problem problem = base(op, options_.tokens, outputs, model_.hidden);
    problem.epilogue.activation = activation;
    add(name, problem);
    if (options_.backward) weight_gradients(name, model_.hidden, outputs);
  }

  /// Weight split by inputs: its partial products are summed. `norm_follows`: nothing else is added to the
  /// sum before the norm. The output of shared experts is still added to that of the routed ones.
  void row(const std::string& name, std::int64_t inputs, bool norm_follows) {
    const Op op = options_.sequence_parallel ? Op::gemm_reducescatter : Op::gemm_allreduce;
    Problem problem = base(op, options_.tokens, model_.hidden, inputs);
    // With sequence parallelism every rank normalises its own tokens, after the operator.
    if (norm_follows && !options_.sequence_parallel && model_.rms_norm)
      problem.norm = {true, true, model_.norm_epsilon};
    add(name, problem);
    if (options_.backward) weight_gradients(name, inputs, model_.hidden);
  }

  void weight_gradients(const std::string& name, std::int64_t inputs, std::int64_t outputs) {
    for (const auto& [op, suffix] : {std::pair{Op::gemm_allreduce, "_wgrad_allreduce"},
                                     std::pair{Op::gemm_reducescatter, "_wgrad_reducescatter"}}) {
      Problem problem = base(op, inputs, outputs, options_.tokens);
      problem.transpose_a = true;
      problem.transpose_b = false;
      add(name + suffix, problem);
    }
  }

  Problem base(Op op, std::int64_t m, std::int64_t n, std::int64_t k) const {
    Problem problem;
    problem.op = op;
    problem.world = options_.tp;
    problem.m = m;
    problem.n = n;
    problem.k = k;
    problem.dtype = options_.dtype;
    problem.transpose_b = true;
    return problem;
  }

  bool known(std::string_view name) const {
    return std::any_of(operators_.begin(), operators_.end(),
                       [&](const LayerOp& op) { return op.name == name; });
  }

  void add(const std::string& name, const Problem& problem) {
    // Kinds of layers share operators; a name has the same sizes throughout a model.
    if (known(name)) return;
    try {
      problem.validate();
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("{}: {}", name, error.what()));
    }
    operators_.push_back({name, problem});
  }

  const ModelConfig& model_;
  const LayerOptions& options_;
  std::vector<LayerOp> operators_;
  std::shared_ptr<const Routing> routing_;
};

/// The kind of one layer; -1: every kind once.
std::vector<LayerKind> kinds_of(const ModelConfig& model, int layer) {
  if (layer < -1 || layer >= static_cast<std::int64_t>(model.kinds.size()))
    throw InvalidArgument(
        fmt::format("layer = {}, but the model has {} layers, counted from 0", layer, model.kinds.size()));
  if (layer >= 0) return {model.kinds[static_cast<std::size_t>(layer)]};
  std::vector<LayerKind> seen;
  for (const LayerKind& kind : model.kinds)
    if (std::find(seen.begin(), seen.end(), kind) == seen.end()) seen.push_back(kind);
  return seen;
}

}  // namespace

std::vector<LayerOp> layer_operators(const ModelConfig& model, const LayerOptions& options) {
  if (options.tp < 1 || options.tp > max_planned_world)
    throw InvalidArgument(fmt::format("tp = {} is outside [1, {}]", options.tp, max_planned_world));
  if (options.tokens < 1 || options.tokens > max_extent)
    throw InvalidArgument(fmt::format("tokens = {} is outside [1, {}]", options.tokens, max_extent));
  if (options.ep != 0 && options.ep != 1 && options.ep != options.tp)
    throw InvalidArgument(fmt::format(
        "ep = {} is neither 1 nor tp = {}: ranks have parts of all experts, or some experts whole",
        options.ep, options.tp));
  Layers layers(model, options);
  for (const LayerKind& kind : kinds_of(model, options.layer)) layers.add(kind);
  return layers.take();
}

std::vector<LeftOutOp> left_out_operators(const ModelConfig& model, int layer) {
  const char* reason =
      "the model has multi-head latent attention (kv_lora_rank), whose projections are not supported";
  for (const LayerKind& kind : kinds_of(model, layer))
    if (kind.mixer == Mixer::latent_attention) return {{"qkv", reason}, {"attn_out", reason}};
  return {};
}

}  // namespace shingle
