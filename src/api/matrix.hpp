// Checks of a matrix that the user passes for a role of a problem.
#pragma once

#include <span>
#include <string>

#include "shingle/api/operator.hpp"
#include "shingle/backend/backend.hpp"
#include "shingle/base/error.hpp"

namespace shingle {

/// Throws InvalidArgument that names matrix and rank if the problem has no such matrix, or if shape, type or
/// row stride are wrong, or if the memory is null and the matrix has elements. `of_call`: a matrix of tokens
/// may have fewer rows (counts_tokens()).
void require_fits(const Work& work, int rank, Role role, const MatrixView& matrix, bool of_call = false);
/// The part that does not need a view.
void require_role(const Work& work, int rank, Role role);
/// Throws InvalidArgument unless all matrices of a rank that have a row for each token have as many; those of
/// all ranks, if these have the same tokens. Only of experts with a capacity may they have fewer than the
/// problem.
void require_same_tokens(const Problem& problem, std::span<const CallMatrix> matrices);

/// What is wrong with a matrix, as an exception: "matrix 'a' of rank 0: …".
InvalidArgument wrong_matrix(int rank, Role role, const std::string& what);

}  // namespace shingle
