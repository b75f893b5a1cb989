#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model_fields.hpp"
#include "shingle/base/error.hpp"

namespace shingle::config {
namespace {

/// Meaning of an activation's name: the function, and whether the name implies a gate. `none`: no epilogue
/// computes it; the GEMM has no epilogue, and the activation is a separate step.
struct Known {
  std::string_view name;
  Activation activation;
  bool gated = false;
};
// The forms of GELU differ by less than the resolution of bf16.
constexpr Known known_activations[] = {
    {"silu", Activation::silu},
    {"swish", Activation::silu},
    {"swiglu", Activation::silu, true},
    {"gelu", Activation::gelu},
    {"gelu_new", Activation::gelu},
    {"gelu_fast", Activation::gelu},
    {"gelu_python", Activation::gelu},
    {"gelu_accurate", Activation::gelu},
    {"gelu_pytorch_tanh", Activation::gelu},
    {"gelu-approximate", Activation::gelu},
    {"quick_gelu", Activation::none},
    {"geglu", Activation::gelu, true},
    {"geglu-approximate", Activation::gelu, true},
    {"gated-gelu", Activation::gelu, true},
    {"relu", Activation::relu},
    {"relu2", Activation::none},
    {"relu_squared", Activation::none},
    {"squared_relu", Activation::none},
    {"relu6", Activation::none},
    {"leaky_relu", Activation::none},
    {"tanh", Activation::none},
    {"sigmoid", Activation::none},
    {"mish", Activation::none},
    {"linear", Activation::none},
};

/// Meta's params.json gives no inner size, only its rule: 2/3 of 4·hidden, scaled and rounded up.
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

/// The activation that the file states, else that of its family.
std::string activation_word(const Fields& fields, const Family* family) {
  if (auto stated = fields.text(activation_names)) return *stated;
  if (family != nullptr) return std::string(family->activation);
  if (fields.has({"multiple_of"})) return "silu";  // Meta's params.json
  throw InvalidArgument(
      fmt::format("{} and model_type are missing: give one, as it determines the feed-forward",
                  *activation_names.begin()));
}

void read_activation(const Fields& fields, const Family* family, ModelConfig& model) {
  const std::string word = activation_word(fields, family);
  const auto known = std::ranges::find(known_activations, word, &Known::name);
  if (known == std::end(known_activations))
    throw InvalidArgument(fmt::format("{} = {} is an unknown activation", fields.name(activation_names),
                                      show(nlohmann::json(word))));
  // Without a family, SiLU implies a gate, because every family with SiLU has one.
  model.gated = known->gated ||
                (family != nullptr ? family->form != Form::plain : known->activation == Activation::silu);
  model.activation = known->activation;
  if (!model.gated) return;
  const bool swiglu =
      known->activation == Activation::silu && (family == nullptr || family->form != Form::gated_own);
  model.activation = swiglu ? Activation::swiglu : Activation::none;
}

void read_experts(const Fields& fields, const Family* family, ModelConfig& model) {
  model.experts_per_token = fields.required(top_k_names, 1, most_heads);
  if (model.experts_per_token > model.experts)
    throw InvalidArgument(fmt::format("{} = {} is more than {} = {}", fields.name(top_k_names),
                                      model.experts_per_token, fields.name(expert_names), model.experts));
  const auto own = fields.integer({"moe_intermediate_size"}, 1, most_size);
  model.moe_ffn = own ? *own : read_ffn(fields, model);
  const bool one = family != nullptr && family->shared_expert;
  model.shared_experts =
      fields.integer({"n_shared_experts", "num_shared_experts"}, 0, most_heads).value_or(one ? 1 : 0);
  model.shared_ffn = model.shared_experts * model.moe_ffn;
  if (const auto size =
          fields.integer({"shared_expert_intermediate_size", "shared_intermediate_size"}, 0, most_size)) {
    model.shared_ffn = *size;
    model.shared_experts = *size > 0 ? larger(model.shared_experts, 1) : 0;
  }
  if (model.shared_ffn > most_size)
    throw InvalidArgument(fmt::format("n_shared_experts = {} experts of {} are more than {}",
                                      model.shared_experts, model.moe_ffn, most_size));
}

}  // namespace

void read_feed_forward(const Fields& fields, const Family* family, ModelConfig& model) {
  const bool dense = model.has(FeedForward::dense);
  const bool moe = model.has(FeedForward::moe);
  if (dense || moe) read_activation(fields, family, model);
  // Llama 4 has a separate size for layers without experts.
  if (dense) {
    const auto own = fields.integer({"intermediate_size_mlp"}, 1, most_size);
    model.ffn = own ? *own : read_ffn(fields, model);
  }
  if (moe) {
    read_experts(fields, family, model);
  } else {
    model.experts = 0;
  }
}

}  // namespace shingle::config
