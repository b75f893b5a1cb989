#include "shingle/workload/model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

namespace shingle::shipped_models_test {
namespace {

ModelConfig shipped(const std::string& name) {
  return read_model_file(SHINGLE_TEST_SOURCE_DIR "/models/" + name + ".json");
}

// shipped

struct Sizes {
  const char* name;
  std::int64_t hidden, layers, heads, kv_heads, head_dim, ffn;
  bool gated;
  Activation activation;
  bool rms_norm;
};

class ShippedTest : public ::testing::TestWithParam<Sizes> {};

TEST_P(ShippedTest, HasThePublishedSizes) {
  const Sizes& want = GetParam();
  const ModelConfig model = shipped(want.name);
  EXPECT_EQ(model.hidden, want.hidden);
  EXPECT_EQ(model.layers, want.layers);
  EXPECT_EQ(model.heads, want.heads);
  EXPECT_EQ(model.kv_heads, want.kv_heads);
  EXPECT_EQ(model.head_dim, want.head_dim);
  EXPECT_EQ(model.ffn, want.ffn);
  EXPECT_EQ(model.gated, want.gated);
  EXPECT_EQ(model.activation, want.activation);
  EXPECT_EQ(model.rms_norm, want.rms_norm);
  EXPECT_EQ(static_cast<std::int64_t>(model.kinds.size()), want.layers);
}

TEST_P(ShippedTest, GivesValidOperators) {
  const ModelConfig model = shipped(GetParam().name);
  for (const int tp : {1, 2, 4, 8})
    for (const bool sequence_parallel : {false, true})
      for (const bool backward : {false, true}) {
        const int ep = model.experts % tp == 0 ? tp : 1;  // else each rank has a slice of every expert
        const auto operators = layer_operators(model, {.tp = tp,
                                                       .ep = ep,
                                                       .tokens = 513,
                                                       .sequence_parallel = sequence_parallel,
                                                       .backward = backward});
        EXPECT_GE(operators.size(), 2u);
        for (const LayerOp& op : operators) {
          EXPECT_NO_THROW(op.problem.validate()) << op.name;
          EXPECT_EQ(op.problem.world, tp);
          EXPECT_EQ(op.problem.dtype, DType::bf16);
        }
      }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ShippedTest,
    ::testing::Values(Sizes{"llama-2-7b", 4096, 32, 32, 32, 128, 11008, true, Activation::swiglu, true},
                      Sizes{"llama-3-8b", 4096, 32, 32, 8, 128, 14336, true, Activation::swiglu, true},
                      Sizes{"llama-3-70b", 8192, 80, 64, 8, 128, 28672, true, Activation::swiglu, true},
                      Sizes{"qwen2.5-72b", 8192, 80, 64, 8, 128, 29568, true, Activation::swiglu, true},
                      Sizes{"mixtral-8x7b", 4096, 32, 32, 8, 128, 0, true, Activation::swiglu, true},
                      Sizes{"mixtral-8x22b", 6144, 56, 48, 8, 128, 0, true, Activation::swiglu, true},
                      Sizes{"qwen3-30b-a3b", 2048, 48, 32, 4, 128, 0, true, Activation::swiglu, true},
                      Sizes{"qwen1.5-moe-a2.7b", 2048, 24, 16, 16, 128, 0, true, Activation::swiglu, true},
                      Sizes{"gpt-3-175b", 12288, 96, 96, 96, 128, 49152, false, Activation::gelu, false},
                      Sizes{"phi-2", 2560, 32, 32, 32, 80, 10240, false, Activation::gelu, false},
                      Sizes{"mpt-7b", 4096, 32, 32, 32, 128, 16384, false, Activation::gelu, false},
                      Sizes{"olmoe-1b-7b", 2048, 16, 16, 16, 128, 0, true, Activation::swiglu, true},
                      Sizes{"deepseek-moe-16b", 2048, 28, 16, 16, 128, 10944, true, Activation::swiglu, true},
                      Sizes{"deepseek-v3", 7168, 61, 0, 0, 0, 18432, true, Activation::swiglu, true},
                      Sizes{"llama-4-scout", 5120, 48, 40, 8, 128, 0, true, Activation::swiglu, true},
                      Sizes{"step-video-t2v", 6144, 48, 48, 48, 128, 24576, false, Activation::gelu, false},
                      Sizes{"mamba-2.8b", 2560, 64, 0, 0, 0, 0, false, Activation::none, true},
                      Sizes{"jamba-v0.1", 4096, 32, 32, 8, 128, 14336, true, Activation::swiglu, true}),
    [](const auto& test) {
      std::string name = test.param.name;
      std::replace_if(name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
      return name;
    });

TEST(Models, AllThatAreShippedAreTested) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SHINGLE_TEST_SOURCE_DIR "/models"))
    files += entry.path().extension() == ".json";
  EXPECT_EQ(files, 18u);
}

