#include "shingle/common/params_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace shingle::cli {
namespace {

using nlohmann::ordered_json;

std::string scalar_text(const ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// Lists use commas; lists inside lists use slashes.
std::string value_text(const ordered_json& value) {
  if (!value.is_structured()) return scalar_text(value);
  std::string text;
  const char* separator = value.is_array() ? "," : "/";
  for (const auto& [key, item] : value.items()) {
    if (!text.empty()) text += separator;
    text += value.is_array() ? value_text(item) : fmt::format("{}:{}", key, value_text(item));
  }
  return text;
}

/// Collects params by the names of their flags. Two params of one flag become one word.
class Words {
 public:
  void add(const std::string& key, const ordered_json& value) {
    if (key == "order" && value.is_object()) {
      for (const auto& [inner, item] : value.items()) add(inner, item);
    } else if (key == "tile_rows" || key == "cluster_m") {
      first_ = value_text(value);
    } else if (key == "tile_cols" || key == "cluster_n") {
      say(key == "tile_cols" ? "tile" : "cluster", fmt::format("{}x{}", first_, value_text(value)));
    } else if (key == "without_helpers") {
      say("helpers", "none");
    } else if (key == "raster") {
      say(key, value == "along_m" ? "m" : value == "along_n" ? "n" : value_text(value));
    } else if (value != false) {
      say(flag(key), value == true ? "" : value_text(value));
    }
  }
  std::string take() { return std::move(text_); }

 private:
  static std::string flag(const std::string& key) {
    if (key == "group_waves") return "groups";
    std::string name = key;
    std::ranges::replace(name, '_', '-');
    return name;
  }
  void say(const std::string& name, const std::string& value) {
    text_ += fmt::format("{}{}{}{}", text_.empty() ? "" : " ", name, value.empty() ? "" : "=", value);
  }

  std::string text_, first_;
};

}  // namespace

std::string params_text(const std::string& json) {
  if (json.empty()) return {};
  const ordered_json params = ordered_json::parse(json, nullptr, false);
  if (!params.is_object()) return json;
  Words words;
  for (const auto& [key, value] : params.items()) words.add(key, value);
  return words.take();
}

}  // namespace shingle::cli
