// Models: the sizes of a network from its Hugging Face config.json, and its layers' operators that
// communicate.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/plan/problem.hpp"

namespace shingle {

/// How a layer mixes tokens.
enum class Mixer : std::uint8_t {
  attention,
  latent_attention,  ///< multi-head latent attention (DeepSeek-V2); layer_operators() does not make its
                     ///< projections
  mamba,
};
/// The block after the mixer.
enum class FeedForward : std::uint8_t { none, dense, moe };

struct LayerKind {
  Mixer mixer = Mixer::attention;
  FeedForward feed_forward = FeedForward::dense;

  bool operator==(const LayerKind&) const = default;
};

/// Sizes of a Mamba (version 1) mixer. All zero if the model has none.
struct MambaSizes {
  std::int64_t d_inner = 0;
  std::int64_t d_state = 0;
  std::int64_t d_conv = 0;
  std::int64_t dt_rank = 0;

  bool operator==(const MambaSizes&) const = default;
};

/// A model's sizes in elements, for the whole model, not yet divided among ranks.
struct ModelConfig {
  std::string family;  ///< "llama", "mixtral", …: the file's model_type, or empty
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;     ///< query heads; this and the next two are 0 if no layer is attention
  std::int64_t kv_heads = 0;  ///< equal to heads if not grouped, 1 for multi-query
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;  ///< inner size of a dense feed-forward; 0 if no layer has one
  bool gated = false;    ///< act(x·gate) · (x·up) rather than act(x·up)
  /// Activation of the up projection: swiglu, or silu, gelu, relu. none if the epilogue does not support the
  /// model's (GeGLU, relu²).
  Activation activation = Activation::none;
  bool rms_norm = false;  ///< else LayerNorm
  float norm_epsilon = 1e-5f;
  std::int64_t experts = 0;  ///< routed experts; this and the next four are 0 for a dense model
  std::int64_t experts_per_token = 0;
  std::int64_t moe_ffn = 0;         ///< inner size of one expert
  std::int64_t shared_experts = 0;  ///< applied to every token
  std::int64_t shared_ffn = 0;      ///< sum of the inner sizes of the shared experts
  MambaSizes mamba;
  std::vector<LayerKind> kinds;  ///< by layer

