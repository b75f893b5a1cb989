#include "shingle/compare/results.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/problem.hpp"

namespace shingle::cli {
namespace {

using nlohmann::json;

/// Reads the fields of one row. Errors name the field.
class Fields {
 public:
  explicit Fields(const json& row) : row_(row) {
    if (!row.is_object()) throw InvalidArgument("must be an object");
  }

  /// Null counts as absent.
  bool has(const char* key) const { return row_.contains(key) && !row_.at(key).is_null(); }

  std::string word(const char* key) const {
    if (!has(key) || !row_.at(key).is_string())
      throw InvalidArgument(fmt::format("'{}' must be a text", key));
    return row_.at(key).get<std::string>();
  }
  std::int64_t count(const char* key) const {
    if (!has(key) || !row_.at(key).is_number_unsigned() ||
        row_.at(key).get<std::uint64_t>() > static_cast<std::uint64_t>(max_extent))
      throw InvalidArgument(fmt::format("'{}' must be a whole number up to {}", key, max_extent));
    return row_.at(key).get<std::int64_t>();
  }
  /// Nothing also for 0, the time of one rank that has nobody to communicate with.
  std::optional<double> figure(const char* key) const {
    if (!has(key)) return std::nullopt;
    if (!row_.at(key).is_number() || row_.at(key) < 0)
      throw InvalidArgument(fmt::format("'{}' must be a number from 0 on", key));
    if (row_.at(key) == 0) return std::nullopt;
    return row_.at(key).get<double>();
  }
  std::string text_of(const char* key) const { return has(key) ? row_.at(key).dump() : ""; }

 private:
  const json& row_;
};

ResultRow row_from(const json& object) {
  const Fields fields(object);
  ResultRow row;
  row.op = fields.word("op");
  row.m = fields.count("m");
  row.n = fields.count("n");
  row.k = fields.count("k");
  if (fields.has("inner")) row.inner = fields.count("inner");
  row.world = static_cast<int>(fields.count("world"));
  row.dtype = fields.word("dtype");
  row.backend = fields.word("backend");
  row.mechanism = fields.word("mechanism");
  row.params = fields.text_of("params");
  const std::string source = fields.word("source");
  if (source != "predicted" && source != "measured")
    throw InvalidArgument(fmt::format("'source' is '{}'; expected predicted or measured", source));
  row.predicted = source == "predicted";
  row.us = fields.figure("overlapped_us");
  row.speedup = fields.figure("speedup");
  if (fields.has("reason")) row.reason = fields.word("reason");
  return row;
}

}  // namespace

std::string ResultRow::size() const {
  return fmt::format("{}×{}×{}{}", m, n, k, inner > 0 ? fmt::format(" ({})", inner) : "");
}

std::vector<ResultRow> read_results(const std::string& path) {
  constexpr std::size_t largest_bytes = std::size_t{1} << 28;
  json array = json::parse(read_file(path, largest_bytes), nullptr, false);
  if (array.is_discarded()) throw InvalidArgument(fmt::format("{}: not JSON", path));
  if (array.is_object() && array.contains("rows")) array = json(std::move(array.at("rows")));
  if (!array.is_array())
    throw InvalidArgument(
        fmt::format("{}: not an array of rows; expected output of run or simulate with --format json", path));
  std::vector<ResultRow> rows;
  for (const json& object : array) {
    try {
      rows.push_back(row_from(object));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("{}: row {}: {}", path, rows.size() + 1, error.what()));
    }
  }
  return rows;
}

}  // namespace shingle::cli
