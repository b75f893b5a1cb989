// Checks the fields of a JSON object from outside. Errors name the field.
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
  bool repeated_keys = true;  ///< true: an object may have a key twice, and the last one counts
  /// Estimated memory that the parsed values may take: a short text may hold many values.
  std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max();
};

/// Reads a whole text without storing its values, in time linear in its length. Throws InvalidArgument if the
/// text is nested too deep or exceeds the limits. Throws as nlohmann::json does if the text is not JSON.
void scan_json(std::string_view text, const JsonLimits& limits);

enum class RepeatedKeys : std::uint8_t { refused, last_counts };

/// Parses with a bound on nesting. The InvalidArgument that it throws is one line with line and column, and
/// never holds the text itself.
nlohmann::json parse_json(std::string_view text, RepeatedKeys repeated = RepeatedKeys::refused);

/// A read-only view of an object whose fields have several aliases. The first alias that is present counts.
/// "outer.inner" names a field of a nested object. `null` counts as absent. Wrong types and values out of
/// range throw InvalidArgument.
class Fields {
 public:
  using Aliases = std::initializer_list<const char*>;

  explicit Fields(const nlohmann::json& object) : object_(&object) {}

  bool has(Aliases aliases) const { return find(aliases).value != nullptr; }
  /// The alias that is present, else the first alias; for messages.
  std::string name(Aliases aliases) const { return find(aliases).name; }

  std::optional<std::int64_t> integer(Aliases aliases, std::int64_t least, std::int64_t most) const;
  /// As integer(), but throws if the field is absent.
  std::int64_t required(Aliases aliases, std::int64_t least, std::int64_t most) const;
  std::optional<double> number(Aliases aliases, double least, double most) const;
  std::optional<bool> flag(Aliases aliases) const;
  std::optional<std::string> text(Aliases aliases) const;
  /// True if the field is exactly this string.
  bool is_text(Aliases aliases, std::string_view word) const;
  /// A list with unchecked elements.
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

/// The form of a value in messages: a scalar, shortened and printable, or the type of any other value.
std::string show(const nlohmann::json& value);

}  // namespace shingle
