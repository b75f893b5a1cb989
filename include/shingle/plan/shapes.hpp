// The matrices of a problem or a workload that the user binds: their roles and their shapes on a rank.
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

/// The roles that the user binds: a and out always; b if there is a product; down for an mlp; keys and values
/// for attention; grad, attended, lse, keys_grad and values_grad for its backward; bias, norm_weight,
/// residual, sum and out_lse if the problem has them; topk_weights where tokens are summed; topk_ids, dropped
/// and, where rows by expert are the output, counts with a capacity.
std::vector<Role> roles_of(const Problem& problem);
/// a, b, payload and out.
std::vector<Role> roles_of(const Workload& workload);
std::vector<Role> roles_of(const Work& work);

/// The stored shape of a role's matrix on a rank:
/// - a: a_rows×k, or k×a_rows with transpose_a
/// - b: k×b_cols, or b_cols×k with transpose_b; b_cols is n except for an mlp
/// - down: inner×n, or n×inner with transpose_b
/// - bias: 1×b_cols; norm_weight: 1×out_cols
/// - keys, values, keys_grad and values_grad: kv_rows×kv_cols
/// - topk_weights and topk_ids: a row for each token, a column for each choice
/// - dropped: 1×2; counts: a row for each source rank, a column for each of the rank's experts
/// - grad and attended: a_rows×k; lse and out_lse: a row for each query, a column for each head
/// - residual, out and sum: out_rows×out_cols
Shape shape_of(const Problem& problem, Role role, int rank);
/// True if the matrix has a row for each token, of experts with a capacity: a call may bring fewer rows.
bool counts_tokens(const Problem& problem, Role role);
/// The same on every rank: a is m×k, b is k×n, payload and out have n columns and the rows of rows_of().
Shape shape_of(const Workload& workload, Role role);
Shape shape_of(const Work& work, Role role, int rank);

/// Type of a role's matrix: f32 for lse, out_lse and topk_weights, i32 for topk_ids, dropped and counts, else
/// that of the problem or the workload.
DType dtype_of(const Problem& problem, Role role);
DType dtype_of(const Work& work, Role role);

/// Bytes of a role's matrix on a rank.
std::int64_t bytes_of(const Problem& problem, Role role, int rank);
std::int64_t bytes_of(const Work& work, Role role, int rank);

/// Bytes of all matrices of a rank that the user binds.
std::int64_t user_bytes(const Problem& problem, int rank);

}  // namespace shingle
