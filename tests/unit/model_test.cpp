#include "shingle/workload/model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.hpp"
#include "shingle/base/error.hpp"

namespace shingle::model_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

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

// names

TEST(ReadModel, TakesTheNamesOfManyFamilies) {
  const ModelConfig falcon = read({{"model_type", "falcon"},
                                   {"hidden_size", 4544},
                                   {"num_hidden_layers", 32},
                                   {"num_attention_heads", 71},
                                   {"num_kv_heads", 71},
                                   {"multi_query", true},
                                   {"new_decoder_architecture", false}});
  EXPECT_EQ(falcon.kv_heads, 1);
  EXPECT_EQ(falcon.ffn, 4 * 4544);
  EXPECT_FALSE(falcon.gated);
  const ModelConfig falcon40 = read({{"model_type", "falcon"},
                                     {"hidden_size", 8192},
                                     {"num_hidden_layers", 60},
                                     {"num_attention_heads", 128},
                                     {"num_kv_heads", 8},
                                     {"multi_query", true},
                                     {"new_decoder_architecture", true}});
  EXPECT_EQ(falcon40.kv_heads, 8);

  const ModelConfig opt = read({{"model_type", "opt"},
                                {"hidden_size", 768},
                                {"num_hidden_layers", 12},
                                {"num_attention_heads", 12},
                                {"ffn_dim", 3072},
                                {"activation_function", "relu"}});
  EXPECT_EQ(opt.ffn, 3072);
  EXPECT_EQ(opt.activation, Activation::relu);

  // Meta's params.json: the inner size follows from a rule.
  const ModelConfig meta = read({{"dim", 4096},
                                 {"n_layers", 32},
                                 {"n_heads", 32},
                                 {"n_kv_heads", 8},
                                 {"ffn_dim_multiplier", 1.3},
                                 {"multiple_of", 1024},
                                 {"norm_eps", 1e-5}});
  EXPECT_EQ(meta.ffn, 14336);
  EXPECT_EQ(meta.activation, Activation::swiglu);
  EXPECT_TRUE(meta.rms_norm);

  const ModelConfig glm = read({{"model_type", "chatglm"},
                                {"hidden_size", 4096},
                                {"num_layers", 28},
                                {"num_attention_heads", 32},
                                {"multi_query_group_num", 2},
                                {"kv_channels", 128},
                                {"ffn_hidden_size", 13696}});
  EXPECT_EQ(glm.kv_heads, 2);
  EXPECT_EQ(glm.ffn, 13696);
  EXPECT_TRUE(glm.gated);

  const ModelConfig mpt = read({{"model_type", "mpt"},
                                {"d_model", 6144},
                                {"n_layers", 48},
                                {"n_heads", 48},
                                {"expansion_ratio", 4},
                                {"attn_config", {{"kv_n_heads", 8}}}});
  EXPECT_EQ(mpt.kv_heads, 8);
  EXPECT_EQ(mpt.ffn, 24576);

  // diffusers: no hidden size.
  const ModelConfig dit = read({{"num_layers", 28},
                                {"num_attention_heads", 16},
                                {"attention_head_dim", 72},
                                {"activation_fn", "gelu-approximate"}});
  EXPECT_EQ(dit.hidden, 1152);
  EXPECT_EQ(dit.ffn, 4608);

  const ModelConfig original_mamba = read({{"d_model", 2560}, {"n_layer", 64}, {"ssm_cfg", json::object()}});
  EXPECT_EQ(original_mamba.mamba, (MambaSizes{.d_inner = 5120, .d_state = 16, .d_conv = 4, .dt_rank = 160}));
}

TEST(ReadModel, GemmaIsGatedThoughItSaysGelu) {
  const ModelConfig gemma =
      read(with(llama(), {{"model_type", "gemma2"}, {"hidden_act", "gelu_pytorch_tanh"}, {"head_dim", 256}}));
  EXPECT_TRUE(gemma.gated);
  EXPECT_EQ(gemma.activation, Activation::none);
  EXPECT_EQ(gemma.head_dim, 256);
}

