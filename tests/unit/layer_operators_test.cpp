#include "shingle/workload/model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shingle/base/error.hpp"

namespace shingle::layer_operators_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

ModelConfig shipped(const std::string& name) {
  return read_model_file(SHINGLE_TEST_SOURCE_DIR "/models/" + name + ".json");
}

json llama() {
  return {{"model_type", "llama"},     {"hidden_size", 4096},      {"num_hidden_layers", 32},
          {"num_attention_heads", 32}, {"num_key_value_heads", 8}, {"intermediate_size", 14336},
          {"hidden_act", "silu"},      {"rms_norm_eps", 1e-5}};
}

ModelConfig read(const json& config) {
  return read_model(config.dump());
}

json with(json config, const json& changes) {
  config.update(changes);
  return config;
}

std::string brief(const LayerOp& op) {
  return op.name + ": " + describe(op.problem);
}

std::vector<std::string> briefs(const ModelConfig& model, const LayerOptions& options) {
  std::vector<std::string> lines;
  for (const LayerOp& op : layer_operators(model, options)) lines.push_back(brief(op));
  return lines;
}

const LayerOp& find(const std::vector<LayerOp>& operators, const std::string& name) {
  const auto at =
      std::find_if(operators.begin(), operators.end(), [&](const LayerOp& op) { return op.name == name; });
  if (at == operators.end()) throw std::runtime_error("no operator " + name);
  return *at;
}

// operators

