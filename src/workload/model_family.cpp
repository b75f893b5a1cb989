#include "model_family.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "shingle/base/error.hpp"

namespace shingle::config {
namespace {

constexpr std::string_view gated_silu[] = {
    "baichuan",    "chatglm",      "cohere",    "cohere2",   "dbrx",       "deepseek",
    "deepseek_v2", "deepseek_v3",  "dots1",     "exaone",    "exaone4",    "falcon_mamba",
    "glm",         "glm4",         "glm4_moe",  "granite",   "granitemoe", "granitemoeshared",
    "internlm2",   "internlm3",    "jamba",     "kimi_k2",   "llama",      "mamba",
    "mimo",        "minicpm",      "minicpm3",  "ministral", "mistral",    "mixtral",
    "olmo",        "olmo2",        "olmo3",     "olmoe",     "phi3",       "phimoe",
    "qwen2",       "qwen2_5_vl",   "qwen2_moe", "qwen2_vl",  "qwen3",      "qwen3_moe",
    "qwen3_vl",    "qwen3_vl_moe", "seed_oss",  "smollm3",   "stablelm"};
constexpr std::string_view gated_gelu[] = {"gemma", "gemma2", "gemma3"};
constexpr std::string_view plain_gelu[] = {
    "bert",       "bloom",           "codegen",    "falcon",     "gpt2", "gpt_bigcode",
    "gpt_neo",    "gpt_neox",        "gptj",       "mpt",        "phi",  "roberta",
    "RefinedWeb", "RefinedWebModel", "starcoder2", "step-video", "vit"};
constexpr std::string_view plain_relu[] = {"opt", "t5"};
constexpr std::string_view plain_relu2[] = {"arcee", "nemotron", "persimmon"};
constexpr std::string_view llama4[] = {"llama4"};
constexpr std::string_view gpt_oss[] = {"gpt_oss"};  // clamps both halves, and adds one to the up half

constexpr Family families[] = {
    {Form::gated, "silu", false, gated_silu},   {Form::gated, "gelu", false, gated_gelu},
    {Form::gated, "silu", true, llama4},        {Form::gated_own, "silu", false, gpt_oss},
    {Form::plain, "gelu", false, plain_gelu},   {Form::plain, "relu", false, plain_relu},
    {Form::plain, "relu2", false, plain_relu2},
};

/// Letters and digits in lower case, so that "GPTNeoX" equals "gpt_neox".
std::string plain(std::string_view text) {
  std::string letters;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

std::string_view without(std::string_view text, std::string_view end) {
  if (text.ends_with(end)) text.remove_suffix(end.size());
  return text;
}

const Family* family_named(std::string_view word) {
  const std::string whole = plain(word), text_part = plain(without(without(word, "_text_model"), "_text"));
  for (const Family& family : families)
    for (const std::string_view name : family.names)
      if (plain(name) == whole || plain(name) == text_part) return &family;
  return nullptr;
}

/// Stem of a class name: "LlamaForCausalLM" → "Llama".
std::string_view class_stem(std::string_view word) {
  for (const std::string_view end :
       {"ForCausalLM", "ForConditionalGeneration", "ForMaskedLM", "LMHeadModel", "Model"})
    if (word.ends_with(end)) return without(word, end);
  return word;
}

InvalidArgument unknown(const char* field, const nlohmann::json& word) {
  std::vector<std::string_view> known;
  for (const Family& family : families) known.insert(known.end(), family.names.begin(), family.names.end());
  std::ranges::sort(known);
  return InvalidArgument(
      fmt::format("{} {} is not known; if the layers are those of a known model, state its model_type: {}",
                  field, show(word), fmt::join(known, ", ")));
}

}  // namespace

const Family* find_family(const Fields& fields) {
  if (const auto type = fields.text({"model_type"})) {
    const Family* family = family_named(*type);
    if (family == nullptr) throw unknown("model_type", *type);
    return family;
  }
  const nlohmann::json* classes = fields.list({"architectures"});
  if (classes == nullptr || classes->empty()) return nullptr;
  const nlohmann::json& first = classes->front();
  const Family* family =
      first.is_string() ? family_named(class_stem(first.get_ref<const std::string&>())) : nullptr;
  if (family == nullptr) throw unknown("architectures[0]", first);
  return family;
}

}  // namespace shingle::config
