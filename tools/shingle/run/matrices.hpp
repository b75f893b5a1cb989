// The user's own matrices, split over the ranks as the operator needs them, and the result assembled again.
//
// gemm+allreduce and gemm+reducescatter split K: rank r has the r-th part of A's columns and of B's rows.
// allgather+gemm splits A's rows and B's columns. gemm+alltoall splits A's rows, and every rank has all of B.
// For gemm, every rank has both whole. Parts are equal: the last ones are padded with zeros if necessary,
// which changes no result.
#pragma once

#include <memory>

#include "check/inputs.hpp"
#include "check/oracle.hpp"
#include "shingle/common/flags.hpp"

namespace shingle::cli {

class UserMatrices {
 public:
  /// Reads the headers only. Throws InvalidArgument if the files do not fit each other, the operator or the
  /// flags.
  UserMatrices(const MatrixFlags& files, const ProblemFlags& flags, int world);

  const Problem& problem() const { return problem_; }
  /// Bytes of both matrices and the whole result.
  double bytes() const;

  /// Reads the matrices. Throws InvalidArgument with the position if an element is NaN or infinite.
  std::unique_ptr<Inputs> load() const;

  /// Gathers the whole M×N result (N/2 columns for SwiGLU) from the outputs of all processes. Writes it on
  /// the process where `writes` is set. Collective.
  void save(World& world, const std::vector<Output>& outputs, bool writes) const;

 private:
  std::string holder(Role role, std::int64_t row, std::int64_t col) const;

  MatrixFlags files_;
  Problem problem_;
  std::int64_t m_, n_, k_;  // of the whole problem
};

}  // namespace shingle::cli
