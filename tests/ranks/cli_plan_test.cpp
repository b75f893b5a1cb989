// shingle plan --machine: what the operators of a layer are predicted to take on a machine that one does not
// have.
#include <set>

#include "cli_program.hpp"
#include "shingle/base/units.hpp"

namespace shingle::cli_plan_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string profile = SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json";
const std::string model = "--model " SHINGLE_TEST_SOURCE_DIR "/models/llama-3-8b.json --layer-ops ";
const std::string h200 = "--machine " + profile + " ";
const std::string nodes = "--machine '" + profile + " * 2, 8x400Gb/s' ";
const std::vector<std::string> layer{"qkv", "attn_out", "ffn_up", "ffn_down"};

std::set<std::string> keys_of(const json& row) {
  std::set<std::string> keys;
  for (const auto& [key, value] : row.items()) keys.insert(key);
  return keys;
}

std::vector<std::string> layer_ops_of(const json& rows) {
  std::vector<std::string> names;
  for (const json& row : rows) names.push_back(row.at("layer_op"));
  return names;
}

class CliPlan : public Cli {
 protected:
  json printed(const std::string& arguments) const {
    const Outcome outcome = run(arguments + " --format json");
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.err;
    return json::parse(outcome.out);
  }

  void expect_layer(const std::string& where, int world) const {
    const std::string what = "plan " + model + "--tokens 8192 " + where;
    const json rows = printed(what);
    EXPECT_EQ(layer_ops_of(rows), layer);
    const Outcome table = run(what, "COLUMNS=1000");
    EXPECT_EQ(table.code, 0) << table.err;
    double sequential = 0, predicted = 0;
    for (const json& row : rows) {
      EXPECT_EQ(row.at("source"), "predicted");
      EXPECT_EQ(row.at("world"), world);
      EXPECT_GE(row.at("speedup"), 1.0);
      EXPECT_TRUE(row.at("params").is_object());
      EXPECT_FALSE(row.at("choice").at("reason").get<std::string>().empty());
      sequential += row.at("sequential_us").get<double>();
      predicted += row.at("overlapped_us").get<double>();
      EXPECT_THAT(table.out,
                  testing::ContainsRegex(row.at("layer_op").get<std::string>() + " .*" +
                                         row.at("mechanism").get<std::string>() + " .*" +
                                         format_us(row.at("overlapped_us").get<double>()) + " .*x"));
    }
    EXPECT_THAT(table.out, testing::ContainsRegex("\ntotal +" + format_us(sequential) + " +" +
                                                  format_us(predicted) + " "));
  }
};

TEST_F(CliPlan, PredictsALayer) {
  expect_layer(h200 + "--tp 8", 8);
  EXPECT_THAT(run("plan " + model + "--tokens 8192 --tp 8 " + h200).out, HasSubstr("predicted for h200x8\n"));
}

TEST_F(CliPlan, PredictsALayerOnNodes) {
  // Too few groups of K and V for 16 ranks and whole heads for each: every rank keeps a copy of one.
  expect_layer(nodes + "--tp 16", 16);
}

TEST_F(CliPlan, PrintsTheKeysOfRun) {
  const std::string one = "--op gemm+allreduce --mechanism sequential,fused " + small;
  const json measured = rows(one), predicted = printed("plan " + h200 + one);
  ASSERT_EQ(measured.size(), predicted.size());
  for (std::size_t i = 0; i < measured.size(); ++i) {
    EXPECT_EQ(keys_of(predicted[i]), keys_of(measured[i]));
    EXPECT_EQ(predicted[i].at("mechanism"), measured[i].at("mechanism"));
    EXPECT_EQ(predicted[i].at("backend"), "simulator");
    EXPECT_EQ(predicted[i].at("machine"), "h200x8");
    EXPECT_TRUE(measured[i].at("machine").is_null());
    for (const char* key : {"max_error", "tolerance", "verified"})
      EXPECT_TRUE(predicted[i].at(key).is_null());
  }
}

TEST_F(CliPlan, NamesTheOperatorsOfALayerInAllRows) {
  const std::string what = model + "--tokens 16 --tp 4 --mechanism sequential ";
  const json measured = rows(what), predicted = printed("plan " + h200 + what);
  EXPECT_EQ(layer_ops_of(measured), layer);
  EXPECT_EQ(layer_ops_of(printed("simulate " + h200 + what)), layer);
  EXPECT_EQ(layer_ops_of(printed("tune --cache " + path("cache") + " " + h200 + what)), layer);
  for (std::size_t i = 0; i < layer.size(); ++i) EXPECT_EQ(keys_of(predicted[i]), keys_of(measured[i]));
  EXPECT_FALSE(printed("simulate --op gemm " + h200 + small)[0].contains("layer_op"));
}

