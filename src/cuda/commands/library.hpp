// The library's products of a rank: equal ones are made and tuned once.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "blas.hpp"

namespace shingle::cuda {

class LibraryCache {
 public:
  /// The product of this problem, by the fastest of the library's heuristics on these operands.
  std::shared_ptr<const LibraryGemm> get(const BlasHandle& handle, const LibraryProblem& problem,
                                         const void* a, const void* b);

 private:
  std::vector<std::pair<LibraryProblem, std::shared_ptr<const LibraryGemm>>> made_;
};

}  // namespace shingle::cuda
