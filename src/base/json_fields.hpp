// Fields of a JSON object that comes from outside, checked one by one: errors name the field.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace shingle {

struct JsonLimits {
  bool repeated_keys = true;  ///< whether an object may have a key twice; the last one counts
  /// Of memory, about, that the values may take: a short text may hold many.
  std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max();
};

/// Reads all of a text, in time that is linear in its length, and keeps nothing. Throws InvalidArgument where
/// it is nested too deep or beyond the limits, and what nlohmann::json throws where it is no JSON.
void scan_json(std::string_view text, const JsonLimits& limits);

/// Parses with a bound on nesting. Throws InvalidArgument: one line with line and column, never the text
/// itself.
nlohmann::json parse_json(std::string_view text);

/// A read-only view of an object whose fields go by several names. `null` counts as absent. The first alias
/// that is present wins; "outer.inner" looks inside a nested object. Wrong types and values out of range
/// throw InvalidArgument.
class Fields {
 public:
  using Aliases = std::initializer_list<const char*>;

  explicit Fields(const nlohmann::json& object) : object_(&object) {}

  bool has(Aliases aliases) const { return find(aliases).value != nullptr; }
  /// The alias that is present, else the first: to name the field in a message.
  std::string name(Aliases aliases) const { return find(aliases).name; }

  std::optional<std::int64_t> integer(Aliases aliases, std::int64_t least, std::int64_t most) const;
  /// As integer(), but absence is an error too.
  std::int64_t required(Aliases aliases, std::int64_t least, std::int64_t most) const;
  std::optional<double> number(Aliases aliases, double least, double most) const;
  std::optional<bool> flag(Aliases aliases) const;
  std::optional<std::string> text(Aliases aliases) const;
  /// Whether the field is this very string.
  bool is_text(Aliases aliases, std::string_view word) const;
  /// A list; its elements are not checked.
  const nlohmann::json* list(Aliases aliases) const;
  const nlohmann::json* object(Aliases aliases) const;

 private:
  struct Found {
    const nlohmann::json* value;
    std::string name;
  };
  Found find(Aliases aliases) const;

  const nlohmann::json* object_;
};

/// What a message shows of a value: a scalar as it stands, shortened and printable; else its type.
std::string show(const nlohmann::json& value);

}  // namespace shingle