TEST(Models, MixturesHaveTheirExperts) {
  const ModelConfig mixtral = shipped("mixtral-8x7b");
  EXPECT_EQ(mixtral.experts, 8);
  EXPECT_EQ(mixtral.experts_per_token, 2);
  EXPECT_EQ(mixtral.moe_ffn, 14336);
  EXPECT_FALSE(mixtral.has(FeedForward::dense));

  const ModelConfig large = shipped("mixtral-8x22b");
  EXPECT_EQ(large.experts, 8);
  EXPECT_EQ(large.moe_ffn, 16384);

  const ModelConfig qwen = shipped("qwen3-30b-a3b");
  EXPECT_EQ(qwen.experts, 128);
  EXPECT_EQ(qwen.experts_per_token, 8);
  EXPECT_EQ(qwen.moe_ffn, 768);
  EXPECT_EQ(qwen.shared_experts, 0);

  const ModelConfig shares = shipped("qwen1.5-moe-a2.7b");
  EXPECT_EQ(shares.experts, 60);
  EXPECT_EQ(shares.experts_per_token, 4);
  EXPECT_EQ(shares.shared_ffn, 5632) << "one shared expert, four times as wide";

  const ModelConfig deepseek = shipped("deepseek-moe-16b");
  EXPECT_EQ(deepseek.experts, 64);
  EXPECT_EQ(deepseek.experts_per_token, 6);
  EXPECT_EQ(deepseek.moe_ffn, 1408);
  EXPECT_EQ(deepseek.shared_experts, 2);
  EXPECT_EQ(deepseek.shared_ffn, 2816);
  EXPECT_EQ(deepseek.kinds[0].feed_forward, FeedForward::dense);
  for (std::size_t layer = 1; layer < 28; ++layer)
    EXPECT_EQ(deepseek.kinds[layer].feed_forward, FeedForward::moe);

  const ModelConfig v3 = shipped("deepseek-v3");
  EXPECT_EQ(v3.experts, 256);
  EXPECT_EQ(v3.moe_ffn, 2048);
  EXPECT_EQ(v3.shared_ffn, 2048);
  EXPECT_EQ(v3.kinds[2], (LayerKind{Mixer::latent_attention, FeedForward::dense}));
  EXPECT_EQ(v3.kinds[3], (LayerKind{Mixer::latent_attention, FeedForward::moe}));

  const ModelConfig scout = shipped("llama-4-scout");
  EXPECT_EQ(scout.experts, 16);
  EXPECT_EQ(scout.experts_per_token, 1);
  EXPECT_EQ(scout.moe_ffn, 8192);
  EXPECT_EQ(scout.shared_experts, 1);
  EXPECT_EQ(scout.shared_ffn, 8192);

  EXPECT_EQ(shipped("llama-3-8b").experts, 0);
}

TEST(Models, MambaAndJambaHaveTheirLayers) {
  const ModelConfig mamba = shipped("mamba-2.8b");
  EXPECT_EQ(mamba.mamba, (MambaSizes{.d_inner = 5120, .d_state = 16, .d_conv = 4, .dt_rank = 160}));
  EXPECT_EQ(mamba.kinds[63], (LayerKind{Mixer::mamba, FeedForward::none}));

  const ModelConfig jamba = shipped("jamba-v0.1");
  EXPECT_EQ(jamba.mamba, (MambaSizes{.d_inner = 8192, .d_state = 16, .d_conv = 4, .dt_rank = 256}));
  EXPECT_EQ(jamba.experts, 16);
  for (std::size_t layer = 0; layer < 32; ++layer) {
    EXPECT_EQ(jamba.kinds[layer].mixer, layer % 8 == 4 ? Mixer::attention : Mixer::mamba) << layer;
    EXPECT_EQ(jamba.kinds[layer].feed_forward, layer % 2 == 1 ? FeedForward::moe : FeedForward::dense)
        << layer;
  }
}

}  // namespace
}  // namespace shingle::shipped_models_test
