// Workspace: memory for the matrices of a problem or a workload on the local ranks of a world. The command
// line, tests and benchmarks use it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "check/inputs.hpp"
#include "check/oracle.hpp"
#include "check/sample.hpp"
#include "shingle/api/context.hpp"

namespace shingle {

class Workspace {
 public:
  /// Allocates on every local rank of the world and writes the inputs. The world must outlive it.
  Workspace(World& world, const Inputs& inputs);
  /// As above, in the registered memory of a context of the world, with the same offsets on all ranks.
  Workspace(World& world, const Inputs& inputs, Context& context);

  /// Binds all matrices; several operators may share them.
  void bind(Operator& op) const;

  /// Fills the outputs with NaN, so that a result of an earlier run cannot pass for a new one.
  void poison_outputs();
  /// Outputs in host memory, for check(); valid until the next call. They are copied there if the host cannot
  /// access them.
  std::vector<Output> outputs();
  /// Compares the outputs with a sample of the same inputs and of all local ranks. Only sampled rows,
  /// and counts, are copied to the host.
  Check check(const RowSample& sample);

  /// All matrices of the local ranks, for a call of a context. `problem` may have fewer rows than the
  /// inputs'.
  std::vector<Argument> arguments(const Problem& problem) const;
  /// Address in the rank's memory.
  const void* data(int rank, Role role) const { return buffers_.at({rank, role}).data(); }

 private:
  using Allocate = std::function<DeviceBuffer(int rank, Role role)>;
  Workspace(World& world, const Inputs& inputs, const Allocate& allocate);

  World& world_;
  Work work_;
  std::map<std::pair<int, Role>, DeviceBuffer> buffers_;
  std::map<std::pair<int, Role>, std::vector<std::byte>> copies_;  // of outputs that the host cannot access
};

/// Writes the matrix of a local rank to `memory`, which the world allocated. Works in pieces on all cores,
/// because the formulas take long for large matrices.
void write_input(World& world, const Inputs& inputs, int rank, Role role, void* memory);

}  // namespace shingle
