#include "base/json_fields.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shingle/base/error.hpp"

namespace shingle {
namespace {

using nlohmann::json;

// Without a bound a megabyte of brackets becomes a hundred megabytes of nested arrays.
constexpr int max_depth = 32;

InvalidArgument not_a(const std::string& name, std::string_view kind, const json& value) {
  return InvalidArgument(fmt::format("{} must be {}, not {}", name, kind, show(value)));
}

}  // namespace

json parse_json(std::string_view text) {
  const auto bounded = [](int depth, json::parse_event_t, json&) {
    if (depth > max_depth) throw InvalidArgument(fmt::format("JSON nested deeper than {} levels", max_depth));
    return true;
  };
  try {
    return json::parse(text, bounded);
  } catch (const json::parse_error& error) {
    const std::string_view before = text.substr(0, error.byte > 0 ? error.byte - 1 : 0);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const auto newline = before.rfind('\n');
    const auto column = before.size() - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
    throw InvalidArgument(fmt::format("malformed JSON at line {}, column {}", line, column));
  } catch (const json::exception&) {
    throw InvalidArgument("malformed JSON: a number is out of range");
  }
}

std::string show(const json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  constexpr std::size_t most = 40;
  if (text.size() > most) text = text.substr(0, most) + "…";
  return text;
}

Fields::Found Fields::find(Aliases aliases) const {
  for (const std::string_view alias : aliases) {
    const json* at = object_;
    std::string_view rest = alias;
    while (at != nullptr) {
      const auto dot = rest.find('.');
      const auto field = at->is_object() ? at->find(std::string(rest.substr(0, dot))) : at->end();
      at = field == at->end() || field->is_null() ? nullptr : &*field;
      if (dot == std::string_view::npos) break;
      rest.remove_prefix(dot + 1);
    }
    if (at != nullptr) return {at, std::string(alias)};
  }
  return {nullptr, *aliases.begin()};
}

std::optional<std::int64_t> Fields::integer(Aliases aliases, std::int64_t least, std::int64_t most) const {
  const Found found = find(aliases);
  if (found.value == nullptr) return std::nullopt;
  if (!found.value->is_number_integer()) throw not_a(found.name, "a whole number", *found.value);
  // An unsigned value beyond int64 would wrap; it is out of range in any case.
  const bool huge =
      found.value->is_number_unsigned() && found.value->get<std::uint64_t>() > (std::uint64_t{1} << 62);
  const auto value = huge ? most : found.value->get<std::int64_t>();
  if (huge || value < least || value > most)
    throw InvalidArgument(
        fmt::format("{} = {} is outside [{}, {}]", found.name, show(*found.value), least, most));
  return value;
}

std::int64_t Fields::required(Aliases aliases, std::int64_t least, std::int64_t most) const {
  if (const auto value = integer(aliases, least, most)) return *value;
  std::string known;
  for (const std::string_view alias : aliases) known += (known.empty() ? "" : ", ") + std::string(alias);
  throw InvalidArgument(fmt::format("{} is missing{}", *aliases.begin(),
                                    aliases.size() > 1 ? fmt::format(" (one of {})", known) : ""));
}

std::optional<double> Fields::number(Aliases aliases, double least, double most) const {
  const Found found = find(aliases);
  if (found.value == nullptr) return std::nullopt;
  if (!found.value->is_number()) throw not_a(found.name, "a number", *found.value);
  const double value = found.value->get<double>();
  if (!(value >= least && value <= most))
    throw InvalidArgument(fmt::format("{} = {} is outside [{}, {}]", found.name, value, least, most));
  return value;
}

std::optional<bool> Fields::flag(Aliases aliases) const {
  const Found found = find(aliases);
  if (found.value == nullptr) return std::nullopt;
  if (!found.value->is_boolean()) throw not_a(found.name, "true or false", *found.value);
  return found.value->get<bool>();
}

std::optional<std::string> Fields::text(Aliases aliases) const {
  const Found found = find(aliases);
  if (found.value == nullptr) return std::nullopt;
  if (!found.value->is_string()) throw not_a(found.name, "a string", *found.value);
  return found.value->get<std::string>();
}

bool Fields::is_text(Aliases aliases, std::string_view word) const {
  const Found found = find(aliases);
  return found.value != nullptr && found.value->is_string() && *found.value == word;
}

const json* Fields::list(Aliases aliases) const {
  const Found found = find(aliases);
  if (found.value != nullptr && !found.value->is_array()) throw not_a(found.name, "a list", *found.value);
  return found.value;
}

const json* Fields::object(Aliases aliases) const {
  const Found found = find(aliases);
  if (found.value != nullptr && !found.value->is_object()) throw not_a(found.name, "an object", *found.value);
  return found.value;
}

}  // namespace shingle
