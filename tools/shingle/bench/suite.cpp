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
  Op op;
  std::vector<std::int64_t> m{}, n{0}, k{0}, inner{0};
  std::vector<std::string> routing{""};  ///< for an operator that routes
  Attention attention{};                 ///< for an operator that attends
  Experts experts{};                     ///< for an operator with experts
  Activation activation = Activation::none;
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

void require_known(const json& object, const std::string& path, const std::vector<const char*>& keys) {
  for (const auto& [key, value] : object.items())
    if (std::ranges::find(keys, key) == keys.end())
      throw InvalidArgument(
          fmt::format("{}{:.40} is unknown; expected one of: {}", path, key, fmt::join(keys, ", ")));
}

const json& object_at(const json& shape, const char* key, const std::string& where, const char* such,
                      const std::vector<const char*>& keys) {
  if (!shape.contains(key)) throw InvalidArgument(fmt::format("{} is missing; expected {}", where, such));
  const json& object = shape.at(key);
  if (!object.is_object()) throw wrong(where, object, fmt::format("an object such as {}", such));
  require_known(object, where + ".", keys);
  return object;
}

Attention attention_at(const json& shape, const std::string& path) {
  const std::string where = path + "attention";
  const json& object =
      object_at(shape, "attention", where, R"({"heads": 64, "kv_heads": 8, "head_dim": 128, "causal": true})",
                {"heads", "kv_heads", "head_dim", "causal"});
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

Experts experts_at(const json& shape, const std::string& path) {
  const std::string where = path + "experts";
  const json& object = object_at(shape, "experts", where, R"({"count": 8, "topk": 2, "capacity": 512})",
                                 {"count", "topk", "capacity"});
  const auto extent = [&](const char* key, std::int32_t otherwise) {
    return object.contains(key) ? static_cast<std::int32_t>(size_of(object.at(key), where + "." + key))
                                : otherwise;
  };
  const Experts experts{
      .count = extent("count", 0), .topk = extent("topk", 1), .capacity = extent("capacity", 0)};
  if (experts.count == 0) throw InvalidArgument(fmt::format("{} needs count", where));
  return experts;
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
  Sweep sweep{.op = parse_op(word(shape.at("op"), path + "op"))};
  const OperatorTraits& of_op = traits(sweep.op);
  const bool has_n = !of_op.attends || of_op.multiplies(), has_k = !of_op.attends && !of_op.is_collective();
  std::vector<const char*> keys{"op", "m"};
  const auto take = [&](bool takes, std::initializer_list<const char*> also) {
    if (takes) keys.insert(keys.end(), also);
  };
  take(has_n, {"n"});
  take(has_k, {"k"});
  take(of_op.chains(), {"inner"});
  take(of_op.grouped, {"experts", "activation"});
  take(of_op.attends, {"attention"});
  take(!of_op.attends, {"routing"});
  require_known(shape, path, keys);
  if (of_op.attends) sweep.attention = attention_at(shape, path);
  if (of_op.grouped) sweep.experts = experts_at(shape, path);
  sweep.m = sizes_at(shape, "m", path);
  if (has_n) sweep.n = sizes_at(shape, "n", path);
  if (has_k) sweep.k = sizes_at(shape, "k", path);
  if (of_op.chains()) sweep.inner = sizes_at(shape, "inner", path);
  if (shape.contains("activation"))
    sweep.activation = parse_activation(word(shape.at("activation"), path + "activation"));
  if (of_op.routes() != shape.contains("routing"))
    throw InvalidArgument(
        fmt::format("{} {} 'routing'", name(sweep.op), of_op.routes() ? "needs" : "takes no"));
  if (of_op.routes())
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
  ProblemFlags flags;
  flags.op = sweep.op;
  flags.dtype = dtype;
  flags.transpose_b = traits(sweep.op).multiplies();
  flags.attention = sweep.attention;
  flags.experts = sweep.experts;
  flags.epilogue.activation = sweep.activation;
  for (const std::string& routing : sweep.routing) {
    if (!routing.empty()) parse_routing_pattern(routing);
    flags.routing = routing;
    for (const std::int64_t m : sweep.m)
      for (const std::int64_t n : sweep.n)
        for (const std::int64_t k : sweep.k)
          for (const std::int64_t inner : sweep.inner) {
            flags.m = m, flags.n = n, flags.k = k, flags.inner = inner;
            problems.push_back(make_problems(flags, world).at(0));
            problems.back().name = routing;
          }
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