  bool has(Mixer mixer) const;
  bool has(FeedForward feed_forward) const;
};

/// Reads a Hugging Face config.json, Meta's params.json or a config of diffusers' transformers. It accepts a
/// field under any of the names that the known families give it, and ignores other fields. It reads the
/// `text_config` of a multimodal model.
///
/// The model_type, or without one `architectures`, must name a known family. Families differ in what their
/// files do not state, for example the gate of a feed-forward. A file that states neither must state the
/// activation.
///
/// Throws InvalidArgument in one line that names the field. Reasons: malformed JSON, an unknown family,
/// Mamba-2, or a field that is missing, of a wrong type, out of range or in contradiction to another.
ModelConfig read_model(std::string_view json_text);
/// As read_model(), from a file; the message starts with its path. Throws IoError if the file cannot be read.
ModelConfig read_model_file(const std::string& path);

/// The names of the models that ship with Shingle, ascending.
std::vector<std::string> model_names();
/// Reads a model by its name, such as "llama-3-8b", or by its file: anything with a '/', or ending in
/// ".json". Throws as read_model_file(), and InvalidArgument if no shipped model has this name.
ModelConfig model_from_spec(const std::string& spec);

struct LayerOptions {
  int tp = 1;  ///< tensor-parallel ranks: the world of every operator
  /// Expert-parallel ranks. tp, or 0: rank r has the r-th part of the experts. 1: each rank has its part of
  /// every expert, as tensor parallelism cuts a feed-forward.
  int ep = 0;
  std::int64_t tokens = 0;  ///< of the whole batch: sequence length times batch size
  DType dtype = DType::bf16;
  bool sequence_parallel = true;  ///< activations between the blocks are sharded by tokens
  bool mlp = false;               ///< a feed-forward is one operator, mlp or moe, instead of up and down
  int layer = -1;          ///< index of the layer; -1: every distinct kind of layer, each operator once
  bool backward = false;   ///< also the weight gradients
  std::uint64_t seed = 0;  ///< seed of the experts that tokens choose
};

/// One GEMM of a layer with its communication. Sizes are those of one rank.
struct LayerOp {
  std::string name;
  Problem problem;
};

/// The GEMMs of a layer, split over `tp` ranks as in Megatron. M = tokens; of experts, those of a rank.
///
/// | name                            | op      | N                                    | K                  |
/// |---------------------------------|---------|--------------------------------------|--------------------|
/// | qkv                             | column  | (heads/tp + 2·kv)·head_dim           | hidden             |
/// | attn_out                        | row     | hidden                               | heads/tp·head_dim  |
/// | in_proj, of a Mamba mixer       | column  | 2·d_inner/tp                         | hidden             |
/// | out_proj, of the same           | row     | hidden                               | d_inner/tp         |
/// | ffn_up, shared_up               | column  | ffn/tp, twice that if gated          | hidden             |
/// | ffn_down, shared_down           | row     | hidden                               | ffn/tp             |
/// | moe_up                          | dispatch| moe_ffn, twice that if gated         | hidden             |
/// | moe_down                        | combine | hidden                               | moe_ffn            |
///
/// With `mlp` ffn, shared and moe are one operator each, in place of their up and down: N = K = hidden, inner
/// = ffn/tp, of moe moe_ffn. Those of ffn and shared need sequence parallelism.
///
/// column: allgather+gemm with sequence parallelism, else gemm. row: gemm+reducescatter with sequence
/// parallelism, else gemm+allreduce. dispatch: alltoall+grouped-gemm. combine: grouped-gemm+alltoall. With
/// ep = 1: allgather+grouped-gemm and grouped-gemm+reducescatter, over moe_ffn/tp; without sequence
/// parallelism moe_down is grouped-gemm+allreduce, moe is moe+allreduce, and moe_up, which does not
/// communicate, is left out. kv is kv_heads/tp, or 1 if there are fewer kv_heads than ranks, which then hold
/// copies. Weights are stored as in Linear layers (n×k, transpose_b). Biases are left out.
///
/// Up projections carry the activation; gated ones are [gate | up] with swiglu. With gemm+allreduce, row
/// operators carry the residual and RMSNorm that follow. Exceptions are LayerNorm models, and shared_down,
/// because the routed experts are still to be added to it.
///
/// Rank r has the r-th part of the tokens that go to experts, or all of them if an all-reduce sums them. Each
/// token goes to different random experts, by the seed, without a capacity. All operators of experts have the
/// same routing.
///
/// Multi-head latent attention has no operators here: see left_out_operators().
///
/// `backward` adds dW = Xᵀ·dY for every weight except those of routed experts. It uses transpose_a; M×N is a
/// rank's part of the weight, in × out, and K = tokens. The sum is over as many data-parallel ranks as tp.
/// The operators are NAME_wgrad_allreduce, and NAME_wgrad_reducescatter for a sharded optimizer.
///
/// Throws InvalidArgument that names the field:
/// - heads, kv_heads, ffn, d_inner, experts or (with ep = 1) moe_ffn do not divide among the ranks
/// - tokens, tp, ep or layer is out of range
/// - with `mlp`, the epilogue does not support the activation, or there is no sequence parallelism
std::vector<LayerOp> layer_operators(const ModelConfig& model, const LayerOptions& options);

/// An operator of a layer that layer_operators() does not make.
struct LeftOutOp {
  std::string name;
  std::string reason;
};
/// The left-out operators of one layer; -1: of all layers. Throws InvalidArgument if there is no such layer.
std::vector<LeftOutOp> left_out_operators(const ModelConfig& model, int layer = -1);

}  // namespace shingle
