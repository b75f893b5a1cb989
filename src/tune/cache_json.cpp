#include "cache_json.hpp"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "base/json_fields.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/version.hpp"

namespace shingle::tuning {
namespace {

using Json = nlohmann::json;

constexpr std::string_view format = "shingle-tuning";

std::string text_of(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const Json& part(const Fields& entry, const char* key) {
  const Json* found = entry.object({key});
  if (found == nullptr) throw InvalidArgument(fmt::format("an entry lacks {}", key));
  return *found;
}

TuneEntry read_entry(const Json& json) {
  constexpr double longest_us = std::numeric_limits<double>::max();
  const Fields fields(json);
  TuneEntry entry;
  entry.problem = unrouted_problem_from_json(text_of(part(fields, "problem")));
  entry.params = parse_params(parse_mechanism(fields.text({"mechanism"}).value_or("")),
                              params_from_json(text_of(part(fields, "params"))));
  entry.predicted_us = fields.number({"predicted_us"}, 0, longest_us).value_or(0);
  entry.measured_us = fields.number({"measured_us"}, 0, longest_us).value_or(0);
  return entry;
}

}  // namespace

std::string key_of(Problem problem, Mechanism mechanism) {
  problem.routing.reset();
  return fmt::format("{} {}", to_json(problem, -1), name(mechanism));
}

std::string cache_text(const std::string& fingerprint, const std::map<std::string, TuneEntry>& entries) {
  std::string text =
      fmt::format(R"({{"format": "{}", "version": {}, "shingle": "{}", "machine": "{}", "entries": [)",
                  format, tune_cache_version, SHINGLE_VERSION, fingerprint);
  const char* separator = "\n";
  for (const auto& [key, entry] : entries) {
    text += fmt::format(
        R"({}{{"problem": {}, "mechanism": "{}", "params": {}, "predicted_us": {}, "measured_us": {}}})",
        std::exchange(separator, ",\n"), to_json(entry.problem, -1), name(mechanism_of(entry.params)),
        to_json(list_of(entry.params), -1), text_of(entry.predicted_us), text_of(entry.measured_us));
  }
  return text + "\n]}\n";
}

std::map<std::string, TuneEntry> cache_entries(const std::string& fingerprint, std::string_view text) {
  const Json json = parse_json(text);
  const Fields fields(json);
  if (!fields.is_text({"format"}, format)) throw InvalidArgument(fmt::format("format must be '{}'", format));
  const std::int64_t version = fields.required({"version"}, 0, std::numeric_limits<std::int32_t>::max());
  if (version != tune_cache_version || !fields.is_text({"shingle"}, SHINGLE_VERSION) ||
      !fields.is_text({"machine"}, fingerprint))
    return {};
  const Json* list = fields.list({"entries"});
  if (list == nullptr) throw InvalidArgument("entries are missing");
  std::map<std::string, TuneEntry> entries;
  for (const Json& element : *list) {
    TuneEntry entry = read_entry(element);
    std::string key = key_of(entry.problem, mechanism_of(entry.params));
    entries.insert_or_assign(std::move(key), std::move(entry));
  }
  return entries;
}

}  // namespace shingle::tuning