TEST(ReadModel, ReadsTheTextPartOfAMultimodalModel) {
  const ModelConfig model =
      read({{"model_type", "llava"}, {"text_config", llama()}, {"vision_config", {{"hidden_size", 1024}}}});
  EXPECT_EQ(model.hidden, 4096);
  EXPECT_EQ(model.family, "llama");
}

TEST(ReadModel, TellsWhichLayersAreWhat) {
  const ModelConfig qwen = read(with(llama(), {{"num_experts", 60},
                                               {"num_experts_per_tok", 4},
                                               {"moe_intermediate_size", 1408},
                                               {"shared_expert_intermediate_size", 5632},
                                               {"decoder_sparse_step", 2},
                                               {"mlp_only_layers", {3}},
                                               {"num_hidden_layers", 6}}));
  std::vector<bool> moe;
  for (const LayerKind& kind : qwen.kinds) moe.push_back(kind.feed_forward == FeedForward::moe);
  EXPECT_THAT(moe, ElementsAre(false, true, false, false, false, true));
  EXPECT_EQ(qwen.shared_ffn, 5632);
  EXPECT_EQ(qwen.moe_ffn, 1408);
  EXPECT_EQ(qwen.ffn, 14336);

  const ModelConfig listed = read(with(llama(), {{"num_hidden_layers", 3},
                                                 {"mamba_d_state", 16},
                                                 {"layers_block_type", {"mamba", "attention", "mamba"}}}));
  EXPECT_EQ(listed.kinds[0].mixer, Mixer::mamba);
  EXPECT_EQ(listed.kinds[1].mixer, Mixer::attention);
  // One expert is none, as in dense members of a family of mixtures.
  EXPECT_FALSE(read(with(llama(), {{"num_experts", 1}})).has(FeedForward::moe));
}

TEST(ReadModel, TheFamilyIsKnownOrRefused) {
  const auto family = [](const json& changes) { return read(with(llama(), changes)).family; };
  EXPECT_EQ(family({{"model_type", "qwen3_moe"}}), "qwen3_moe");
  EXPECT_EQ(family({{"model_type", "llama4_text"}}), "llama4_text");
  // Without a model_type the class decides, as it does in vLLM.
  const json unnamed = {{"model_type", nullptr}, {"hidden_act", nullptr}};
  const json phi = with(unnamed, {{"architectures", {"PhiForCausalLM"}}});
  EXPECT_EQ(read(with(llama(), phi)).activation, Activation::gelu);
  EXPECT_EQ(read(with(llama(), with(unnamed, {{"architectures", {"GPTNeoXForCausalLM"}}}))).activation,
            Activation::gelu);
  EXPECT_EQ(read(with(llama(), {{"model_type", nullptr}})).activation, Activation::swiglu);
}

TEST(ReadModel, TheFamilySaysWhatTheFileDoesNot) {
  // Llama's feed-forward has a gate whatever its activation; Phi's has none.
  const ModelConfig geglu = read(with(llama(), {{"hidden_act", "gelu"}}));
  EXPECT_TRUE(geglu.gated);
  EXPECT_EQ(geglu.activation, Activation::none);
  const ModelConfig plain = read(with(llama(), {{"model_type", "phi"}, {"hidden_act", "silu"}}));
  EXPECT_FALSE(plain.gated);
  EXPECT_EQ(plain.activation, Activation::silu);
  const ModelConfig own =
      read(with(llama(), {{"model_type", "gpt_oss"}, {"num_local_experts", 32}, {"num_experts_per_tok", 4}}));
  EXPECT_TRUE(own.gated);
  EXPECT_EQ(own.activation, Activation::none);
}