TEST_F(CliPlan, ExplainsWhatTheTimesDoNot) {
  const Outcome none = run("plan --mechanism signal --tokens 8192 --tp 8 " + model + h200);
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_THAT(none.out, HasSubstr("qkv allgather+gemm signal: signal sends"));
  EXPECT_THAT(none.out, Not(HasSubstr("total")));  // not of a part of the layer
  EXPECT_EQ(run("plan --op allgather+gemm --mechanism signal " + h200 + small).code, 1);
  const json row = printed("plan --op allgather+gemm --mechanism signal,ring " + h200 + small)[0];
  EXPECT_EQ(row.at("source"), "predicted");
  EXPECT_TRUE(row.at("overlapped_us").is_null());

  const Outcome kept = run("plan --op gemm " + h200 + small);
  EXPECT_EQ(kept.code, 0) << kept.err;
  EXPECT_THAT(kept.out, HasSubstr("\ngemm: nothing is predicted to be faster than sequential\n"));
  EXPECT_THAT(kept.out, Not(HasSubstr("total")));
}

TEST_F(CliPlan, PrintsStepsOnDemand) {
  const std::string what =
      "plan --op gemm+allreduce --mechanism ring --world 8 --m 2K --n 2K --k 512 " + h200;
  for (const char* flag : {"--steps", "--rank 1"})
    EXPECT_THAT(run(what + flag).out, HasSubstr("132 workers"));
  EXPECT_EQ(run(what + "--format json --out " + path("same.json")).code, 0);
  EXPECT_EQ(json::parse(run(what + "--steps --format json").out).at("problem").at("world"), 8);
  EXPECT_TRUE(json::parse(read_file(path("same.json"), 1 << 26)).contains("ranks"));
}

TEST_F(CliPlan, RefusesInOneLine) {
  expect_refused("plan --machine none --tokens 8192 --tp 8 " + model, "no machine 'none'");
  expect_refused("plan --tokens 8192 --tp 16 " + model + h200, "--world 16: h200x8 has 8 ranks");
  expect_refused("plan --tokens 8192 --tp 32 " + model + nodes, "has 16 ranks");
  expect_refused("plan --op gemm --steps " + small, "--steps requires --machine");
}

TEST_F(CliPlan, SaysWhichOperatorsOfAModelAreLeftOut) {
  const std::string deepseek =
      "plan --model " SHINGLE_TEST_SOURCE_DIR "/models/deepseek-v3.json --tokens 256 --tp 8 " + h200;
  const std::string mechanism = "--mechanism sequential --layer-ops ";
  EXPECT_EQ(
      layer_ops_of(printed(deepseek + mechanism)),
      (std::vector<std::string>{"ffn_up", "ffn_down", "moe_up", "moe_down", "shared_up", "shared_down"}));
  EXPECT_THAT(run(deepseek + mechanism).err,
              HasSubstr("without qkv, attn_out: the model has multi-head latent"));
  EXPECT_EQ(run(deepseek + mechanism + "moe_up").err, "");
  expect_refused(deepseek + mechanism + "attn_out",
                 "'attn_out' is not supported: the model has multi-head latent");
}

TEST_F(CliPlan, FindsAModelByItsName) {
  const std::string what = " --layer-ops --tokens 8192 --tp 8 ";
  EXPECT_EQ(printed("plan --model llama-3-8b" + what + h200),
            printed("plan " + model + "--tokens 8192 --tp 8 " + h200));
  expect_refused("plan --model llama-9" + what, "no model 'llama-9' (a file, or one of deepseek-moe-16b, ");
}

TEST_F(CliPlan, RefusesAModelThatItDoesNotKnow) {
  write("own.json", R"({"model_type": "own", "hidden_size": 64, "num_hidden_layers": 1,
                        "num_attention_heads": 4, "intermediate_size": 128})");
  expect_refused("plan --tp 2 --tokens 64 --layer-ops --model " + path("own.json"),
                 "own.json: model_type \"own\" is not known; if the layers are those of a known model, state "
                 "its model_type: ");
}

}  // namespace
}  // namespace shingle::cli_plan_test