TEST(LayerOperators, AFeedForwardMayBeOneOperator) {
  LayerOptions options{.tp = 4, .tokens = 256, .dtype = DType::f32, .mlp = true};
  EXPECT_THAT(briefs(shipped("llama-3-8b"), options),
              ElementsAre("qkv: allgather+gemm 256x1536x4096 f32, B transposed, 4 ranks",
                          "attn_out: gemm+reducescatter 256x4096x1024 f32, B transposed, 4 ranks",
                          "ffn: mlp 256x4096x4096 f32, 3584 inner, B transposed, swiglu, 4 ranks"));
  EXPECT_THAT([&] { layer_operators(read(with(llama(), {{"hidden_act", "relu2"}})), options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("an activation that a GEMM can apply")));
  options.sequence_parallel = false;
  EXPECT_THAT([&] { layer_operators(shipped("llama-3-8b"), options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("needs sequence parallelism")));
}

TEST(LayerOperators, LlamaUnderTensorAndSequenceParallelism) {
  EXPECT_THAT(briefs(shipped("llama-3-8b"), {.tp = 4, .tokens = 256, .dtype = DType::f32}),
              ElementsAre("qkv: allgather+gemm 256x1536x4096 f32, B transposed, 4 ranks",
                          "attn_out: gemm+reducescatter 256x4096x1024 f32, B transposed, 4 ranks",
                          "ffn_up: allgather+gemm 256x7168x4096 f32, B transposed, swiglu, 4 ranks",
                          "ffn_down: gemm+reducescatter 256x4096x3584 f32, B transposed, 4 ranks"));
}

TEST(LayerOperators, WithoutSequenceParallelismTheSumIsNormalised) {
  const auto model = shipped("llama-3-70b");
  EXPECT_THAT(
      briefs(model, {.tp = 8, .tokens = 4096, .sequence_parallel = false}),
      ElementsAre("qkv: gemm 4096x1280x8192 bf16, B transposed, 8 ranks",
                  "attn_out: gemm+allreduce 4096x8192x1024 bf16, B transposed, residual + rmsnorm, 8 ranks",
                  "ffn_up: gemm 4096x7168x8192 bf16, B transposed, swiglu, 8 ranks",
                  "ffn_down: gemm+allreduce 4096x8192x3584 bf16, B transposed, residual + rmsnorm, 8 ranks"));
  // A LayerNorm follows here, which is none of the operator's business.
  for (const LayerOp& op :
       layer_operators(shipped("gpt-3-175b"), {.tp = 8, .tokens = 64, .sequence_parallel = false}))
    EXPECT_FALSE(op.problem.norm.enabled) << op.name;
}

TEST(LayerOperators, PlainFeedForwardCarriesItsActivation) {
  const auto operators = layer_operators(shipped("gpt-3-175b"), {.tp = 8, .tokens = 2048});
  EXPECT_EQ(brief(find(operators, "qkv")), "qkv: allgather+gemm 2048x4608x12288 bf16, B transposed, 8 ranks");
  EXPECT_EQ(brief(find(operators, "ffn_up")),
            "ffn_up: allgather+gemm 2048x6144x12288 bf16, B transposed, gelu, 8 ranks");
}

TEST(LayerOperators, AGateWithoutAnEpilogueStillDoublesTheColumns) {
  const ModelConfig gemma =
      read(with(llama(), {{"model_type", "gemma2"}, {"hidden_act", "gelu_pytorch_tanh"}, {"head_dim", 256}}));
  const auto operators = layer_operators(gemma, {.tp = 2, .tokens = 64});
  EXPECT_EQ(find(operators, "ffn_up").problem.n, 14336);
  EXPECT_EQ(find(operators, "attn_out").problem.k, 32 * 256 / 2);
  EXPECT_FALSE(find(operators, "ffn_up").problem.epilogue.any());
}

TEST(LayerOperators, FewKeyValueHeadsAreReplicated) {
  const auto operators = layer_operators(shipped("llama-3-70b"), {.tp = 16, .tokens = 64});
  EXPECT_EQ(find(operators, "qkv").problem.n, (4 + 2) * 128);
  const ModelConfig multi_query = read(with(llama(), {{"num_key_value_heads", 1}}));
  EXPECT_EQ(find(layer_operators(multi_query, {.tp = 4, .tokens = 64}), "qkv").problem.n, (8 + 2) * 128);
}

TEST(LayerOperators, RanksHaveSomeOfTheExperts) {
  const auto model = shipped("mixtral-8x7b");
  const auto operators = layer_operators(model, {.tp = 4, .tokens = 1001});
  ASSERT_EQ(operators.size(), 4u);
  const Problem& up = find(operators, "moe_up").problem;
  EXPECT_EQ(up.op, Op::alltoall_grouped_gemm);
  EXPECT_EQ(up.m, 251);
  EXPECT_EQ(up.n, 2 * 14336);
  EXPECT_EQ(up.k, 4096);
  EXPECT_EQ(up.experts, (Experts{8, 2}));
  EXPECT_EQ(up.epilogue.activation, Activation::swiglu);
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(up.routing->rows(rank), 2 * (rank < 3 ? 251 : 248)) << "two experts for each token";
  const Problem& down = find(operators, "moe_down").problem;
  EXPECT_EQ(down.op, Op::grouped_gemm_alltoall);
  EXPECT_EQ(down.n, 4096);
  EXPECT_EQ(down.k, 14336);
  EXPECT_EQ(down.routing, up.routing);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(down.a_rows(rank), up.out_rows(rank));
  EXPECT_EQ(down, find(layer_operators(model, {.tp = 4, .tokens = 1001}), "moe_down").problem);
  EXPECT_FALSE(down ==
               find(layer_operators(model, {.tp = 4, .tokens = 1001, .seed = 1}), "moe_down").problem);
}

TEST(LayerOperators, RanksHaveAPartOfEachExpert) {
  const auto operators = layer_operators(shipped("mixtral-8x7b"), {.tp = 4, .ep = 1, .tokens = 1000});
  const Problem& up = find(operators, "moe_up").problem;
  EXPECT_EQ(up.op, Op::allgather_grouped_gemm);
  EXPECT_EQ(up.n, 2 * 14336 / 4);
  EXPECT_EQ(up.routing->experts(), 8);
  const Problem& down = find(operators, "moe_down").problem;
  EXPECT_EQ(down.op, Op::grouped_gemm_reducescatter);
  EXPECT_EQ(down.k, 14336 / 4);
  EXPECT_EQ(down.out_rows(3), 250);
}

TEST(LayerOperators, WithoutSequenceParallelismAllRanksHaveTheTokensOfExperts) {
  LayerOptions options{.tp = 4, .ep = 1, .tokens = 1000, .sequence_parallel = false};
  const auto operators = layer_operators(shipped("mixtral-8x7b"), options);
  const Problem& down = find(operators, "moe_down").problem;
  EXPECT_EQ(down.op, Op::grouped_gemm_allreduce);
  EXPECT_EQ(down.m, 1000);
  EXPECT_EQ(down.k, 14336 / 4);
  EXPECT_EQ(down.a_rows(3), 2000);
  EXPECT_EQ(down.out_rows(3), 1000);
  EXPECT_NO_THROW(down.validate());
  EXPECT_TRUE(std::ranges::none_of(operators, [](const LayerOp& op) { return op.name == "moe_up"; }));
  options.mlp = true;
  const Problem whole = find(layer_operators(shipped("mixtral-8x7b"), options), "moe").problem;
  EXPECT_EQ(whole.op, Op::moe_allreduce);
  EXPECT_EQ(whole.routing->world(), 1);
  EXPECT_NO_THROW(whole.validate());
}

TEST(LayerOperators, ALayerOfExpertsMayBeOneOperator) {
  for (const auto& [ep, op, inner] :
       {std::tuple{0, Op::moe, 1408}, {2, Op::moe, 1408}, {1, Op::moe_tp, 704}}) {
    const auto operators =
        layer_operators(shipped("deepseek-moe-16b"), {.tp = 2, .ep = ep, .tokens = 64, .mlp = true});
    const Problem& moe = find(operators, "moe").problem;
    EXPECT_EQ(moe.op, op);
    EXPECT_EQ(moe.inner, inner);
    EXPECT_EQ(moe.experts, (Experts{64, 6}));
    EXPECT_EQ(find(operators, "shared").problem.inner, 2816 / 2);
  }
}

TEST(LayerOperators, LatentAttentionIsLeftOutWithAReason) {
  const auto model = shipped("deepseek-v3");
  EXPECT_THAT(briefs(model, {.tp = 8, .tokens = 64, .dtype = DType::bf16, .mlp = true}).at(0),
              HasSubstr("ffn: mlp 64x7168x7168 bf16, 2304 inner"));
  const auto operators = layer_operators(model, {.tp = 8, .tokens = 64});
  EXPECT_EQ(find(operators, "shared_down").problem.k, 2048 / 8);
  EXPECT_EQ(find(operators, "moe_up").problem.n, 2 * 2048);
  const auto left_out = left_out_operators(model);
  ASSERT_EQ(left_out.size(), 2u);
  EXPECT_EQ(left_out[0].name, "qkv");
  EXPECT_EQ(left_out[1].name, "attn_out");
  EXPECT_THAT(left_out[0].reason, HasSubstr("multi-head latent attention"));
  EXPECT_TRUE(left_out_operators(shipped("llama-3-8b")).empty());
  EXPECT_THROW(left_out_operators(model, 61), InvalidArgument);
}

TEST(LayerOperators, Llama4HasASharedExpert) {
  const auto operators = layer_operators(shipped("llama-4-scout"), {.tp = 8, .tokens = 64});
  EXPECT_EQ(find(operators, "shared_up").problem.n, 2 * 8192 / 8);
  EXPECT_EQ(find(operators, "shared_down").problem.k, 8192 / 8);
}

std::vector<std::string> names(const std::vector<LayerOp>& operators) {
  std::vector<std::string> all;
  for (const LayerOp& op : operators) all.push_back(op.name);
  return all;
}

TEST(LayerOperators, EveryKindOfLayerOnceOrASingleLayer) {
  const auto jamba = shipped("jamba-v0.1");
  EXPECT_THAT(
      names(layer_operators(jamba, {.tp = 2, .tokens = 64})),
      ElementsAre("in_proj", "out_proj", "ffn_up", "ffn_down", "moe_up", "moe_down", "qkv", "attn_out"));
  EXPECT_THAT(names(layer_operators(jamba, {.tp = 2, .tokens = 64, .layer = 1})),
              ElementsAre("in_proj", "out_proj", "moe_up", "moe_down"));
  EXPECT_THAT(names(layer_operators(jamba, {.tp = 2, .tokens = 64, .layer = 4})),
              ElementsAre("qkv", "attn_out", "ffn_up", "ffn_down"));
  const auto mamba = layer_operators(shipped("mamba-2.8b"), {.tp = 4, .tokens = 64});
  EXPECT_EQ(brief(mamba[0]), "in_proj: allgather+gemm 64x2560x2560 bf16, B transposed, 4 ranks");
  EXPECT_EQ(brief(mamba[1]), "out_proj: gemm+reducescatter 64x2560x1280 bf16, B transposed, 4 ranks");
  const auto deepseek =
      layer_operators(shipped("deepseek-moe-16b"), {.tp = 8, .tokens = 64, .sequence_parallel = false});
  EXPECT_THAT(names(deepseek), ElementsAre("qkv", "attn_out", "ffn_up", "ffn_down", "moe_up", "moe_down",
                                           "shared_up", "shared_down"));
  EXPECT_EQ(find(deepseek, "shared_up").problem.n, 2 * 2816 / 8);
  EXPECT_FALSE(find(deepseek, "shared_down").problem.norm.enabled);  // the routed experts are still missing
}

TEST(LayerOperators, BackwardAddsWeightGradients) {
  const auto operators = layer_operators(shipped("llama-3-8b"), {.tp = 4, .tokens = 256, .backward = true});
  EXPECT_EQ(operators.size(), 12u);
  EXPECT_EQ(brief(find(operators, "qkv_wgrad_allreduce")),
            "qkv_wgrad_allreduce: gemm+allreduce 4096x1536x256 bf16, A transposed, 4 ranks");
  EXPECT_EQ(brief(find(operators, "ffn_down_wgrad_reducescatter")),
            "ffn_down_wgrad_reducescatter: gemm+reducescatter 3584x4096x256 bf16, A transposed, 4 ranks");
}

TEST(LayerOperators, WhatDoesNotDivideIsNamed) {
  const auto error = [](const ModelConfig& model, LayerOptions options, const char* text) {
    EXPECT_THAT([&] { layer_operators(model, options); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  const ModelConfig llama3 = shipped("llama-3-8b");
  error(llama3, {.tp = 3, .tokens = 64}, "heads = 32 is not a multiple of tp = 3");
  error(read(with(llama(), {{"num_attention_heads", 12}, {"num_key_value_heads", 3}, {"head_dim", 64}})),
        {.tp = 4, .tokens = 64}, "kv_heads = 3");
  error(read(with(llama(), {{"intermediate_size", 1001}})), {.tp = 2, .tokens = 64}, "ffn size = 1001");
  error(shipped("mixtral-8x7b"), {.tp = 16, .tokens = 64}, "experts = 8");
  error(shipped("mamba-2.8b"), {.tp = 3, .tokens = 64}, "d_inner = 5120");
  error(llama3, {.tp = 0, .tokens = 64}, "tp = 0");
  error(llama3, {.tp = 128, .tokens = 64}, "tp = 128");
  error(llama3, {.tp = 4, .tokens = 0}, "tokens = 0");
  error(llama3, {.tp = 4, .tokens = INT64_MAX}, "tokens = ");
  error(llama3, {.tp = 4, .tokens = 64, .layer = 32}, "layer = 32");
  error(shipped("olmoe-1b-7b"), {.tp = 8, .tokens = max_extent}, "is too large");
  error(shipped("mixtral-8x7b"), {.tp = 4, .ep = 2, .tokens = 64}, "ep = 2 is neither 1 nor tp = 4");
  error(shipped("olmoe-1b-7b"), {.tp = 3, .ep = 1, .tokens = 64, .layer = 0}, "is not a multiple of tp = 3");
}

}  // namespace
}  // namespace shingle::layer_operators_test