TEST(ReadModel, SharedExpertsGoByManyNames) {
  const json mixture = {{"num_local_experts", 16}, {"num_experts_per_tok", 1}};
  const auto shared = [&](const json& changes) {
    return read(with(with(llama(), mixture), changes)).shared_ffn;
  };
  EXPECT_EQ(shared(json::object()), 0);
  EXPECT_EQ(shared({{"model_type", "llama4_text"}}), 14336);  // no field states it
  EXPECT_EQ(shared({{"model_type", "qwen2_moe"}, {"shared_expert_intermediate_size", 5632}}), 5632);
  EXPECT_EQ(shared({{"model_type", "granitemoeshared"}, {"shared_intermediate_size", 1024}}), 1024);
  EXPECT_EQ(shared({{"model_type", "glm4_moe"}, {"n_shared_experts", 2}, {"moe_intermediate_size", 64}}),
            128);

  // Llama 4 Maverick: every second layer, and a size of its own for the others.
  const ModelConfig maverick = read(with(with(llama(), mixture), {{"model_type", "llama4_text"},
                                                                  {"num_hidden_layers", 4},
                                                                  {"interleave_moe_layer_step", 2},
                                                                  {"intermediate_size_mlp", 16384}}));
  EXPECT_EQ(maverick.ffn, 16384);
  EXPECT_EQ(maverick.kinds[0].feed_forward, FeedForward::dense);
  EXPECT_EQ(maverick.kinds[1].feed_forward, FeedForward::moe);
  const ModelConfig listed =
      read(with(with(llama(), mixture), {{"model_type", "llama4_text"}, {"moe_layers", {0, 31}}}));
  EXPECT_EQ(listed.kinds[0].feed_forward, FeedForward::moe);
  EXPECT_EQ(listed.kinds[30].feed_forward, FeedForward::dense);
}

TEST(ReadModel, NullIsAbsentAndUnknownFieldsAreIgnored) {
  const ModelConfig model =
      read(with(llama(), {{"head_dim", nullptr}, {"quantum_flux", {{"deep", {1, 2}}}}}));
  EXPECT_EQ(model.head_dim, 128);
  EXPECT_EQ(
      read(with(llama(), {{"mamba_dt_rank", "auto"}, {"attn_layer_period", 2}, {"attn_layer_offset", 0}}))
          .mamba.dt_rank,
      256);
}

struct Wrong {
  json changes;
  const char* names;
};

