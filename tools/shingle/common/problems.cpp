#include "shingle/common/problems.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "shingle/common/console.hpp"
#include "shingle/workload/model.hpp"
#include "workload/routing_patterns.hpp"

namespace shingle::cli {
namespace {

std::vector<NamedProblem> from_model(const ProblemFlags& flags, int world) {
  if (flags.tokens == 0) throw InvalidArgument("--model needs --tokens");
  const ModelConfig model = model_from_spec(flags.model);
  LayerOptions options;
  options.tp = world;
  options.tokens = flags.tokens;
  options.dtype = flags.dtype.value_or(DType::bf16);
  options.seed = flags.seed;
  options.mlp = flags.mlp;
  options.ep = flags.ep;
  std::vector<NamedProblem> problems;
  std::string known;
  for (LayerOp& op : layer_operators(model, options)) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", op.name);
    const auto& names = flags.op_names;
    if (names.empty() || std::find(names.begin(), names.end(), op.name) != names.end())
      problems.push_back({std::move(op.name), std::move(op.problem)});
  }
  const std::vector<LeftOutOp> left_out = left_out_operators(model);
  for (const std::string& name : flags.op_names) {
    if (std::ranges::find(problems, name, &NamedProblem::name) != problems.end()) continue;
    if (const auto at = std::ranges::find(left_out, name, &LeftOutOp::name); at != left_out.end())
      throw InvalidArgument(
          fmt::format("--layer-ops: '{}' is not supported: {} (one of {})", name, at->reason, known));
    throw InvalidArgument(
        fmt::format("--layer-ops: the layer has no operator '{}' (one of {})", name, known));
  }
  if (flags.op_names.empty()) note_left_out(flags.model, model);
  return problems;
}

/// What the routing says is what tokens choose on the device.
NamedProblem with_slots(const ProblemFlags& flags, Problem problem) {
  const auto choices = make_routing(
      flags, problem, std::vector<std::int64_t>(static_cast<std::size_t>(problem.sources()), flags.m));
  if (choices->world() != problem.sources())
    throw InvalidArgument(fmt::format(
        "{} has tokens of {} ranks, but {} needs those of {}", flags.routing, choices->world(),
        name(problem.op),
        problem.traits().replicates_tokens() ? "one source" : fmt::format("{} ranks", problem.sources())));
  std::int64_t most = 0;
  for (int rank = 0; rank < choices->world(); ++rank)
    most = larger(most, choices->rows(rank) / problem.choices());
  if (flags.m != 0 && most > flags.m)
    throw InvalidArgument(
        fmt::format("--m {}, but a rank of {} has {} tokens", flags.m, flags.routing, most));
  return {"", with_m(std::move(problem), larger(flags.m, most)), choices};
}

/// Sets k of an attention, and n if there is no product, from its heads and the world.
void size_by_heads(Problem& problem) {
  Attention& attention = problem.attention;
  if (attention.kv_heads == 0) attention.kv_heads = attention.heads;
  const std::int64_t ranks = problem.traits().shards_tokens() ? 1 : problem.world;
  problem.k = larger(attention.heads / ranks, 1) * attention.head_dim;
  if (!problem.traits().multiplies()) problem.n = problem.k;
}

NamedProblem from_sizes(const ProblemFlags& flags, int world) {
  if (!flags.op)
    throw InvalidArgument("no operator: give --op with --m, --n and --k, or --model with --tokens");
  Problem problem;
  problem.op = *flags.op;
  problem.world = world;
  problem.m = flags.m;
  problem.n = flags.n;
  problem.k = flags.k;
  problem.inner = flags.inner;
  problem.dtype = flags.dtype.value_or(DType::f32);
  if (problem.traits().is_collective()) {
    if (flags.k != 0) throw InvalidArgument(fmt::format("{} has no GEMM: leave out --k", name(problem.op)));
    problem.k = problem.n;
  }
  apply_flags(flags, problem);
  if (problem.traits().attends) {
    if (flags.attention.heads == 0) throw InvalidArgument(fmt::format("{} needs --heads", name(problem.op)));
    if (flags.attention.head_dim == 0)
      throw InvalidArgument(fmt::format("{} needs --head-dim", name(problem.op)));
    if (flags.k != 0 || (flags.n != 0 && !problem.traits().multiplies()))
      throw InvalidArgument(fmt::format("{} has --heads and --head-dim instead of {}", name(problem.op),
                                        problem.traits().multiplies() ? "--k" : "--n and --k"));
    size_by_heads(problem);
  }
  if (problem.traits().grouped && flags.experts.count == 0)
    throw InvalidArgument(fmt::format("{} needs --experts", name(problem.op)));
  const bool routed = problem.traits().routes();
  const auto need = [&](const char* flag, std::int64_t size) {
    if (size == 0) throw InvalidArgument(fmt::format("{} needs {}", name(problem.op), flag));
  };
  if (!routed) need("--m", flags.m);
  need("--n", problem.n);
  need("--k", problem.k);
  if (problem.traits().chains()) need("--inner", flags.inner);
  if (problem.traits().grouped && problem.has_slots()) return with_slots(flags, problem);
  if (routed) {
    problem.routing = make_routing(
        flags, problem, std::vector<std::int64_t>(static_cast<std::size_t>(problem.sources()), flags.m));
    if (problem.m == 0)
      for (int rank = 0; rank < problem.routing->world(); ++rank)
        problem.m = larger(problem.m, problem.routing->rows(rank) / problem.choices());
  }
  return {"", problem};
}

}  // namespace

