#include "shingle/api/model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "shingle/base/error.hpp"
#include "shingle/base/file.hpp"

namespace shingle {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
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

// ----------------------------------------------------------------------------------------- models that are
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
        const auto operators = layer_operators(
            model, {.tp = tp, .tokens = 513, .sequence_parallel = sequence_parallel, .backward = backward});
        EXPECT_GE(operators.size(), 2u);
        for (const LayerOp& op : operators) {
          EXPECT_NO_THROW(op.problem.validate()) << brief(op);
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
                      Sizes{"gpt-3-175b", 12288, 96, 96, 96, 128, 49152, false, Activation::gelu, false},
                      Sizes{"phi-2", 2560, 32, 32, 32, 80, 10240, false, Activation::gelu, false},
                      Sizes{"mpt-7b", 4096, 32, 32, 32, 128, 16384, false, Activation::gelu, false},
                      Sizes{"olmoe-1b-7b", 2048, 16, 16, 16, 128, 0, true, Activation::swiglu, true},
                      Sizes{"deepseek-moe-16b", 2048, 28, 16, 16, 128, 10944, true, Activation::swiglu, true},
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
  EXPECT_EQ(files, 13u);
}

TEST(Models, MixturesHaveTheirExperts) {
  const ModelConfig mixtral = shipped("mixtral-8x7b");
  EXPECT_EQ(mixtral.experts, 8);
  EXPECT_EQ(mixtral.experts_per_token, 2);
  EXPECT_EQ(mixtral.moe_ffn, 14336);
  EXPECT_FALSE(mixtral.has(FeedForward::dense));

  const ModelConfig deepseek = shipped("deepseek-moe-16b");
  EXPECT_EQ(deepseek.experts, 64);
  EXPECT_EQ(deepseek.experts_per_token, 6);
  EXPECT_EQ(deepseek.moe_ffn, 1408);
  EXPECT_EQ(deepseek.shared_experts, 2);
  EXPECT_EQ(deepseek.shared_ffn, 2816);
  EXPECT_EQ(deepseek.kinds[0].feed_forward, FeedForward::dense);
  for (std::size_t layer = 1; layer < 28; ++layer)
    EXPECT_EQ(deepseek.kinds[layer].feed_forward, FeedForward::moe);

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

// ----------------------------------------------------------------------------------------------------- field
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
  EXPECT_EQ(original_mamba.mamba, shipped("mamba-2.8b").mamba);
}

TEST(ReadModel, GemmaIsGatedThoughItSaysGelu) {
  const ModelConfig gemma =
      read(with(llama(), {{"model_type", "gemma2"}, {"hidden_act", "gelu_pytorch_tanh"}, {"head_dim", 256}}));
  EXPECT_TRUE(gemma.gated);
  EXPECT_EQ(gemma.activation, Activation::none);
  EXPECT_EQ(gemma.head_dim, 256);
  const auto operators = layer_operators(gemma, {.tp = 2, .tokens = 64});
  EXPECT_EQ(find(operators, "ffn_up").problem.n, 14336);
  EXPECT_EQ(find(operators, "attn_out").problem.k, 32 * 256 / 2);
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
      {{{"kv_lora_rank", 512}}, "kv_lora_rank"},
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
  const std::string path = ::testing::TempDir() + "/shingle_model_test.json";
  write_file_atomically(path, "{}");
  EXPECT_THAT([&] { read_model_file(path); },
              ThrowsMessage<InvalidArgument>(HasSubstr(path + ": num_hidden_layers is missing")));
  std::filesystem::remove(path);
}

// -------------------------------------------------------------------------------------------------------
// operators

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

TEST(LayerOperators, FewKeyValueHeadsAreReplicated) {
  const auto operators = layer_operators(shipped("llama-3-70b"), {.tp = 16, .tokens = 64});
  EXPECT_EQ(find(operators, "qkv").problem.n, (4 + 2) * 128);
  const ModelConfig multi_query = read(with(llama(), {{"num_key_value_heads", 1}}));
  EXPECT_EQ(find(layer_operators(multi_query, {.tp = 4, .tokens = 64}), "qkv").problem.n, (8 + 2) * 128);
}

TEST(LayerOperators, ExpertsSendTheirRowsHome) {
  const auto model = shipped("mixtral-8x7b");
  const auto operators = layer_operators(model, {.tp = 4, .tokens = 1000});
  ASSERT_EQ(operators.size(), 3u);
  const Problem& down = find(operators, "moe_down").problem;
  EXPECT_EQ(down.op, Op::gemm_alltoall);
  EXPECT_EQ(down.n, 4096);
  EXPECT_EQ(down.k, 14336);
  EXPECT_EQ(down.global_rows(), 2000);
  std::int64_t most = 0;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(down.out_rows(rank), 500);  // two rows for each of the rank's 250 tokens
    most = std::max(most, down.a_rows(rank));
  }
  EXPECT_EQ(down.m, most);
  EXPECT_EQ(down, find(layer_operators(model, {.tp = 4, .tokens = 1000}), "moe_down").problem);
  EXPECT_FALSE(down ==
               find(layer_operators(model, {.tp = 4, .tokens = 1000, .seed = 1}), "moe_down").problem);
}

std::vector<std::string> names(const std::vector<LayerOp>& operators) {
  std::vector<std::string> all;
  for (const LayerOp& op : operators) all.push_back(op.name);
  return all;
}

TEST(LayerOperators, EveryKindOfLayerOnceOrASingleLayer) {
  const auto jamba = shipped("jamba-v0.1");
  EXPECT_THAT(names(layer_operators(jamba, {.tp = 2, .tokens = 64})),
              ElementsAre("in_proj", "out_proj", "ffn_up", "ffn_down", "moe_down", "qkv", "attn_out"));
  EXPECT_THAT(names(layer_operators(jamba, {.tp = 2, .tokens = 64, .layer = 1})),
              ElementsAre("in_proj", "out_proj", "moe_down"));
  EXPECT_THAT(names(layer_operators(jamba, {.tp = 2, .tokens = 64, .layer = 4})),
              ElementsAre("qkv", "attn_out", "ffn_up", "ffn_down"));
  const auto mamba = layer_operators(shipped("mamba-2.8b"), {.tp = 4, .tokens = 64});
  EXPECT_EQ(brief(mamba[0]), "in_proj: allgather+gemm 64x2560x2560 bf16, B transposed, 4 ranks");
  EXPECT_EQ(brief(mamba[1]), "out_proj: gemm+reducescatter 64x2560x1280 bf16, B transposed, 4 ranks");
  const auto deepseek =
      layer_operators(shipped("deepseek-moe-16b"), {.tp = 8, .tokens = 64, .sequence_parallel = false});
  EXPECT_THAT(names(deepseek),
              ElementsAre("qkv", "attn_out", "ffn_up", "ffn_down", "moe_down", "shared_up", "shared_down"));
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
  error(llama3, {.tp = 3, .tokens = 64}, "heads = 32 does not divide among tp = 3");
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
  error(shipped("olmoe-1b-7b"), {.tp = 8, .tokens = max_extent}, "too many rows");
}

}  // namespace
}  // namespace shingle
