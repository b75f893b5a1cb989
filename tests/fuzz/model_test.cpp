// Fuzz of the readers of config.json and of routings: whatever the text, a result that holds together or
// InvalidArgument.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "base/file.hpp"
#include "shingle/base/error.hpp"
#include "shingle/workload/model.hpp"
#include "workload/routing_patterns.hpp"

namespace shingle {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
constexpr auto budget = std::chrono::seconds(2);  // a bound for slow machines; the rounds suffice on others

int accepted = 0;

void expect_one_line(const InvalidArgument& error) {
  ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  ASSERT_LT(std::string(error.what()).size(), 1200u) << error.what();
}

/// A model that was read has sizes that make sense, and its operators are valid or refused.
void feed_model(const std::string& text, int tp) {
  try {
    const ModelConfig model = read_model(text);
    ++accepted;
    ASSERT_GE(model.hidden, 1);
    ASSERT_EQ(static_cast<std::int64_t>(model.kinds.size()), model.layers);
    if (model.has(Mixer::attention)) {
      ASSERT_GE(model.head_dim, 1);
      ASSERT_EQ(model.heads % model.kv_heads, 0);
    }
    if (model.has(FeedForward::dense)) {
      ASSERT_GE(model.ffn, 1);
    }
    if (model.has(FeedForward::moe)) {
      ASSERT_LE(model.experts_per_token, model.experts);
    }
    for (const LayerOp& op : layer_operators(model, {.tp = tp, .tokens = 17, .backward = tp % 2 == 0}))
      op.problem.validate();
  } catch (const InvalidArgument& error) {
    expect_one_line(error);
  }
}

void feed_routing(const std::string& text) {
  try {
    const Routing routing = routing_from_json(text);
    ++accepted;
    std::int64_t received = 0;
    for (int rank = 0; rank < routing.world(); ++rank) received += routing.received(rank);
    ASSERT_EQ(received, routing.global_base(routing.world()));
  } catch (const InvalidArgument& error) {
    expect_one_line(error);
  }
}

class ModelFuzz : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override {
    for (const auto& entry : std::filesystem::directory_iterator(SHINGLE_TEST_SOURCE_DIR "/models"))
      texts_.push_back(read_file(entry.path().string(), 1 << 20));
    std::sort(texts_.begin(), texts_.end());  // directories have no order, seeds do
    for (const std::string& text : texts_) {
      const json config = json::parse(text);
      for (auto field = config.begin(); field != config.end(); ++field) keys_.push_back(field.key());
    }
    for (const char* key : {"head_dim", "multi_query", "n_kv_heads", "expansion_ratio", "multiple_of",
                            "layer_types", "text_config", "mlp_only_layers", "decoder_sparse_step", "ssm_cfg",
                            "dim", "kv_lora_rank", "architectures", "moe_layers", "intermediate_size_mlp"})
      keys_.push_back(key);
    accepted = 0;
  }

  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }

  json value() {
    static const json values[] = {nullptr,
                                  true,
                                  false,
                                  0,
                                  1,
                                  2,
                                  3,
                                  8,
                                  64,
                                  128,
                                  4096,
                                  -1,
                                  1 << 24,
                                  INT64_MAX,
                                  INT64_MIN,
                                  UINT64_MAX,
                                  0.5,
                                  1e300,
                                  -0.0,
                                  "",
                                  "auto",
                                  "silu",
                                  "relu2",
                                  "mamba",
                                  "phi",
                                  std::string(5000, '\n'),
                                  json::array(),
                                  json::array({0, 1, "attention"}),
                                  json::object(),
                                  json{{"hidden_size", 64}}};
    return values[below(std::size(values))];
  }
  /// Changes a few fields of a real config.
  std::string variant() {
    json config = json::parse(texts_[below(texts_.size())]);
    for (std::size_t i = below(4); i > 0; --i) {
      const std::string key = keys_[below(keys_.size())];
      if (below(4) == 0) {
        config.erase(key);
      } else {
        config[key] = value();
      }
    }
    return config.dump();
  }
  std::string mutated(std::string text) {
    for (std::size_t i = 1 + below(4); i > 0 && !text.empty(); --i) {
      const std::size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text[at] = static_cast<char>(random_());
          break;
        case 1:
          text.erase(at, 1 + below(8));
          break;
        case 2:
          text.insert(at, text.substr(below(text.size()), below(16)));
          break;
        default:
          text[at] = "{}[],:\"0123456789-.e"[below(20)];
          break;
      }
    }
    return text;
  }

  std::mt19937_64 random_{GetParam()};
  Clock::time_point end_ = Clock::now() + budget;
  std::vector<std::string> texts_;
  std::vector<std::string> keys_;
};

TEST_P(ModelFuzz, ConfigsWithWrongFieldsAndBytes) {
  for (int round = 0; round < 6'000 && Clock::now() < end_; ++round) {
    const std::string text = variant();
    feed_model(text, 1 << below(4));
    feed_model(mutated(text), 2);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 10);  // else the fuzz would only ever see the first check
}

TEST_P(ModelFuzz, Routings) {
  for (int round = 0; round < 6'000 && Clock::now() < end_; ++round) {
    json dest = json::array();
    for (std::size_t rank = below(5); rank > 0; --rank) {
      json rows = json::array();
      for (std::size_t row = below(6); row > 0; --row)
        rows.push_back(below(20) == 0 ? value() : json(below(3)));
      dest.push_back(rows);
    }
    const std::string text = json{{"dest", dest}}.dump();
    feed_routing(text);
    feed_routing(mutated(text));
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 10);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ModelFuzz, ::testing::Values(1u, 2u));

}  // namespace
}  // namespace shingle
