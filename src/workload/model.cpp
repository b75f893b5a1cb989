#include "shingle/workload/model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/file.hpp"
#include "model_fields.hpp"
#include "shingle/base/error.hpp"

namespace shingle {
namespace {

using namespace config;
using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::size_t most_config_bytes = std::size_t{4} << 20;

/// Transformers of diffusers state only the heads and their size; the hidden size is the product.
void read_hidden(const Fields& fields, ModelConfig& model) {
  const bool implied =
      !fields.has(hidden_names) && fields.has({"attention_head_dim"}) && fields.has(head_names);
  if (!implied) {
    model.hidden = fields.required(hidden_names, 1, most_size);
    return;
  }
  model.hidden =
      fields.required(head_names, 1, most_heads) * fields.required({"attention_head_dim"}, 1, most_size);
  if (model.hidden > most_size)
    throw InvalidArgument(fmt::format("attention_head_dim times {} = {} is more than {}",
                                      fields.name(head_names), model.hidden, most_size));
}

void read_attention(const Fields& fields, ModelConfig& model) {
  model.heads = fields.required(head_names, 1, most_heads);
  if (const auto head_dim = fields.integer(head_dim_names, 1, most_size)) {
    model.head_dim = *head_dim;
  } else if (model.hidden % model.heads != 0) {
    throw InvalidArgument(fmt::format("{} = {} is not a multiple of {} = {}, and there is no head_dim",
                                      fields.name(hidden_names), model.hidden, fields.name(head_names),
                                      model.heads));
  } else {
    model.head_dim = model.hidden / model.heads;
  }
  model.kv_heads = fields.integer(kv_names, 1, most_heads).value_or(model.heads);
  // Falcon states both: its older architecture follows multi_query and ignores num_kv_heads.
  if (fields.flag({"multi_query"}).value_or(false) &&
      !fields.flag({"new_decoder_architecture"}).value_or(false))
    model.kv_heads = 1;
  if (model.heads % model.kv_heads != 0)
    throw InvalidArgument(fmt::format("{} = {} is not a multiple of {} = {}", fields.name(head_names),
                                      model.heads, fields.name(kv_names), model.kv_heads));
  if (model.heads * model.head_dim > most_size)
    throw InvalidArgument(fmt::format("{} = {} times {} = {} is more than {}", fields.name(head_names),
                                      model.heads, fields.name(head_dim_names), model.head_dim, most_size));
}

void read_norm(const Fields& fields, ModelConfig& model) {
  const bool layer_norm = fields.has({"layer_norm_eps", "layer_norm_epsilon", "norm_type"});
  const bool likely = model.gated || (!model.has(FeedForward::dense) && !model.has(FeedForward::moe));
  model.rms_norm = fields.has({"rms_norm_eps"}) || fields.flag({"rms_norm"}).value_or(likely && !layer_norm);
  model.norm_epsilon = static_cast<float>(
      fields
          .number({"rms_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_eps", "layer_norm_epsilon"}, 0, 1)
          .value_or(1e-5));
}

void read_mamba(const Fields& fields, ModelConfig& model, bool pure) {
  if (model.family == "mamba2" || fields.has({"mamba_n_heads", "mamba_num_heads", "mamba_headdim"}))
    throw InvalidArgument("mamba: only version 1 is supported, not Mamba-2");
  MambaSizes& mamba = model.mamba;
  const double expand = fields.number({"mamba_expand", "expand", "ssm_cfg.expand"}, 1e-3, 1e3).value_or(2.0);
  mamba.d_inner = std::llround(expand * static_cast<double>(model.hidden));
  // A pure Mamba has no feed-forward; its intermediate_size means d_inner.
  if (pure) mamba.d_inner = fields.integer({"intermediate_size"}, 1, most_size).value_or(mamba.d_inner);
  if (mamba.d_inner < 1 || mamba.d_inner > most_size)
    throw InvalidArgument(
        fmt::format("expand = {} times hidden {} is outside [1, {}]", expand, model.hidden, most_size));
  mamba.d_state =
      fields.integer({"mamba_d_state", "state_size", "ssm_cfg.d_state"}, 1, most_size).value_or(16);
  mamba.d_conv = fields.integer({"mamba_d_conv", "conv_kernel", "ssm_cfg.d_conv"}, 1, most_size).value_or(4);
  static constexpr Fields::Aliases rank_names{"mamba_dt_rank", "time_step_rank", "ssm_cfg.dt_rank"};
  mamba.dt_rank = ceil_div(model.hidden, std::int64_t{16});
  if (!fields.is_text(rank_names, "auto"))
    mamba.dt_rank = fields.integer(rank_names, 1, most_size).value_or(mamba.dt_rank);
}

/// Every period-th layer from an offset on, as Jamba numbers them.
struct Periodic {
  std::int64_t period = 1;
  std::int64_t offset = 0;

