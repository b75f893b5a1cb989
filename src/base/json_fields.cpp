#include "json_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle {
namespace {

using nlohmann::json;

// Bounds memory: without a limit, a megabyte of brackets becomes a hundred megabytes of nested arrays.
constexpr int max_depth = 32;

InvalidArgument not_a(const std::string& name, std::string_view kind, const json& value) {
  return InvalidArgument(fmt::format("{} must be {}, not {}", name, kind, show(value)));
}

/// Reads a text without storing its values. Memory estimates are those of nlohmann::json with 64-bit
/// pointers.
class Scan : public nlohmann::json_sax<json> {
 public:
  explicit Scan(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return take(value_bytes); }
  bool boolean(bool) override { return take(value_bytes); }
  bool number_integer(number_integer_t) override { return take(value_bytes); }
  bool number_unsigned(number_unsigned_t) override { return take(value_bytes); }
  bool number_float(number_float_t, const string_t&) override { return take(value_bytes); }
  bool string(string_t& text) override { return take(value_bytes + container_bytes + text.size()); }
  bool binary(binary_t& bytes) override { return take(value_bytes + container_bytes + bytes.size()); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool start_object(std::size_t) override {
    if (!limits_.repeated_keys) keys_.emplace_back();
    return enter();
  }
  bool end_object() override {
    if (!limits_.repeated_keys) keys_.pop_back();
    return leave();
  }
  bool key(string_t& key) override {
    if (!limits_.repeated_keys && !keys_.back().insert(key).second)
      throw InvalidArgument(fmt::format("key {} given twice in one object", show(json(key))));
    return take(node_bytes + key.size());
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    if (const auto* malformed = dynamic_cast<const json::parse_error*>(&error)) throw *malformed;
    if (const auto* range = dynamic_cast<const json::out_of_range*>(&error)) throw *range;
    return false;
  }

 private:
  static constexpr std::size_t value_bytes = 2 * sizeof(json);  // arrays double when they grow
  static constexpr std::size_t container_bytes = 64, node_bytes = 96;

  bool take(std::size_t bytes) {
    taken_ += static_cast<std::int64_t>(bytes);
    if (taken_ > limits_.memory_bytes)
      throw InvalidArgument(fmt::format("the JSON values take more than the limit of {}",
                                        format_bytes(static_cast<double>(limits_.memory_bytes))));
    return true;
  }
  bool enter() {
    if (++depth_ > max_depth)
      throw InvalidArgument(fmt::format("JSON nested deeper than {} levels", max_depth));
    return take(value_bytes + container_bytes);
  }
  bool leave() {
    --depth_;
    return true;
  }

  JsonLimits limits_;
  int depth_ = 0;
  std::int64_t taken_ = 0;
  std::vector<std::set<std::string>> keys_;  // of the enclosing objects, outermost first
};

}  // namespace

void scan_json(std::string_view text, const JsonLimits& limits) {
  Scan scan(limits);
  json::sax_parse(text, &scan);
}

json parse_json(std::string_view text, RepeatedKeys repeated) {
  try {
    // A parse with callbacks takes time quadratic in the length of arrays. So the limits are checked in a
    // scan of their own.
    scan_json(text, {.repeated_keys = repeated == RepeatedKeys::last_counts});
    return json::parse(text);
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
  // An unsigned value beyond int64 would wrap when converted.
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
