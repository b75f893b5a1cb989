// Owner of the current mappings of other processes' memory, and of former ones that graphs may still use.
#pragma once

#include <utility>
#include <vector>

namespace shingle::cuda {

/// Mappings of bound matrices. Destroying a `Mapping` closes it.
template <class Mapping>
class Generations {
 public:
  /// Replaces the current mappings after a bind. Closes the former ones. If `replayed`, graphs of the user
  /// may replay them, and they stay open as long as this object.
  void replace(Mapping next, bool replayed) {
    Mapping former = std::exchange(current_, std::move(next));
    if (replayed) kept_.push_back(std::move(former));
  }

 private:
  Mapping current_;
  std::vector<Mapping> kept_;
};

}  // namespace shingle::cuda