void note_left_out(const std::string& file, const ModelConfig& model) {
  const std::vector<LeftOutOp> left_out = left_out_operators(model);
  if (left_out.empty()) return;
  std::string names;
  for (const LeftOutOp& op : left_out) names += (names.empty() ? "" : ", ") + op.name;
  print_note(fmt::format("{}: without {}: {}", file, names, left_out[0].reason));
}

std::shared_ptr<const Routing> make_routing(const ProblemFlags& flags, const Problem& problem,
                                            const std::vector<std::int64_t>& rows) {
  if (flags.routing.find_first_of("./") != std::string::npos ||
      std::filesystem::is_regular_file(flags.routing))
    return std::make_shared<Routing>(
        read_routing_file(flags.routing, problem.experts.count, problem.traits().expert_split()));
  const RoutingPattern pattern = parse_routing_pattern(flags.routing.empty() ? "random" : flags.routing);
  if (*std::max_element(rows.begin(), rows.end()) == 0)
    throw InvalidArgument(fmt::format("{} needs --m, or a routing file in --routing", name(problem.op)));
  return std::make_shared<Routing>(problem.traits().grouped
                                       ? make_topk_routing(pattern, problem.sources(), rows, problem.experts,
                                                           flags.seed, problem.traits().expert_split())
                                       : shingle::make_routing(pattern, problem.world, rows, flags.seed));
}

void apply_flags(const ProblemFlags& flags, Problem& problem) {
  if (!flags.routing.empty() && !problem.traits().routes())
    throw InvalidArgument(fmt::format("{} routes no rows: leave out --routing", name(problem.op)));
  problem.transpose_a = flags.transpose_a;
  problem.transpose_b = flags.transpose_b;
  problem.epilogue = flags.epilogue;
  problem.f32_sums = flags.f32_sums;
  problem.attention = flags.attention;
  problem.experts = flags.experts;
  if (problem.traits().grouped && flags.experts.topk == 0) problem.experts.topk = 1;
  problem.norm.enabled = flags.norm;
  problem.norm.residual = flags.residual;
  problem.row_order = flags.row_order;
  problem.row_block = flags.row_block;
}

std::vector<NamedProblem> make_problems(const ProblemFlags& flags, int world) {
  std::vector<NamedProblem> problems;
  if (!flags.model.empty()) {
    problems = from_model(flags, world);
  } else {
    problems.push_back(from_sizes(flags, world));
  }
  for (const NamedProblem& named : problems) named.problem.validate();
  return problems;
}

}  // namespace shingle::cli
