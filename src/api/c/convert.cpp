#include "convert.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "api/largest_routing.hpp"
#include "shingle/base/units.hpp"
#include "structs.hpp"

namespace shingle::c {
namespace {

// No struct ends with padding, so that a field added there makes it larger.
template <class Struct, class Field>
constexpr bool ends_with(std::size_t offset_of_last, Field Struct::*) {
  return sizeof(Struct) == offset_of_last + sizeof(Field);
}
#define SHINGLE_ENDS_WITH(type, field) static_assert(ends_with(offsetof(type, field), &type::field))
SHINGLE_ENDS_WITH(shingle_world_options, reserved);
SHINGLE_ENDS_WITH(shingle_context_options, registered_bytes);
SHINGLE_ENDS_WITH(shingle_operator, workers);
SHINGLE_ENDS_WITH(shingle_matrix, reserved);
SHINGLE_ENDS_WITH(shingle_routing, reserved);
SHINGLE_ENDS_WITH(shingle_arguments, length_count);
#undef SHINGLE_ENDS_WITH

/// Does an action; an InvalidArgument then names the field in front.
template <class Action>
auto in_field(const std::string& field, Action&& action) {
  try {
    return action();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(field + ": " + error.what(), error.rank());
  }
}

bool to_bool(std::int32_t value, const std::string& field) {
  if (value != 0 && value != 1) throw InvalidArgument(fmt::format("{} = {} must be 0 or 1", field, value));
  return value == 1;
}

/// A time in microseconds; 0 is the default.
double to_timeout(double value, double otherwise, const char* field) {
  if (!(value >= 0) || !std::isfinite(value))
    throw InvalidArgument(fmt::format("{} = {} must be positive, or 0 for {:g}", field, value, otherwise));
  return value == 0 ? otherwise : value;
}

DType to_dtype(std::int32_t value, const std::string& field) {
  switch (value) {
    case SHINGLE_F32:
      return DType::f32;
    case SHINGLE_BF16:
      return DType::bf16;
    case SHINGLE_F16:
      return DType::f16;
    case SHINGLE_I32:
      return DType::i32;
    default:
      throw InvalidArgument(
          fmt::format("{} = {} is not 0 (SHINGLE_F32), 1 (SHINGLE_BF16), 2 (SHINGLE_F16) or 3 (SHINGLE_I32)",
                      field, value));
  }
}

Role to_role(std::int32_t value, const std::string& field) {
  static constexpr Role roles[] = {Role::a,           Role::b,         Role::bias,        Role::residual,
                                   Role::norm_weight, Role::keys,      Role::values,      Role::down,
                                   Role::out,         Role::sum,       Role::grad,        Role::attended,
                                   Role::lse,         Role::keys_grad, Role::values_grad, Role::topk_weights,
                                   Role::out_lse,     Role::topk_ids,  Role::dropped,     Role::counts};
  if (value < 0 || static_cast<std::size_t>(value) >= std::size(roles))
    throw InvalidArgument(fmt::format("{} = {} is outside [0 (SHINGLE_A), {} (SHINGLE_COUNTS)]", field, value,
                                      int{SHINGLE_COUNTS}));
  return roles[value];
}

/// "chunked chunks=4" as params.
Params parsed_params(std::string_view text) {
  std::vector<std::string> words = split(text, ' ');
  std::erase(words, "");
  if (words.empty()) throw InvalidArgument("is empty; expected a mechanism, such as 'fused', or NULL");
  const Mechanism mechanism = parse_mechanism(words.front());
  ParamList params;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    params.push_back(
        {words[i].substr(0, equals), equals == std::string::npos ? "" : words[i].substr(equals + 1)});
  }
  return parse_params(mechanism, params, false);
}

std::shared_ptr<const Routing> routing_of_largest(const Problem& problem) {
  if (problem.m < 0 || problem.m > max_extent)
    throw InvalidArgument(fmt::format("operator.m = {} is outside [0, {}]", problem.m, max_extent));
  const auto [experts, topk, capacity] = problem.experts;
  if (problem.traits().grouped && (experts < 1 || topk < 1))
    throw InvalidArgument(fmt::format("operator.experts = {} and operator.topk = {} must be positive for {}",
                                      experts, topk, name(problem.op)));
  if (problem.traits().grouped && capacity > 0)
    return in_field("operator.capacity", [&] {
      return std::make_shared<const Routing>(
          Routing::slots(problem.sources(), experts, capacity, problem.traits().expert_split()));
    });
  return in_field("operator.experts", [&] { return all_to_first(problem); });
}

Epilogue to_epilogue(const shingle_operator& given) {
  Epilogue epilogue{.bias = to_bool(given.bias, "operator.bias")};
  if (given.activation != nullptr)
    epilogue.activation = in_field("operator.activation", [&] { return parse_activation(given.activation); });
  if (given.scale != 0) epilogue.scale = static_cast<float>(given.scale);
  return epilogue;
}

Norm to_norm(const shingle_operator& given) {
  Norm norm{.enabled = to_bool(given.norm, "operator.norm"),
            .residual = to_bool(given.residual, "operator.residual")};
  if (given.norm_epsilon != 0) norm.epsilon = static_cast<float>(given.norm_epsilon);
  return norm;
}

RowOrder to_row_order(std::int32_t value) {
  switch (value) {
    case SHINGLE_ROWS_CONTIGUOUS:
      return RowOrder::contiguous;
    case SHINGLE_ROWS_BLOCK_CYCLIC:
      return RowOrder::block_cyclic;
    case SHINGLE_ROWS_ZIGZAG:
      return RowOrder::zigzag;
    default:
      throw InvalidArgument(
          fmt::format("operator.row_order = {} is not 0 (SHINGLE_ROWS_CONTIGUOUS), 1 "
                      "(SHINGLE_ROWS_BLOCK_CYCLIC) or 2 (SHINGLE_ROWS_ZIGZAG)",
                      value));
  }
}

}  // namespace

