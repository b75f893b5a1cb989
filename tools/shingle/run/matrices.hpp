// The user's own matrices, split over the ranks as the operator has it, and the result put together again.
//
// gemm+allreduce and gemm+reducescatter split K: rank r has the r-th part of A's columns and of B's rows.
// allgather+gemm splits A's rows and B's columns. gemm+alltoall splits A's rows, and every rank has all of B.
// gemm has both whole on every rank. Parts are equal; where they do not come out even, the last ones are
// filled up with zeros, which changes no result.
#pragma once

#include <memory>

#include "check/inputs.hpp"
#include "check/oracle.hpp"
#include "shingle/common/flags.hpp"

namespace shingle::cli {

class UserMatrices {
 public:
  /// Reads the headers only. Throws InvalidArgument where the files do not fit each other, the operator or
  /// the flags.
  UserMatrices(const MatrixFlags& files, const ProblemFlags& flags, int world);

  const Problem& problem() const { return problem_; }
  /// Memory for both matrices and the whole result.
  double bytes() const;

  /// Reads the matrices. Throws InvalidArgument where an element is NaN or infinite, with its place.
  std::unique_ptr<Inputs> load() const;

  /// Gathers the whole M×N result (N/2 columns for swiglu) from the outputs of all processes, and writes it
  /// where `writes`. Collective.
  void save(World& world, const std::vector<Output>& outputs, bool writes) const;

 private:
  std::string holder(Role role, std::int64_t row, std::int64_t col) const;

  MatrixFlags files_;
  Problem problem_;
  std::int64_t m_, n_, k_;  // of the whole
};

}  // namespace shingle::cli
