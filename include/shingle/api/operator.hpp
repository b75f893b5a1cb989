// Operator: plans, proves, compiles and runs a problem on a world.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "shingle/api/registry.hpp"
#include "shingle/plan/shapes.hpp"
#include "shingle/verify/verify.hpp"

namespace shingle {

struct Options {
  /// The mechanism, by the type of its params; open fields are the planner's choice. Empty: the finest
  /// mechanism that serves the problem.
  std::optional<Params> params{};
  /// True: peers can access the matrices that will be bound. That is any memory on `host`, and memory of
  /// cudaMalloc() on `cuda`; bind() detects other memory there, and each epoch then copies the whole matrix.
  /// False: the plan sends parts through the operator's staging memory.
  bool registered = true;
  /// Figures for planning and for the search of params, for example from own_profile(). Empty: the world's
  /// own.
  std::optional<Machine> profile{};
  bool verify = false;       ///< prove the plan before use; builds with assertions always do
  double timeout_us = 30e6;  ///< deadline of every single wait of a run
};

/// The plan, proven if `asked`, and always in builds with assertions. Throws Error if it fails its proof. A
/// plan too large to be proven passes unless `asked`.
Plan prove_if_asked(Plan plan, bool asked = false, Setting setting = Setting::alone);

/// A row-major matrix in the caller's memory.
struct MatrixView {
  void* data = nullptr;
  Shape shape{};
  DType dtype = DType::f32;
  std::int64_t row_stride = 0;  ///< elements from a row to the next; 0: densely packed
};

/// Plans and compiles a problem once, then runs it any number of times. The caller keeps the matrices.
/// examples/first.cpp is a whole program; src/api/operator.cpp is the source.
///
/// The world must outlive the operator. An operator is not thread-safe.
class Operator {
 public:
  /// Collective over the world's processes. Throws InvalidArgument if the problem or its params are wrong.
  /// Throws Unsupported with the reason if no mechanism (or not the requested one) serves the problem, or if
  /// the backend cannot run it.
  Operator(World& world, const Problem& problem, const Options& options = {});
  /// Runs a plan unchanged and unproven. The plan may do only part of its problem, to measure the time of
  /// that part.
  Operator(World& world, Plan plan, double timeout_us);
  Operator(Operator&&) noexcept;
  Operator& operator=(Operator&&) noexcept;
  ~Operator();

  /// Throws std::bad_variant_access if the plan is of a workload.
  const Problem& problem() const;
  /// The plan that runs; to_text() prints it.
  const Plan& plan() const;

  /// Shape of a rank's matrix as stored, row-major and dense. Elements are of plan().dtype().
  Shape shape(Role role, int rank) const;
  /// Uses the memory as a local rank's matrix until the next bind() of that matrix. The memory must stay
  /// allocated for each epoch until then. Bind memory that is allocated anew, even if it has the address of
  /// the former: on `cuda` other processes and copies know the former allocation. Each epoch copies a matrix
  /// whose rows are not dense. Throws InvalidArgument if the problem has no such matrix, the rank is
  /// not local, or shape, type or row stride are not those of the operator. Also throws if the memory is null
  /// and the matrix has elements.
  void bind(int rank, Role role, const MatrixView& matrix);
  /// As above, for all elements of a matrix. Only their number and type are checked.
  void bind(int rank, Role role, std::span<float> elements);          ///< of f32
  void bind(int rank, Role role, std::span<std::uint16_t> elements);  ///< of bf16 or f16: their bits
  /// As above, without checks of size and type: the memory must hold shape(role, rank) elements of
  /// plan().dtype().
  void bind(int rank, Role role, void* memory);

  /// Memory of a local rank that the operator holds beside the user's matrices, in bytes.
  std::int64_t memory_bytes(int rank) const;

  /// Reads the inputs and overwrites the outputs of all local ranks. Collective; returns when all epochs are
  /// done. The `epochs` runs follow one another without a barrier between ranks.
  ///
  /// Throws InvalidArgument if a matrix is not bound. Throws Timeout with the diagnosis if a rank fails or a
  /// wait passes its deadline; the world is then broken.
  RunReport run(int epochs = 1, bool trace = false);

  /// Enqueues one epoch and returns at once, on backends whose devices have streams (CUDA: cudaStream_t). It
  /// takes one stream for each local rank, in the order of local_ranks(). The epoch is ordered with other
  /// work of its stream, and may be captured in a graph. Call prepare() first, and again after a bind(), in
  /// all processes.
  ///
  ///     op.prepare();
  ///     op.enqueue(stream);   // as often as wanted, beside other work
  ///     op.synchronize();     // or wait for the stream: failures then come with the next call
  ///
  /// If a rank dies, the streams of its peers wait forever; synchronize() has a deadline. A captured epoch
  /// keeps the matrices that were bound at capture. Destroy the graph before the operator.
  /// Executable::enqueue() has the whole contract. Throws InvalidArgument, Timeout, Unsupported.
  void enqueue(std::span<void* const> streams);
  void enqueue(void* stream) { enqueue(std::span<void* const>(&stream, 1)); }
  /// Makes enqueue() ready. Collective. Throws InvalidArgument if a matrix is not bound.
  void prepare();
  void synchronize();

  /// The compiled plan that runs, for calls that Operator does not offer.
  Executable& executable();

 private:
  struct State;
  void require_local(int rank) const;

  std::unique_ptr<State> state_;
};

}  // namespace shingle
