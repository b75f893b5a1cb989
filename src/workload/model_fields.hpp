// Shared by model.cpp and model_feed_forward.cpp: bounds, and the names that families use for the same field.
#pragma once

#include <cstdint>

#include "base/json_fields.hpp"
#include "model_family.hpp"
#include "shingle/workload/model.hpp"

namespace shingle::config {

// Far above any model, and low enough that a product of two fits 63 bits.
inline constexpr std::int64_t most_size = std::int64_t{1} << 24;
inline constexpr std::int64_t most_heads = 1 << 16;
inline constexpr std::int64_t most_layers = 1 << 14;

// Names that families use for the same field.
inline constexpr Fields::Aliases hidden_names{"hidden_size", "n_embd", "d_model", "dim"};
inline constexpr Fields::Aliases layer_names{"num_hidden_layers", "n_layer", "n_layers", "num_layers"};
inline constexpr Fields::Aliases head_names{"num_attention_heads", "n_head", "n_heads", "num_heads"};
inline constexpr Fields::Aliases kv_names{
    "num_key_value_heads", "num_kv_heads",          "n_kv_heads",
    "n_head_kv",           "multi_query_group_num", "attn_config.kv_n_heads"};
inline constexpr Fields::Aliases head_dim_names{"head_dim", "attention_head_dim", "kv_channels", "d_kv"};
inline constexpr Fields::Aliases ffn_names{"intermediate_size",         "ffn_dim", "n_inner",
                                           "ffn_hidden_size",           "d_ff",    "hidden_dim",
                                           "ffn_config.ffn_hidden_size"};
inline constexpr Fields::Aliases expert_names{"num_local_experts", "num_experts", "n_routed_experts",
                                              "ffn_config.moe_num_experts"};
inline constexpr Fields::Aliases top_k_names{"num_experts_per_tok", "experts_per_token", "moe_top_k",
                                             "ffn_config.moe_top_k"};
inline constexpr Fields::Aliases activation_names{"hidden_act",    "activation_function", "hidden_activation",
                                                  "activation_fn", "feed_forward_proj",   "activation"};
inline constexpr Fields::Aliases kind_names{"layers_block_type", "layer_types"};

/// Reads `experts`. With `kinds` known, reads all fields of feed-forwards: sizes, gating, activation,
/// experts. `family`: null if the file does not state one.
void read_feed_forward(const Fields& fields, const Family* family, ModelConfig& model);

}  // namespace shingle::config