TEST(ReadModel, ErrorsAreOneLineThatNamesTheField) {
  const Wrong cases[] = {
      {{{"hidden_size", nullptr}}, "hidden_size is missing"},
      {{{"hidden_size", 0}}, "hidden_size = 0"},
      {{{"hidden_size", -4096}}, "hidden_size = -4096"},
      {{{"hidden_size", 1e30}}, "hidden_size must be a whole number"},
      {{{"hidden_size", 4096.0}}, "hidden_size must be a whole number"},
      {{{"hidden_size", "4096"}}, "hidden_size must be a whole number, not \"4096\""},
      {{{"hidden_size", {4096}}}, "hidden_size must be a whole number, not a list"},
      {{{"hidden_size", true}}, "hidden_size"},
      {{{"hidden_size", UINT64_MAX}}, "hidden_size = 18446744073709551615"},
      {{{"hidden_size", 4097}}, "hidden_size = 4097 is not a multiple of num_attention_heads = 32"},
      {{{"num_hidden_layers", 0}}, "num_hidden_layers = 0"},
      {{{"num_hidden_layers", 1 << 30}}, "num_hidden_layers"},
      {{{"num_attention_heads", nullptr}}, "num_attention_heads is missing"},
      {{{"num_attention_heads", -1}}, "num_attention_heads = -1"},
      {{{"num_key_value_heads", 5}}, "num_key_value_heads = 5"},
      {{{"num_key_value_heads", 64}}, "num_key_value_heads = 64"},
      {{{"head_dim", 1 << 24}}, "head_dim"},
      {{{"intermediate_size", 0}}, "intermediate_size = 0"},
      {{{"intermediate_size", nullptr}, {"expansion_ratio", 0.3}}, "expansion_ratio"},
      {{{"hidden_act", "swoosh"}}, "hidden_act = \"swoosh\""},
      {{{"hidden_act", 3}}, "hidden_act must be a string"},
      {{{"multi_query", 1}}, "multi_query must be true or false"},
      {{{"model_type", 7}}, "model_type must be a string"},
      {{{"num_local_experts", 8}}, "num_experts_per_tok is missing"},
      {{{"num_local_experts", 8}, {"num_experts_per_tok", 9}},
       "num_experts_per_tok = 9 is more than num_local_experts"},
      {{{"num_local_experts", -8}}, "num_local_experts = -8"},
      {{{"num_experts", 8}, {"num_experts_per_tok", 2}, {"mlp_only_layers", {32}}}, "mlp_only_layers"},
      {{{"num_experts", 8}, {"num_experts_per_tok", 2}, {"n_shared_experts", 65536}}, "n_shared_experts"},
      {{{"num_experts", 8}, {"num_experts_per_tok", 2}, {"expert_layer_period", 2}},
       "expert_layer_offset is missing"},
      {{{"attn_layer_period", 0}, {"attn_layer_offset", 0}}, "attn_layer_period = 0"},
      {{{"attn_layer_period", 8}, {"attn_layer_offset", 8}}, "attn_layer_offset = 8"},
      {{{"attn_layer_period", 8}, {"attn_layer_offset", 4}, {"mamba_dt_rank", "many"}}, "mamba_dt_rank"},
      {{{"attn_layer_period", 8}, {"attn_layer_offset", 4}, {"mamba_n_heads", 8}}, "Mamba-2"},
      {{{"layer_types", {"attention"}}}, "layer_types has 1 entries"},
      {{{"layer_types", json::array({1})}, {"num_hidden_layers", 1}}, "layer_types[0] = 1"},
      {{{"layer_types", {"linear_attention"}}, {"num_hidden_layers", 1}},
       "layer_types[0] = \"linear_attention\""},
      {{{"layer_types", "attention"}}, "layer_types must be a list"},
      {{{"model_type", "llamma"}}, "model_type \"llamma\" is not known"},
      {{{"model_type", "mamba2"}}, "model_type \"mamba2\" is not known"},
      {{{"model_type", nullptr}, {"architectures", {"FooForCausalLM"}}},
       "architectures[0] \"FooForCausalLM\" is not known"},
      {{{"model_type", nullptr}, {"architectures", {1}}}, "architectures[0] 1 is not known"},
      {{{"model_type", nullptr}, {"hidden_act", nullptr}}, "hidden_act and model_type are missing"},
      {{{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_layers", {32}}},
       "moe_layers: 32 is not the index of a layer"},
      {{{"rms_norm_eps", -1}}, "rms_norm_eps"},
      {{{"rms_norm_eps", "small"}}, "rms_norm_eps must be a number"},
      {{{"text_config", 5}}, "text_config must be an object"},
  };
  for (const Wrong& wrong : cases)
    EXPECT_THAT([&] { read(with(llama(), wrong.changes)); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(wrong.names), Not(HasSubstr("\n")))))
        << wrong.changes;
}

TEST(ReadModel, MalformedTextIsOneLine) {
  EXPECT_THAT([] { read_model("{\n  \"hidden_size\": 4096,,\n}"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("malformed JSON at line 2, column 23")));
  for (const std::string& text : {std::string(), std::string("[]"), std::string("7"), std::string("null"),
                                  std::string("{\"a\": \"\xff\"}"), std::string("{\"a\": 1e999}"),
                                  std::string("\0\0", 2), "{\"a\": " + std::string(100'000, '[')})
    EXPECT_THAT([&] { read_model(text); }, ThrowsMessage<InvalidArgument>(Not(HasSubstr("\n"))))
        << text.substr(0, 40);
}

TEST(ReadModel, FileErrorsStartWithThePath) {
  EXPECT_THAT([] { read_model_file("/no/such.json"); },
              ThrowsMessage<IoError>(HasSubstr("/no/such.json: No such")));
  const std::string path = ::testing::TempDir() + "/shingle_model_" + std::to_string(::getpid()) + ".json";
  write_file_atomically(path, "{}");
  EXPECT_THAT([&] { read_model_file(path); },
              ThrowsMessage<InvalidArgument>(HasSubstr(path + ": num_hidden_layers is missing")));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace shingle::model_test
