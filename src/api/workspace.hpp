// Workspace: memory for a problem's matrices on the local ranks of a world, for whoever has none of their own
// (the command line, tests, benchmarks).
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "check/inputs.hpp"
#include "check/oracle.hpp"
#include "check/sample.hpp"
#include "shingle/api/operator.hpp"

namespace shingle {

class Workspace {
 public:
  /// Allocates on every local rank of the world (which must outlive it) and writes the inputs.
  Workspace(World& world, const Inputs& inputs);

  /// Binds all matrices; several operators may share them.
  void bind(Operator& op) const;

  /// Fills the outputs with NaN, so that no result of an earlier run can pass for a new one.
  void poison_outputs();
  /// For check(): in the host's memory, where they are copied to unless they lie there; valid until the next
  /// call.
  std::vector<Output> outputs();
  /// What the sample (of the same inputs and of all local ranks) says of the outputs, of which no more is
  /// copied to the host than it compares.
  Check check(const RowSample& sample);

  /// In the rank's memory.
  const void* data(int rank, Role role) const { return buffers_.at({rank, role}).data(); }

 private:
  World& world_;
  Problem problem_;
  std::map<std::pair<int, Role>, DeviceBuffer> buffers_;
  std::map<std::pair<int, Role>, std::vector<std::byte>> copies_;  // of outputs that the host cannot reach
};

/// Writes the matrix of a local rank to its `memory`, which was allocated by the world: in pieces, by all
/// cores, as the formulas take a while for large matrices.
void write_input(World& world, const Inputs& inputs, int rank, Role role, void* memory);

}  // namespace shingle