WorldRequest to_request(const shingle_world_options* given) {
  const auto read = read_options(given, "options");
  WorldRequest request;
  WorldOptions& options = request.options;
  if (read.backend != nullptr) options.backend = read.backend;
  if (read.link != nullptr) options.link = in_field("options.link", [&] { return parse_link(read.link); });
  options.timeout_us = to_timeout(read.timeout_us, options.timeout_us, "options.timeout_us");
  if (read.workers_per_rank < 0)
    throw InvalidArgument(
        fmt::format("options.workers_per_rank = {} must not be negative", read.workers_per_rank));
  options.workers_per_rank = read.workers_per_rank;
  if (read.ranks < 0)
    throw InvalidArgument(fmt::format("options.ranks = {} must not be negative", read.ranks));
  const BackendEntry& backend = in_field(
      "options.backend", [&]() -> const BackendEntry& { return find_backend(backend_name(options)); });
  if (read.allgather != nullptr)
    options.bootstrap =
        Bootstrap{read.rank, read.ranks, read.device,
                  [allgather = read.allgather, user = read.user, ranks = read.ranks](std::string_view own) {
                    std::string all(own.size() * static_cast<std::size_t>(ranks), '\0');
                    if (const int failed = allgather(user, own.data(), all.data(), own.size()); failed != 0)
                      throw Timeout(fmt::format("options.allgather returned {}", failed));
                    return all;
                  }};
  if (read.communicator_count < 0 || (read.communicator_count > 0) != (read.communicators != nullptr))
    throw InvalidArgument(fmt::format("options.communicator_count = {} does not match options.communicators",
                                      read.communicator_count));
  for (std::int32_t i = 0; i < read.communicator_count; ++i)
    request.communicators.push_back(static_cast<ncclComm*>(read.communicators[i]));
  options.communicators = request.communicators;
  const bool counts = read.ranks == 0 && !options.bootstrap && options.communicators.empty();
  request.ranks = counts ? backend.ranks() : read.ranks;
  return request;
}

ContextOptions to_options(const shingle_context_options* given) {
  const auto read = read_options(given, "options");
  ContextOptions options;
  if (read.mechanism != nullptr)
    options.choose = [params = in_field("options.mechanism", [&] { return parsed_params(read.mechanism); })](
                         const Problem&) { return params; };
  options.arena_bytes = read.arena_bytes;
  options.workers = read.workers;
  if (read.most_plans < 0)
    throw InvalidArgument(fmt::format("options.most_plans = {} must be positive, or 0 for {}",
                                      read.most_plans, options.most_plans));
  if (read.most_plans > 0) options.most_plans = static_cast<std::size_t>(read.most_plans);
  options.timeout_us = to_timeout(read.timeout_us, options.timeout_us, "options.timeout_us");
  options.registered_bytes = read.registered_bytes;
  options.verify = to_bool(read.verify, "options.verify");
  return options;
}

