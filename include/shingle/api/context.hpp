// Context: calls of any operators with any matrices and any m, on one staging memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "shingle/api/operator.hpp"

namespace shingle {

struct ContextOptions {
  /// Mechanism and params of a problem. Must be a pure function with the same result on all ranks: it decides
  /// which plan serves a call. Empty: the mechanism with the lowest predicted time, by powers of two of m;
  /// the finest mechanism that serves the problem if the machine has no figures to predict from.
  std::function<Params(const Problem&)> choose{};
  /// Size of the registered memory of each rank, the same on all; 0: none, and each rank's matrices are
  /// accessed by that rank only. Otherwise peers access matrices of calls directly, which saves a copy. All
  /// matrices of calls must then come from Context::allocate(), at the same offset on all ranks.
  std::int64_t registered_bytes = 0;
  /// Figures for planning, the same on all ranks. Empty: the world's own.
  std::optional<Machine> profile{};
  /// SMs (host: threads) that the context's kernels may hold while they wait for other ranks; 0: all.
  /// Contexts of a device whose calls overlap in time must share its SMs (docs/concepts/contexts.md).
  int workers = 0;
  /// Least size of the arena, the same on all ranks. declare() enlarges it as needed.
  std::int64_t arena_bytes = 0;
  std::size_t most_plans = 64;  ///< plans that are kept ready; the least recently used one goes first
  bool verify = false;          ///< prove each plan when it is made; builds with assertions always do
  double timeout_us = 30e6;     ///< deadline of every single wait
};

/// Options of Context::declare().
struct DeclareOptions {
  /// Mechanism and params; empty: ContextOptions::choose decides. The same problem may be declared several
  /// times, each with other params.
  std::optional<Params> params{};
  /// Every m of a call is a multiple of it. With a multiple of the ranks no shard is short, and sequential
  /// plans of collectives need no copies that make shards equal.
  std::int64_t m_step = 1;
  /// SMs that calls of this operator may hold while they wait for other ranks, at most those of the context;
  /// 0: as many. Lower it if this operator's calls overlap another context's, and those of others do not.
  int workers = 0;
};

/// A matrix of a call.
struct Argument {
  int rank = 0;
  Role role = Role::a;
  MatrixView matrix{};
};

/// Operators that ranks call with any m up to a maximum and with any matrices.
///
/// Making a context and declaring an operator are collective. A call is local and asynchronous: it never
/// communicates, and ranks may be any number of calls apart. All ranks make the same calls in the same order;
/// a call that differs is an error that names the rank. Plans of all operators share one arena of staging
/// memory. The proof of each plan covers any other call before and after it (docs/concepts/proofs.md).
///
/// The world must outlive the context. One thread at a time may use a context, not always the same one.
/// examples/context.cpp is a whole program.
class Context {
 public:
  explicit Context(World& world, ContextOptions options = {});
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  /// Waits until all calls are done.
  ~Context();

  /// Declares an operator; its m is the maximum of a call. Returns the operator's number: 0, 1, … in the
  /// order of declaration. Collective: all ranks declare the same operators in the same order. Enlarges the
  /// arena if the operator needs more; this waits until earlier calls are done.
  ///
  /// Throws InvalidArgument if the problem or an option is wrong, or if the declarations are not the same on
  /// all ranks. Throws Unsupported if no mechanism serves it.
  int declare(const Problem& largest, DeclareOptions options = {});

  /// Enqueues one call of an operator on streams of the devices and returns at once. `arguments` holds all
  /// matrices of all local ranks (Operator::shape() at this m); they must stay valid until the call is done.
  /// `streams` holds one stream for each local rank (CUDA: cudaStream_t); empty: streams of the context.
  ///
  /// Throws InvalidArgument if m is outside [1, max m] or no multiple of m_step, or a matrix is missing, or
  /// its shape, type or row stride is wrong; the call is then not made. Throws Timeout with the diagnosis if
  /// an earlier call has failed on the device; the world is then broken.
  void call(int op, std::int64_t m, std::span<const Argument> arguments, std::span<void* const> streams = {});
  /// As above, for a problem whose ranks exchange rows: the call's own routing. Its m is that of the rank
  /// that sends most.
  void call(int op, std::shared_ptr<const Routing> routing, std::span<const Argument> arguments,
            std::span<void* const> streams = {});
  /// As above, for an attention to sequences that are packed along the rows: the tokens of each sequence,
  /// which may change from call to call. m is their sum. Each new list of lengths makes a plan.
  void call(int op, std::span<const std::int64_t> lengths, std::span<const Argument> arguments,
            std::span<void* const> streams = {});

  /// The rows that the last call gathered, on a local rank: m×k, dense, in their order. They lie in staging
  /// memory, complete when the call is, until the next call of this context begins. Null if that call was not
  /// an allgather+gemm for which gathers_in_order() holds.
  const void* gathered(int rank) const;
  /// True if calls of the operator with this m leave gathered() rows. Makes the plan if it is not ready.
  bool gathers_in_order(int op, std::int64_t m);
  /// Makes the next call wait for the work that is on the streams so far, such as reads of gathered().
  /// `streams` as of call().
  void extend(std::span<void* const> streams);

  /// Waits until all calls are done. Throws Timeout with the diagnosis if one has failed.
  void synchronize();

  /// The largest problem of an operator, as it was declared. Throws InvalidArgument if there is none.
  const Problem& largest(int op) const;
  /// The problem that a call of the operator solves.
  Problem problem(int op, std::int64_t m) const;
  /// The plan that serves a call. Makes it if it is not ready, so that the first call finds it.
  const Plan& plan(int op, std::int64_t m);

  /// Takes `bytes` bytes of a local rank's registered memory, aligned to 512 bytes. Local. Ranks that take
  /// and give back the same sizes in the same order get the same offsets, which a call compares. Any thread
  /// may call it. The memory must outlive calls that use it, but not the world. Throws Unsupported if no free
  /// block is as large.
  DeviceBuffer allocate(int rank, std::int64_t bytes);

  /// Staging memory of each rank, in bytes: the largest need of an operator at its maximum m.
  std::int64_t arena_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Staging memory of each rank that a context would need for an operator, in bytes. Planned for the machine,
/// without a world. Throws as Context::declare().
std::int64_t arena_bytes_needed(const Problem& largest, const Machine& machine, ContextOptions options = {},
                                DeclareOptions declared = {});

}  // namespace shingle
