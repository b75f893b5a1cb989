// cuBLASLt products of a rank. Equal products are made and tuned once.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "blas.hpp"

namespace shingle::cuda {

class LibraryCache {
 public:
  /// The product of this problem, with the fastest of cuBLASLt's candidates on these operands.
  std::shared_ptr<const LibraryGemm> get(const BlasHandle& handle, const LibraryProblem& problem,
                                         const void* a, const void* b);

 private:
  std::vector<std::pair<LibraryProblem, std::shared_ptr<const LibraryGemm>>> made_;
};

}  // namespace shingle::cuda
