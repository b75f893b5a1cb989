// Operator: a problem made ready to run on a world.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "shingle/api/registry.hpp"
#include "shingle/plan/shapes.hpp"

namespace shingle {

struct Options {
  std::optional<Mechanism> mechanism{};  ///< empty: the finest that serves the problem
  Params params{};                       ///< empty fields: the planner's choice
  /// Figures to plan and to search params by, such as own_profile() has; empty: the world's own.
  std::optional<Machine> profile{};
  bool verify = false;       ///< prove the plan before use; builds with assertions always do
  double timeout_us = 30e6;  ///< deadline of every single wait of a run
};

/// A row-major, dense matrix in the caller's memory.
struct MatrixView {
  void* data = nullptr;
  Shape shape{};
  DType dtype = DType::f32;
};

/// Plans, proves and compiles a problem once; then runs it as often as wanted on matrices that stay the
/// caller's: examples/first.cpp is a whole program.
///
/// The world must outlive the operator. Not for several threads at once. (src/api/operator.cpp)
class Operator {
 public:
  /// Collective over the world's processes. Throws InvalidArgument where the problem or its params are wrong,
  /// Unsupported with the reason where no mechanism (or not the one asked for) serves the problem or the
  /// backend cannot run it.
  Operator(World& world, const Problem& problem, const Options& options = {});
  /// Runs a plan as it is, unproven: also one that does only part of its problem, to see how long that takes.
  Operator(World& world, Plan plan, double timeout_us);
  Operator(Operator&&) noexcept;
  Operator& operator=(Operator&&) noexcept;
  ~Operator();

  const Problem& problem() const;
  /// What will run; to_text() of it is for people. Of an operator that was made from a problem it becomes one
  /// with Params::unregistered where peers do not reach a matrix that it has them use: run() and prepare()
  /// see to that.
  const Plan& plan() const;

  /// Shape of a rank's matrix as stored, row-major and dense; elements are of problem().dtype.
  Shape shape(Role role, int rank) const { return shape_of(problem(), role, rank); }
  /// Uses the memory as a local rank's matrix until it is bound anew. Throws InvalidArgument if the problem
  /// has no such matrix, the rank is not local, the memory is null though the matrix has elements, or shape
  /// or type are not those of the operator.
  void bind(int rank, Role role, const MatrixView& matrix);
  /// The same of all elements of a matrix; only their number and type are checked.
  void bind(int rank, Role role, std::span<float> elements);          ///< of f32
  void bind(int rank, Role role, std::span<std::uint16_t> elements);  ///< of bf16 or f16: their bits
  /// The same unchecked: the memory must hold shape(role, rank) elements of problem().dtype.
  void bind(int rank, Role role, void* memory);

  /// Internal memory of a local rank, in bytes: what the operator holds beside the user's matrices.
  std::int64_t memory_bytes(int rank) const;

  /// Reads the inputs and overwrites the outputs of all local ranks; collective, and done when it returns.
  /// `epochs` runs follow one another without a barrier between ranks. Throws InvalidArgument where a matrix
  /// is not bound, Timeout with the diagnosis where a rank failed or a wait passed its deadline: the world is
  /// then broken.
  RunReport run(int epochs = 1, bool trace = false);

  /// The same as one asynchronous call, on backends whose devices have streams (CUDA: cudaStream_t): one for
  /// each local rank, in the order of local_ranks(). It comes after what is in the stream and before what is
  /// put there later, and may be captured; prepare() comes first, and again once a matrix is bound anew, in
  /// all processes.
  ///
  ///     op.prepare();
  ///     op.enqueue(stream);   // as often as wanted, beside other work
  ///     op.synchronize();     // or wait for the stream: failures then come with the next call
  ///
  /// A rank that is gone lets its peers' streams wait for it for ever: synchronize() has a deadline. What is
  /// captured stays tied to the matrices that were bound, and goes before the operator. Executable::enqueue()
  /// has the whole contract. Throws InvalidArgument, Timeout, Unsupported.
  void enqueue(std::span<void* const> streams);
  void enqueue(void* stream) { enqueue(std::span<void* const>(&stream, 1)); }
  /// Collective. Throws InvalidArgument where a matrix is not bound.
  void prepare();
  void synchronize();

  /// What runs, for what the facade leaves out.
  Executable& executable();

 private:
  struct State;
  void require_matrix(int rank, Role role) const;

  std::unique_ptr<State> state_;
};

}  // namespace shingle
