#include "shingle/bench/suite.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "base/file.hpp"
#include "shingle/workload/model.hpp"
#include "workload/routing_patterns.hpp"

namespace shingle::cli {
namespace {

using nlohmann::json;

/// Every combination of these values is a problem.
struct Sweep {
  std::string op;
  std::vector<std::int64_t> m, n, k;
  std::vector<std::string> routing;  ///< for an operator that routes
  Attention attention{};             ///< for an operator that attends
};

struct Suite {
  std::vector<std::string> models;
  std::vector<std::int64_t> tokens;
  std::vector<Sweep> shapes;
};

/// A value as shown in a message: a scalar in full, otherwise its kind.
std::string shown(const json& value) {
  constexpr std::size_t most = 40;
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() > most ? text.substr(0, most) + "…" : text;
}

InvalidArgument wrong(const std::string& where, const json& value, const std::string& expected) {
  return InvalidArgument(fmt::format("{} is {}; expected {}", where, shown(value), expected));
}

/// Parses a nonempty list by `element`. `such` describes the list.
template <class Element>
auto list_at(const json& object, const char* key, const std::string& path, const char* such,
             Element element) {
  const std::string where = path + key;
  if (!object.contains(key)) throw InvalidArgument(fmt::format("{} is missing; expected {}", where, such));
  const json& list = object.at(key);
  if (!list.is_array()) throw wrong(where, list, such);
  if (list.empty()) throw InvalidArgument(fmt::format("{} is an empty list; expected {}", where, such));
  std::vector<decltype(element(list[0], where))> all;
  for (std::size_t i = 0; i < list.size(); ++i)
    all.push_back(element(list[i], fmt::format("{}[{}]", where, i)));
  return all;
}

std::int64_t size_of(const json& value, const std::string& where) {
  if (!value.is_number_unsigned() || value == 0 ||
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(max_extent))
    throw wrong(where, value, fmt::format("an integer from 1 to {}", max_extent));
  return value.get<std::int64_t>();
}

std::vector<std::int64_t> sizes_at(const json& object, const char* key, const std::string& path) {
  return list_at(object, key, path, "a list of positive integers, such as [96, 768]", size_of);
}

void require_known(const json& object, const std::string& path, std::initializer_list<const char*> keys) {
  for (const auto& [key, value] : object.items())
    if (std::ranges::find(keys, key) == keys.end())
      throw InvalidArgument(
          fmt::format("{}{:.40} is unknown; expected one of: {}", path, key, fmt::join(keys, ", ")));
}

Attention attention_at(const json& shape, const std::string& path) {
  constexpr const char* such = R"({"heads": 64, "kv_heads": 8, "head_dim": 128, "causal": true})";
  const std::string where = path + "attention";
  if (!shape.contains("attention"))
    throw InvalidArgument(fmt::format("{} is missing; expected {}", where, such));
  const json& object = shape.at("attention");
  if (!object.is_object()) throw wrong(where, object, fmt::format("an object such as {}", such));
  require_known(object, where + ".", {"heads", "kv_heads", "head_dim", "causal"});
  const auto extent = [&](const char* key) {
    return object.contains(key) ? size_of(object.at(key), where + "." + key) : 0;
  };
  Attention attention{
      .heads = extent("heads"), .kv_heads = extent("kv_heads"), .head_dim = extent("head_dim")};
  if (attention.heads == 0 || attention.head_dim == 0)
    throw InvalidArgument(fmt::format("{} needs heads and head_dim", where));
  if (object.contains("causal")) {
    if (!object.at("causal").is_boolean())
      throw wrong(where + ".causal", object.at("causal"), "true or false");
    attention.causal = object.at("causal");
  }
  return attention;
}

std::string word(const json& value, const std::string& where) {
  if (!value.is_string()) throw wrong(where, value, "a string");
  return value.get<std::string>();
}

Sweep sweep_of(const json& shape, const std::string& where) {
  constexpr const char* such = R"({"op": "gemm+allreduce", "m": [4096], "n": [8192], "k": [4096]})";
  if (!shape.is_object()) throw wrong(where, shape, fmt::format("an object such as {}", such));
  const std::string path = where + ".";
  if (!shape.contains("op")) throw InvalidArgument(fmt::format("{}op is missing", path));
  Sweep sweep;
  sweep.op = word(shape.at("op"), path + "op");
  const OperatorTraits& of_op = traits(parse_op(sweep.op));
  if (!of_op.attends)
    require_known(shape, path, {"op", "m", "n", "k", "routing"});
  else if (of_op.multiplies())
    require_known(shape, path, {"op", "m", "n", "attention"});
  else
    require_known(shape, path, {"op", "m", "attention"});
  if (of_op.attends) sweep.attention = attention_at(shape, path);
  sweep.m = sizes_at(shape, "m", path);
  const std::vector<std::int64_t> by_heads{0};
  sweep.n = of_op.attends && !of_op.multiplies() ? by_heads : sizes_at(shape, "n", path);
  sweep.k = of_op.attends ? by_heads : sizes_at(shape, "k", path);
  if (shape.contains("routing"))
    sweep.routing = list_at(shape, "routing", path, "a list of routings, such as [\"skewed\"]", word);
  return sweep;
}

Suite parse(const std::string& path) {
  constexpr std::size_t largest_bytes = 1 << 20;
  const json object = json::parse(read_file(path, largest_bytes), nullptr, false);
  if (object.is_discarded()) throw InvalidArgument("malformed JSON");
  const auto has = [&](const char* key) { return object.is_object() && object.contains(key); };
  if (!has("shapes") && !(has("models") && has("tokens")))
    throw InvalidArgument("not a suite; expected 'models' and 'tokens', or 'shapes'");
  require_known(object, "", {"models", "tokens", "shapes"});
  Suite suite;
  if (has("models")) {
    suite.models = list_at(object, "models", "", "a list of files, such as [\"config.json\"]", word);
    suite.tokens = sizes_at(object, "tokens", "");
  }
  if (has("shapes")) suite.shapes = list_at(object, "shapes", "", "a list of objects", sweep_of);
  return suite;
}

void add_shapes(const Sweep& sweep, int world, DType dtype, std::vector<NamedProblem>& problems) {
  Problem problem{.op = parse_op(sweep.op), .world = world};
  problem.dtype = dtype;
  problem.transpose_b = problem.traits().multiplies();
  problem.attention = sweep.attention;
  if (problem.traits().routes() == sweep.routing.empty())
    throw InvalidArgument(
        fmt::format("{} {} 'routing'", sweep.op, problem.traits().routes() ? "needs" : "takes no"));
  // A routed problem is named after its routing; others have no name.
  const std::vector<std::string> names =
      problem.traits().routes() ? sweep.routing : std::vector<std::string>{""};
  for (const std::string& name : names)
    for (const std::int64_t m : sweep.m)
      for (const std::int64_t n : sweep.n)
        for (const std::int64_t k : sweep.k) {
          problem.m = m, problem.n = n, problem.k = k;
          if (problem.traits().attends) size_by_heads(problem);
          if (problem.traits().routes())
            problem.routing = std::make_shared<const Routing>(
                shingle::make_routing(parse_routing_pattern(name), world,
                                      std::vector<std::int64_t>(static_cast<std::size_t>(world), m), 0));
          problems.push_back({name, problem});
        }
}

void add_layer(const ModelConfig& model, const std::string& name, LayerOptions options,
               std::vector<NamedProblem>& problems) {
  for (const bool sequence_parallel : {true, false}) {
    options.sequence_parallel = sequence_parallel;
    for (LayerOp& op : layer_operators(model, options)) {
      // Without sequence parallelism, column-parallel products do not communicate.
      if (!sequence_parallel && !op.problem.traits().reduces()) continue;
      op.problem.epilogue = {};
      op.problem.norm = {};
      problems.push_back({name + "." + op.name, std::move(op.problem)});
    }
  }
}

std::vector<NamedProblem> problems_of(const Suite& suite, const std::string& path, int world, DType dtype) {
  std::vector<NamedProblem> problems;
  for (const std::string& file : suite.models) {
    const std::filesystem::path model = std::filesystem::path(path).parent_path() / file;
    const ModelConfig config = read_model_file(model.string());
    note_left_out(model.string(), config);
    for (const std::int64_t tokens : suite.tokens) {
      LayerOptions options;
      options.tp = world;
      options.tokens = tokens;
      options.dtype = dtype;
      add_layer(config, model.stem().string(), options, problems);
    }
  }
  for (const Sweep& sweep : suite.shapes) add_shapes(sweep, world, dtype, problems);
  for (const NamedProblem& named : problems) named.problem.validate();
  return problems;
}

}  // namespace

std::vector<NamedProblem> read_suite(const std::string& path, int world, DType dtype) {
  try {
    return problems_of(parse(path), path, world, dtype);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", path, error.what()));
  }
}

std::string shipped_suite() {
  std::string path = find_shipped("bench/suite.json");
  if (path.empty()) throw InvalidArgument("--suite: the shipped suite was not found; name a file");
  return path;
}

}  // namespace shingle::cli
