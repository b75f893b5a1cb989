#include "matrix.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shingle/base/error.hpp"

namespace shingle {
namespace {

std::string text_of(const Shape& shape, DType dtype) {
  return fmt::format("{}x{} {}", shape.rows, shape.cols, name(dtype));
}

}  // namespace

InvalidArgument wrong_matrix(int rank, Role role, const std::string& what) {
  return InvalidArgument(fmt::format("matrix '{}' of rank {}: {}", name(role), rank, what), rank);
}

void require_role(const Work& work, int rank, Role role) {
  const std::vector<Role> roles = roles_of(work);
  if (std::ranges::find(roles, role) == roles.end())
    throw InvalidArgument(fmt::format("{} has no matrix '{}'", describe(work), name(role)), rank);
}

void require_fits(const Work& work, int rank, Role role, const MatrixView& matrix, bool of_call) {
  require_role(work, rank, role);
  Shape wanted = shape_of(work, role, rank);
  const auto* const problem = std::get_if<Problem>(&work);
  if (of_call && problem != nullptr && counts_tokens(*problem, role) && matrix.shape.rows >= 0)
    wanted.rows = std::min(wanted.rows, matrix.shape.rows);
  if (matrix.shape != wanted || matrix.dtype != dtype_of(work, role))
    throw wrong_matrix(rank, role,
                       fmt::format("{} given, expected {} ({} elements)", text_of(matrix.shape, matrix.dtype),
                                   text_of(wanted, dtype_of(work, role)), wanted.elements()));
  if (matrix.row_stride != 0 && matrix.row_stride < wanted.cols)
    throw wrong_matrix(
        rank, role,
        fmt::format("row_stride = {} given, expected 0 (densely packed) or at least its {} columns",
                    matrix.row_stride, wanted.cols));
  if (matrix.data == nullptr && wanted.elements() > 0) throw wrong_matrix(rank, role, "null given");
}

void require_same_tokens(const Problem& problem, std::span<const CallMatrix> matrices) {
  if (!problem.has_slots()) return;
  for (const CallMatrix& one : matrices)
    for (const CallMatrix& ids : matrices)
      if (ids.role == Role::topk_ids && problem.source_of(ids.rank) == problem.source_of(one.rank) &&
          counts_tokens(problem, one.role) && ids.memory.rows != one.memory.rows)
        throw wrong_matrix(one.rank, one.role,
                           fmt::format("{} rows given, but topk_ids has {}",
                                       one.memory.rows < 0 ? problem.m : one.memory.rows,
                                       ids.memory.rows < 0 ? problem.m : ids.memory.rows));
}

}  // namespace shingle
