#include "shingle/suite.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "shingle/api/model.hpp"
#include "shingle/base/file.hpp"

namespace shingle::cli {
namespace {

using nlohmann::json;

struct Suite {
  std::vector<std::string> models;
  std::vector<std::int64_t> tokens;
};

Suite parse(const std::string& path) {
  constexpr std::size_t largest_bytes = 1 << 20;
  const json object = json::parse(read_file(path, largest_bytes), nullptr, false);
  if (!object.is_object() || !object.contains("models") || !object.contains("tokens"))
    throw InvalidArgument(fmt::format("{}: no suite, which has 'models' and 'tokens'", path));
  Suite suite;
  try {
    suite = {object.at("models").get<std::vector<std::string>>(),
             object.at("tokens").get<std::vector<std::int64_t>>()};
  } catch (const json::exception&) {
    throw InvalidArgument(fmt::format("{}: 'models' are not files, or 'tokens' not numbers", path));
  }
  return suite;
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
    for (const std::int64_t tokens : suite.tokens) {
      LayerOptions options;
      options.tp = world;
      options.tokens = tokens;
      options.dtype = dtype;
      add_layer(read_model_file(model.string()), model.stem().string(), options, problems);
    }
  }
  for (const NamedProblem& named : problems) named.problem.validate();
  return problems;
}

std::string shipped_suite() {
  std::string path = find_shipped("bench/suite.json");
  if (path.empty()) throw InvalidArgument("--suite: the suite was not found; name a file");
  return path;
}

}  // namespace shingle::cli