  Periodic(const Fields& fields, const char* period_name, const char* offset_name)
      : period(fields.required({period_name}, 1, most_layers)),
        offset(fields.required({offset_name}, 0, period - 1)) {}
  bool operator()(std::int64_t layer) const { return layer % period == offset; }
};

LayerKind listed_kind(const json& word, std::size_t layer, const std::string& name) {
  const std::string text = word.is_string() ? word.get<std::string>() : "";
  if (text == "mamba") return {Mixer::mamba, FeedForward::dense};
  for (const std::string_view known :
       {"attention", "full_attention", "sliding_attention", "chunked_attention"})
    if (text == known) return {Mixer::attention, FeedForward::dense};
  throw InvalidArgument(fmt::format("{}[{}] = {} is an unknown kind of layer", name, layer, show(word)));
}

/// The layers that a field lists; empty without the field.
std::vector<std::size_t> listed_layers(const Fields& fields, const char* name, std::size_t layers) {
  std::vector<std::size_t> all;
  const json* listed = fields.list({name});
  if (listed == nullptr) return all;
  for (const json& layer : *listed) {
    if (!layer.is_number_unsigned() || layer.get<std::uint64_t>() >= layers)
      throw InvalidArgument(fmt::format(
          "{}: {} is not the index of a layer; the model has {}, counted from 0", name, show(layer), layers));
    all.push_back(layer.get<std::size_t>());
  }
  return all;
}

/// Marks the feed-forwards that are mixtures of experts, by the fields of Jamba, DeepSeek, Qwen or Llama 4.
/// Without such a field it marks all.
void mark_experts(const Fields& fields, std::vector<LayerKind>& kinds) {
  const auto layers = static_cast<std::int64_t>(kinds.size());
  std::vector<bool> moe(kinds.size(), true);
  if (fields.has({"expert_layer_period"})) {
    const Periodic chosen(fields, "expert_layer_period", "expert_layer_offset");
    for (std::int64_t layer = 0; layer < layers; ++layer)
      moe[static_cast<std::size_t>(layer)] = chosen(layer);
  }
  const std::int64_t first = fields.integer({"first_k_dense_replace"}, 0, most_layers).value_or(0);
  const std::int64_t every = fields.integer({"moe_layer_freq"}, 1, most_layers).value_or(1);
  const std::int64_t step =
      fields.integer({"decoder_sparse_step", "interleave_moe_layer_step"}, 1, most_layers).value_or(1);
  for (std::int64_t layer = 0; layer < layers; ++layer)
    if (layer < first || layer % every != 0 || (layer + 1) % step != 0)
      moe[static_cast<std::size_t>(layer)] = false;
  if (fields.has({"moe_layers"})) {
    moe.assign(kinds.size(), false);
    for (const std::size_t layer : listed_layers(fields, "moe_layers", kinds.size())) moe[layer] = true;
  }
  for (const std::size_t layer : listed_layers(fields, "mlp_only_layers", kinds.size())) moe[layer] = false;
  for (std::size_t layer = 0; layer < kinds.size(); ++layer)
    if (moe[layer]) kinds[layer].feed_forward = FeedForward::moe;
}

/// Sets `kinds`. Returns true if the model has only Mamba mixers.
bool read_kinds(const Fields& fields, ModelConfig& model) {
  const bool pure = !fields.has(head_names) && (model.family == "mamba" || model.family == "falcon_mamba" ||
                                                fields.has({"state_size", "ssm_cfg"}));
  if (pure) {
    model.kinds.assign(static_cast<std::size_t>(model.layers), {Mixer::mamba, FeedForward::none});
    return true;
  }
  model.kinds.resize(static_cast<std::size_t>(model.layers));
  if (const json* listed = fields.list(kind_names)) {
    if (listed->size() != model.kinds.size())
      throw InvalidArgument(fmt::format("{} has {} entries, but {} = {}", fields.name(kind_names),
                                        listed->size(), fields.name(layer_names), model.layers));
    for (std::size_t layer = 0; layer < listed->size(); ++layer)
      model.kinds[layer] = listed_kind((*listed)[layer], layer, fields.name(kind_names));
  } else if (fields.has({"attn_layer_period"})) {
    const Periodic attention(fields, "attn_layer_period", "attn_layer_offset");
    for (std::int64_t layer = 0; layer < model.layers; ++layer)
      if (!attention(layer)) model.kinds[static_cast<std::size_t>(layer)].mixer = Mixer::mamba;
  }
  if (fields.has({"kv_lora_rank", "q_lora_rank"}))
    for (LayerKind& kind : model.kinds)
      if (kind.mixer == Mixer::attention) kind.mixer = Mixer::latent_attention;
  if (model.experts > 0) mark_experts(fields, model.kinds);
  return false;
}

}  // namespace

bool ModelConfig::has(Mixer mixer) const {
  return std::any_of(kinds.begin(), kinds.end(), [&](const LayerKind& kind) { return kind.mixer == mixer; });
}

bool ModelConfig::has(FeedForward feed_forward) const {
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const LayerKind& k) { return k.feed_forward == feed_forward; });
}

