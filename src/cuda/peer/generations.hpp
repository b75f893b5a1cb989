// What is mapped of other processes' memory, and when it is let go.
#pragma once

#include <utility>
#include <vector>

namespace shingle::cuda {

/// Mappings of the matrices that are bound. `Mapping` lets go of its memory where it is destroyed.
template <class Mapping>
class Generations {
 public:
  /// Matrices have been bound anew, and `next` maps them. The mappings before are let go, or stay for good
  /// where graphs of the user's `replay` them.
  void replace(Mapping next, bool replayed) {
    Mapping former = std::exchange(current_, std::move(next));
    if (replayed) kept_.push_back(std::move(former));
  }

 private:
  Mapping current_;
  std::vector<Mapping> kept_;
};

}  // namespace shingle::cuda