Problem to_problem(const shingle_operator* given, int world) {
  const auto read = read_struct<shingle_operator>(given, "operator");
  require_not_null(read.op, "operator.op");
  Problem problem{.op = in_field("operator.op", [&] { return parse_op(read.op); }),
                  .world = world,
                  .m = read.m,
                  .n = read.n,
                  .k = read.k,
                  .inner = read.inner,
                  .dtype = to_dtype(read.dtype, "operator.dtype"),
                  .transpose_a = to_bool(read.transpose_a, "operator.transpose_a"),
                  .transpose_b = to_bool(read.transpose_b, "operator.transpose_b"),
                  .epilogue = to_epilogue(read),
                  .f32_sums = to_bool(read.f32_sums, "operator.f32_sums"),
                  .norm = to_norm(read),
                  .row_order = to_row_order(read.row_order),
                  .row_block = read.row_block,
                  .attention = {.heads = read.heads,
                                .kv_heads = read.kv_heads,
                                .head_dim = read.head_dim,
                                .causal = to_bool(read.causal, "operator.causal"),
                                .returns_lse = to_bool(read.returns_lse, "operator.returns_lse")},
                  .experts = {read.experts, read.topk, read.capacity}};
  if (problem.traits().routes()) problem.routing = routing_of_largest(problem);
  in_field("operator", [&] { problem.validate(); });
  return problem;
}

DeclareOptions to_declare_options(const shingle_operator* given) {
  const auto read = read_struct<shingle_operator>(given, "operator");
  DeclareOptions options{.m_step = read.m_step == 0 ? 1 : read.m_step, .workers = read.workers};
  if (read.mechanism != nullptr)
    options.params = in_field("operator.mechanism", [&] { return parsed_params(read.mechanism); });
  return options;
}

std::shared_ptr<const Routing> to_routing(const shingle_routing* given, const Problem& largest) {
  if (given == nullptr) return {};
  const auto read = read_struct<shingle_routing>(given, "routing");
  require_not_null(read.rows, "routing.rows");
  require_not_null(read.destinations, "routing.destinations");
  std::vector<std::vector<std::int32_t>> table;
  for (int rank = 0; rank < largest.sources(); ++rank) {
    const std::int64_t rows = read.rows[rank];
    if (rows < 0 || rows > max_extent)
      throw InvalidArgument(fmt::format("routing.rows[{}] = {} is outside [0, {}]", rank, rows, max_extent));
    const std::int32_t* const to = read.destinations[rank];
    if (rows > 0) require_not_null(to, fmt::format("routing.destinations[{}]", rank).c_str());
    table.emplace_back(to, to + rows);
  }
  if (read.reserved != 0)
    throw InvalidArgument(fmt::format("routing.reserved = {} must be 0", read.reserved));
  return in_field("routing", [&] {
    return std::make_shared<const Routing>(
        read.experts == 0
            ? Routing(std::move(table))
            : Routing::to_experts(std::move(table), read.experts, largest.traits().expert_split()));
  });
}

std::vector<Argument> to_arguments(const shingle_matrix* given, std::int32_t count) {
  std::vector<Argument> arguments;
  for (const shingle_matrix& at : read_array(given, count, "arguments.matrices")) {
    const std::string element = fmt::format("arguments.matrices[{}]", arguments.size());
    if (at.reserved != 0)
      throw InvalidArgument(fmt::format("{}.reserved = {} must be 0", element, at.reserved));
    arguments.push_back(
        {at.rank,
         to_role(at.role, element + ".role"),
         {at.data, {at.rows, at.cols}, to_dtype(at.dtype, element + ".dtype"), at.row_stride}});
  }
  return arguments;
}

std::span<const std::int64_t> to_lengths(const shingle_arguments& given, std::int64_t m) {
  const std::int64_t count = given.length_count;
  if (count < 0 || (count > 0) != (given.lengths != nullptr))
    throw InvalidArgument(fmt::format("arguments.length_count = {} does not match arguments.lengths", count));
  const std::span<const std::int64_t> lengths{given.lengths, static_cast<std::size_t>(count)};
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 1 || lengths[i] > max_extent)
      throw InvalidArgument(
          fmt::format("arguments.lengths[{}] = {} is outside [1, {}]", i, lengths[i], max_extent));
    tokens += lengths[i];
  }
  if (count > 0 && tokens != m)
    throw InvalidArgument(
        fmt::format("arguments.lengths has {} tokens in {} sequences, but m = {}", tokens, count, m));
  return lengths;
}

}  // namespace shingle::c
