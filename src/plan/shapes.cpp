#include "shingle/plan/shapes.hpp"

namespace shingle {

std::vector<Role> roles_of(const Problem& problem) {
  std::vector<Role> roles{Role::a};
  if (problem.traits().multiplies()) roles.push_back(Role::b);
  if (problem.epilogue.bias) roles.push_back(Role::bias);
  if (problem.norm.residual) roles.push_back(Role::residual);
  if (problem.norm.enabled) roles.push_back(Role::norm_weight);
  if (problem.traits().chains()) roles.push_back(Role::down);
  if (problem.traits().attends) roles.insert(roles.end(), {Role::keys, Role::values});
  if (problem.traits().combines()) roles.push_back(Role::topk_weights);
  if (problem.has_slots()) roles.push_back(Role::topk_ids);
  if (problem.traits().backward)
    roles.insert(roles.end(), {Role::grad, Role::attended, Role::lse, Role::keys_grad, Role::values_grad});
  roles.push_back(Role::out);
  if (problem.norm.residual) roles.push_back(Role::sum);
  if (problem.attention.returns_lse) roles.push_back(Role::out_lse);
  if (problem.has_slots()) roles.push_back(Role::dropped);
  if (problem.has_slots() && !problem.traits().combines()) roles.push_back(Role::counts);
  return roles;
}

Shape shape_of(const Problem& problem, Role role, int rank) {
  const auto turned = [](Shape shape, bool transpose) {
    return transpose ? Shape{shape.cols, shape.rows} : shape;
  };
  const auto stacked = [&](Shape weight) { return Shape{problem.weights() * weight.rows, weight.cols}; };
  switch (role) {
    case Role::a:
      return turned({problem.a_rows(rank), problem.k}, problem.transpose_a);
    case Role::b:
      return stacked(turned({problem.k, problem.b_cols()}, problem.transpose_b));
    case Role::down:
      return stacked(turned({problem.inner, problem.n}, problem.transpose_b));
    case Role::bias:
      return {1, problem.b_cols()};
    case Role::norm_weight:
      return {1, problem.out_cols()};
    case Role::keys:
    case Role::values:
    case Role::keys_grad:
    case Role::values_grad:
      return {problem.kv_rows(rank), problem.kv_cols()};
    case Role::topk_weights:
      return {problem.out_rows(rank), problem.experts.topk};
    case Role::topk_ids:
      return {problem.m, problem.experts.topk};
    case Role::dropped:
      return {1, 2};
    case Role::counts:
      return {problem.world, problem.weights()};
    case Role::grad:
    case Role::attended:
      return {problem.a_rows(rank), problem.k};
    case Role::lse:
    case Role::out_lse:
      return {problem.a_rows(rank), problem.attention.heads};
    case Role::residual:
    case Role::out:
    case Role::sum:
      return {problem.out_rows(rank), problem.out_cols()};
    case Role::payload:
    case Role::internal:
      break;
  }
  return {};
}

bool counts_tokens(const Problem& problem, Role role) {
  if (!problem.has_slots()) return false;
  return role == Role::topk_ids || role == Role::topk_weights ||
         (role == Role::a && problem.traits().takes_tokens()) ||
         (role == Role::out && problem.traits().combines());
}

std::vector<Role> roles_of(const Workload&) {
  return {Role::a, Role::b, Role::payload, Role::out};
}

Shape shape_of(const Workload& workload, Role role) {
  switch (role) {
    case Role::a:
      return {workload.m(), workload.k()};
    case Role::b:
      return {workload.b_rows(), workload.n()};
    case Role::payload:
      return {rows_of(workload).payload, workload.n()};
    case Role::out:
      return {rows_of(workload).out, workload.n()};
    default:
      return {};
  }
}

std::vector<Role> roles_of(const Work& work) {
  return std::visit([](const auto& of) { return roles_of(of); }, work);
}

Shape shape_of(const Work& work, Role role, int rank) {
  const auto* workload = std::get_if<Workload>(&work);
  return workload ? shape_of(*workload, role) : shape_of(std::get<Problem>(work), role, rank);
}

namespace {

/// Of a role's matrix; `operands`: of all that have the type of the problem or the workload.
DType type_of(Role role, DType operands) {
  switch (role) {
    case Role::lse:
    case Role::out_lse:
    case Role::topk_weights:
      return DType::f32;
    case Role::topk_ids:
    case Role::dropped:
    case Role::counts:
      return DType::i32;
    default:
      return operands;
  }
}

}  // namespace

DType dtype_of(const Problem& problem, Role role) {
  return problem.f32_sums && role == Role::out ? DType::f32 : type_of(role, problem.dtype);
}

DType dtype_of(const Work& work, Role role) {
  const auto* problem = std::get_if<Problem>(&work);
  return problem ? dtype_of(*problem, role) : type_of(role, dtype_of(work));
}

std::int64_t bytes_of(const Problem& problem, Role role, int rank) {
  return shape_of(problem, role, rank).elements() *
         static_cast<std::int64_t>(size_bytes(dtype_of(problem, role)));
}

std::int64_t bytes_of(const Work& work, Role role, int rank) {
  return shape_of(work, role, rank).elements() * static_cast<std::int64_t>(size_bytes(dtype_of(work, role)));
}

std::int64_t user_bytes(const Problem& problem, int rank) {
  std::int64_t bytes = 0;
  for (const Role role : roles_of(problem)) bytes += bytes_of(problem, role, rank);
  return bytes;
}

}  // namespace shingle
