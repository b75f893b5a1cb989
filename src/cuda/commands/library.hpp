// cuBLASLt products of a rank. Equal products are made and tuned once.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "blas.hpp"

namespace shingle::cuda {

class LibraryCache {
 public:
  /// The product of this problem, with the fastest of cuBLASLt's candidates on these operands; with the first
  /// candidate if they are null.
  std::shared_ptr<LibraryGemm> get(const BlasHandle& handle, const LibraryProblem& problem,
                                   const LibraryOperands* operands);

 private:
  std::vector<std::pair<LibraryProblem, std::shared_ptr<LibraryGemm>>> made_;
};

}  // namespace shingle::cuda