ModelConfig read_model(std::string_view json_text) {
  const json document = parse_json(json_text);
  if (!document.is_object()) throw InvalidArgument("a model's config must be a JSON object");
  const json* nested = Fields(document).object({"text_config"});
  const Fields fields(nested != nullptr && Fields(*nested).has(hidden_names) ? *nested : document);

  ModelConfig model;
  // A text_config may leave the model_type to the enclosing config.
  const Fields named = fields.has({"model_type", "architectures"}) ? fields : Fields(document);
  model.family = named.text({"model_type"}).value_or("");
  const Family* family = find_family(named);
  model.layers = fields.required(layer_names, 1, most_layers);
  // One expert is a plain feed-forward.
  model.experts = fields.integer(expert_names, 0, most_heads).value_or(0);
  if (model.experts == 1) model.experts = 0;
  const bool pure_mamba = read_kinds(fields, model);
  read_hidden(fields, model);
  if (model.has(Mixer::attention)) read_attention(fields, model);
  if (model.has(Mixer::mamba)) read_mamba(fields, model, pure_mamba);
  read_feed_forward(fields, family, model);
  read_norm(fields, model);
  return model;
}

ModelConfig read_model_file(const std::string& path) {
  const std::string text = read_file(path, most_config_bytes);
  try {
    return read_model(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", path, error.what()));
  }
}

std::vector<std::string> model_names() {
  std::set<std::string> names;
  const fs::path shipped = find_shipped("models/llama-3-8b.json");
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(shipped.parent_path(), error))
    if (entry.path().extension() == ".json") names.insert(entry.path().stem().string());
  return {names.begin(), names.end()};
}

ModelConfig model_from_spec(const std::string& spec) {
  if (spec.find('/') != std::string::npos || spec.ends_with(".json")) return read_model_file(spec);
  const std::string shipped = find_shipped(fmt::format("models/{}.json", spec));
  if (shipped.empty())
    throw InvalidArgument(
        fmt::format("no model '{}' (a file, or one of {})", spec, fmt::join(model_names(), ", ")));
  return read_model_file(shipped);
}

}  // namespace shingle
