#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "api/model_fields.hpp"
#include "shingle/base/error.hpp"

namespace shingle::config {
namespace {

/// What a name of the field means for the up projection: the epilogue that it may carry, and whether there is
/// a gate. `none`: known to the field but not to an epilogue; the GEMM goes without, and it runs as a step of
/// its own.
struct Known {
  std::string_view name;
  Activation activation;
  bool gated;
};
// config.json does not say whether a feed-forward is gated: SiLU ones are, in every family that has them. The
// forms of GELU differ by less than bf16 resolves.
constexpr Known known_activations[] = {
    {"silu", Activation::swiglu, true},
    {"swish", Activation::swiglu, true},
    {"swiglu", Activation::swiglu, true},
    {"gelu", Activation::gelu, false},
    {"gelu_new", Activation::gelu, false},
    {"gelu_fast", Activation::gelu, false},
    {"gelu_python", Activation::gelu, false},
    {"gelu_accurate", Activation::gelu, false},
    {"gelu_pytorch_tanh", Activation::gelu, false},
    {"gelu-approximate", Activation::gelu, false},
    {"quick_gelu", Activation::none, false},
    {"geglu", Activation::none, true},
    {"geglu-approximate", Activation::none, true},
    {"gated-gelu", Activation::none, true},
    {"relu", Activation::relu, false},
    {"relu2", Activation::none, false},
    {"relu_squared", Activation::none, false},
    {"squared_relu", Activation::none, false},
    {"relu6", Activation::none, false},
    {"leaky_relu", Activation::none, false},
    {"tanh", Activation::none, false},
    {"sigmoid", Activation::none, false},
    {"mish", Activation::none, false},
    {"linear", Activation::none, false},
};

/// Families whose files may leave the activation out and mean a plain GELU; other silent ones are Llama's
/// kin.
constexpr std::string_view plain_families[] = {
    "gpt2",  "gpt_bigcode", "gpt_neo",         "gpt_neox", "gptj", "codegen",   "mpt",
    "bloom", "RefinedWeb",  "RefinedWebModel", "falcon",   "phi",  "starcoder2"};

/// Meta's params.json gives no inner size but the rule for it: 2/3 of 4·hidden, scaled, rounded up.
std::int64_t llama_rule(const Fields& fields, std::int64_t hidden, std::int64_t multiple_of) {
  const double scale = fields.number({"ffn_dim_multiplier"}, 1e-3, 1e3).value_or(1.0);
  const auto inner = static_cast<std::int64_t>(scale * static_cast<double>(8 * hidden / 3));
  return ceil_div(larger(inner, 1), multiple_of) * multiple_of;
}

std::int64_t read_ffn(const Fields& fields, const ModelConfig& model) {
  if (const auto ffn = fields.integer(ffn_names, 1, most_size)) return *ffn;
  std::int64_t ffn = 4 * model.hidden;
  const char* source = "the default of 4 times the hidden size";
  if (const auto multiple = fields.integer({"multiple_of"}, 1, most_size)) {
    ffn = llama_rule(fields, model.hidden, *multiple);
    source = "multiple_of";
  } else if (const auto ratio = fields.number({"expansion_ratio"}, 1e-3, 1e3)) {
    const double exact = *ratio * static_cast<double>(model.hidden);
    ffn = std::llround(exact);
    if (static_cast<double>(ffn) != exact)
      throw InvalidArgument(
          fmt::format("expansion_ratio = {} times hidden {} is not a whole size", *ratio, model.hidden));
    source = "expansion_ratio";
  }
  if (ffn < 1 || ffn > most_size)
    throw InvalidArgument(
        fmt::format("{}: {} gives {}, outside [1, {}]", *ffn_names.begin(), source, ffn, most_size));
  return ffn;
}

void read_activation(const Fields& fields, ModelConfig& model) {
  const bool plain = std::ranges::find(plain_families, model.family) != std::end(plain_families) ||
                     !(fields.has(ffn_names) || fields.has({"multiple_of"}));
  const std::string word = fields.text(activation_names).value_or(plain ? "gelu" : "silu");
  const auto known = std::ranges::find(known_activations, word, &Known::name);
  if (known == std::end(known_activations))
    throw InvalidArgument(fmt::format("{} = {} is no activation that is known here",
                                      fields.name(activation_names), show(nlohmann::json(word))));
  model.gated = known->gated;
  model.activation = known->activation;
  if (model.family.starts_with("gemma") && !known->gated) {  // GeGLU, though the file says GELU
    model.gated = true;
    model.activation = Activation::none;
  }
}

void read_experts(const Fields& fields, ModelConfig& model) {
  model.experts_per_token = fields.required(top_k_names, 1, most_heads);
  if (model.experts_per_token > model.experts)
    throw InvalidArgument(fmt::format("{} = {} is more than {} = {}", fields.name(top_k_names),
                                      model.experts_per_token, fields.name(expert_names), model.experts));
  const auto own = fields.integer({"moe_intermediate_size"}, 1, most_size);
  model.moe_ffn = own ? *own : read_ffn(fields, model);
  model.shared_experts =
      fields.integer({"n_shared_experts", "num_shared_experts"}, 0, most_heads).value_or(0);
  model.shared_ffn = model.shared_experts * model.moe_ffn;
  if (const auto size = fields.integer({"shared_expert_intermediate_size"}, 0, most_size)) {
    model.shared_ffn = *size;
    model.shared_experts = *size > 0 ? larger(model.shared_experts, 1) : 0;
  }
  if (model.shared_ffn > most_size)
    throw InvalidArgument(fmt::format("n_shared_experts = {} experts of {} are more than {}",
                                      model.shared_experts, model.moe_ffn, most_size));
}

}  // namespace

void read_feed_forward(const Fields& fields, ModelConfig& model) {
  const bool dense = model.has(FeedForward::dense);
  const bool moe = model.has(FeedForward::moe);
  if (dense || moe) read_activation(fields, model);
  if (dense) model.ffn = read_ffn(fields, model);
  if (moe) {
    read_experts(fields, model);
  } else {
    model.experts = 0;
  }
}

}  // namespace shingle::config
