// The matrices of a problem as the user holds them: which there are, and how large each is on a rank.
#pragma once

#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Rows and columns of a matrix as stored, row-major and densely packed.
struct Shape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  std::int64_t elements() const { return rows * cols; }
  bool operator==(const Shape&) const = default;
};

/// The roles that the user binds: a, b and out always; down of an mlp; bias, norm_weight, residual and sum
/// where the problem has them.
std::vector<Role> roles_of(const Problem& problem);

/// The stored shape of a role's matrix on a rank: a is a_rows×k, or k×a_rows with transpose_a; b is k×b_cols,
/// or b_cols×k with transpose_b (b_cols is n but for an mlp); down inner×n, or n×inner; bias 1×b_cols;
/// norm_weight 1×out_cols; residual, out and sum out_rows×out_cols.
Shape shape_of(const Problem& problem, Role role, int rank);

/// The same in bytes.
std::int64_t bytes_of(const Problem& problem, Role role, int rank);

/// Bytes of all of a rank's matrices that the user binds.
std::int64_t user_bytes(const Problem& problem, int rank);

}  // namespace shingle
