#include "shingle/suite.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "shingle/api/model.hpp"
#include "shingle/api/routing_patterns.hpp"
#include "shingle/base/file.hpp"

namespace shingle::cli {
namespace {

using nlohmann::json;

/// Every combination of these is a problem.
struct Sweep {
  std::string op;
  std::vector<std::int64_t> m, n, k;
  std::vector<std::string> routing;  ///< of an operator that routes
};

struct Suite {
  std::vector<std::string> models;
  std::vector<std::int64_t> tokens;
  std::vector<Sweep> shapes;
};

Suite parse(const std::string& path) {
  constexpr std::size_t largest_bytes = 1 << 20;
  const json object = json::parse(read_file(path, largest_bytes), nullptr, false);
  const auto has = [&](const char* key) { return object.is_object() && object.contains(key); };
  if (!has("shapes") && !(has("models") && has("tokens")))
    throw InvalidArgument(fmt::format("{}: no suite, which has 'models' and 'tokens', or 'shapes'", path));
  Suite suite;
  try {
    suite.models = object.value("models", suite.models);
    suite.tokens = object.value("tokens", suite.tokens);
    for (const json& shape : object.value("shapes", json::array())) {
      Sweep& sweep = suite.shapes.emplace_back();
      shape.at("op").get_to(sweep.op);
      shape.at("m").get_to(sweep.m);
      shape.at("n").get_to(sweep.n);
      shape.at("k").get_to(sweep.k);
      sweep.routing = shape.value("routing", sweep.routing);
    }
  } catch (const json::exception&) {
    throw InvalidArgument(fmt::format(
        "{}: 'models' are not files, 'tokens' not numbers, or 'shapes' not such as {{\"op\": "
        "\"gemm+alltoall\", \"m\": [4096], \"n\": [8192], \"k\": [4096], \"routing\": [\"skewed\"]}}",
        path));
  }
  return suite;
}

void add_shapes(const Sweep& sweep, int world, DType dtype, std::vector<NamedProblem>& problems) {
  Problem problem{.op = parse_op(sweep.op), .world = world};
  problem.dtype = dtype;
  problem.transpose_b = true;
  if (problem.routes() == sweep.routing.empty())
    throw InvalidArgument(fmt::format("{} {} 'routing'", sweep.op, problem.routes() ? "needs" : "has no"));
  // What routes goes by the name of how; what does not needs none.
  const std::vector<std::string> names = problem.routes() ? sweep.routing : std::vector<std::string>{""};
  for (const std::string& name : names)
    for (const std::int64_t m : sweep.m)
      for (const std::int64_t n : sweep.n)
        for (const std::int64_t k : sweep.k) {
          problem.m = m, problem.n = n, problem.k = k;
          if (problem.routes())
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
      // Without sequence parallelism column-parallel products do not communicate.
      if (!sequence_parallel && !op.problem.reduces()) continue;
      op.problem.epilogue = {};
      op.problem.norm = {};
      problems.push_back({name + "." + op.name, std::move(op.problem)});
    }
  }
}

}  // namespace

std::vector<NamedProblem> read_suite(const std::string& path, int world, DType dtype) {
  const Suite suite = parse(path);
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
  try {
    for (const Sweep& sweep : suite.shapes) add_shapes(sweep, world, dtype, problems);
    for (const NamedProblem& named : problems) named.problem.validate();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", path, error.what()));
  }
  return problems;
}

std::string shipped_suite() {
  std::string path = find_shipped("bench/suite.json");
  if (path.empty()) throw InvalidArgument("--suite: the suite was not found; name a file");
  return path;
}

}  // namespace shingle::cli
