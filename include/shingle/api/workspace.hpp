// Workspace: memory for a problem's matrices on the local ranks of a world, for whoever has none of their own
// (the command line, tests, benchmarks).
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "shingle/api/inputs.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/api/oracle.hpp"

namespace shingle {

class Workspace {
 public:
  /// Allocates on every local rank of the world (which must outlive it) and writes the inputs.
  Workspace(World& world, const Inputs& inputs);

  /// Binds all matrices; several operators may share them.
  void bind(Operator& op) const;

  /// Fills the outputs with NaN, so that no result of an earlier run can pass for a new one.
  void poison_outputs();
  /// For check().
  std::vector<Output> outputs() const;

  const void* data(int rank, Role role) const { return buffers_.at({rank, role}).data(); }

 private:
  std::map<std::pair<int, Role>, DeviceBuffer> buffers_;
};

}  // namespace shingle
