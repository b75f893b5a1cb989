// A command: one launch of a plan, ready to be enqueued on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/kernels/elementwise.hpp"
#include "cuda/kernels/flagged.hpp"
#include "cuda/kernels/hooks.hpp"
#include "cuda/nccl/communicators.hpp"
#include "cuda/raii/stream.hpp"
#include "lower/launch_program.hpp"
#include "scratch.hpp"
#include "shingle/plan/plan.hpp"
#include "tables.hpp"

namespace shingle::cuda {

class CudaWorld;
class FlagWords;
class LibraryCache;

class Command {
 public:
  virtual ~Command() = default;
  /// `shifts`: of the call's matrices; all zero if the matrices are bound.
  virtual void enqueue(cudaStream_t stream, const Shifts& shifts) = 0;
};

/// Commands that are enqueued in order; a null command does nothing.
class Sequence final : public Command {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Command>> parts) : parts_(std::move(parts)) {}
  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    for (const auto& part : parts_)
      if (part) part->enqueue(stream, shifts);
  }

 private:
  std::vector<std::unique_ptr<Command>> parts_;
};

/// The passes that lanes share, by work queue.
using QueuedPasses = std::map<std::int32_t, ElementwiseArgs>;

/// Everything that the command of a launch is made from. The rank's device must be current when the command
/// is made and when it is enqueued.
struct Context {
  CudaWorld& world;
  const Plan& plan;
  const Launch& launch;
  const Memory& memory;
  TableMemory& table_memory;
  LibraryCache& library;
  Scratch& workspace;                ///< of the stream
  const std::vector<Event>& events;  ///< of the rank's event edges
  FlagWords* flags = nullptr;        ///< null if counts do not grow from epoch to epoch
  int rank = 0;
  int parity = 0;
  bool pairs = false;  ///< passes without gates may take SMs in pairs
  Watch watch{};
  std::uint32_t* queues = nullptr;  ///< by work queue: number of items claimed
  QueuedPasses* queued = nullptr;   ///< of this rank and parity; null: none is kept
  std::function<void()> settle{};   ///< of a plan for calls: waits for earlier calls, under the deadline

  Tables tables() const { return {plan, memory, table_memory, parity}; }
};

/// Throws Unsupported with the reason if this backend cannot run the step.
void require_served(const Plan& plan, const Step& step);
void require_served(const Plan& plan, const Elementwise& step);
void require_served(const Plan& plan, const Exchange& step);
void require_served(const Plan& plan, const Attend& step);
void require_served(const Plan& plan, const AttendBackward& step);
void require_served(const Plan& plan, const Merge& step);
void require_served(const Plan& plan, const AssignSlots& step);
/// Throws Unsupported if a step has hooks, or stores anything but consecutive rows of one slice.
void require_plain(const TileGrid& grid, const Placement& to, const std::vector<TileGate>& gates,
                   const std::vector<TileNotify>& notify, std::string_view step);

/// The command of a step; null if there is nothing to do.
std::unique_ptr<Command> make_command(const Context& context, const Gemm& step);
std::unique_ptr<Command> make_command(const Context& context, const Elementwise& step);
std::unique_ptr<Command> make_command(const Context& context, const Fill& step);
std::unique_ptr<Command> make_command(const Context& context, const Collective& step);
std::unique_ptr<Command> make_command(const Context& context, const Exchange& step);
std::unique_ptr<Command> make_command(const Context& context, const Copy& step);
std::unique_ptr<Command> make_command(const Context& context, const Broadcast& step);
std::unique_ptr<Command> make_command(const Context& context, const Swap& step);
std::unique_ptr<Command> make_command(const Context& context, const Attend& step);
std::unique_ptr<Command> make_command(const Context& context, const AttendBackward& step);
std::unique_ptr<Command> make_command(const Context& context, const Merge& step);
std::unique_ptr<Command> make_command(const Context& context, const AssignSlots& step);
std::unique_ptr<Command> make_command(const Context& context, const MergeSlots& step);
/// Adjacent passes of a lane that are merged into one (lower/launch_rules.hpp), group by group. The rows of
/// all passes move as soon as their group has arrived, so no pass waits for the last group of another.
std::unique_ptr<Command> make_command(const Context& context, const std::vector<Elementwise>& steps);
/// Tiles and CTAs of make_fetch(). So few CTAs load as fast as a link delivers, and leave SMs to GEMMs.
inline constexpr std::int32_t fetch_tile_rows = 32, fetch_tile_cols = 1024, fetch_ctas = 16;
/// A copy from a peer's memory, by a kernel. A copy engine would do it in a queue of the peer's device,
/// behind copies that the peer has enqueued there, and these may wait for what this rank does next.
std::unique_ptr<Command> make_fetch(const Context& context, const Slice& from, const Slice& to);
/// What the launch of a GEMM sends of the delivery behind it (Launch::sends_until).
ProductSends product_sends(const Context& context, const Gemm& step);
/// A delivery: counts of arrivals and passes.
std::unique_ptr<Command> make_delivery(const Context& context, const std::vector<Step>& steps);
/// Consecutive awaits and notifies of a lane as one command.
std::unique_ptr<Command> make_sync_command(const Context& context, const std::vector<Step>& steps);

/// The communicator of a step, with its limit of CTAs.
CommKey comm_key(const Plan& plan, const Collective& step);
CommKey comm_key(const Plan& plan, const Exchange& step);

/// True if the step needs the instrumented GEMM kernel, because cuBLASLt lacks something that it asks for.
bool instrumented(const Gemm& step);
/// Number of CTAs in a cluster of the step's launch. Requires that require_served() accepts the step, which
/// has tiles and is instrumented().
std::int32_t ctas_of_cluster(const Plan& plan, const Gemm& step);
/// Context::pairs of a rank (pairs.cpp).
bool passes_take_pairs(const Plan& plan, int rank);
/// A GEMM of few rows that loads its weights early (kernels/skinny.hpp); null where cuBLASLt is as fast. The
/// step has no hooks.
std::unique_ptr<Command> make_skinny_gemm(const Context& context, const Gemm& step);
/// Whether that kernel serves the step and sends its product, if it may (Launch::sends_until).
bool sends_product(const Context& context, const Gemm& step);
/// A GEMM by cuBLASLt. The step has no hooks.
std::unique_ptr<Command> make_library_gemm(const Context& context, const Gemm& step);
/// Prepares the rank's library for the products of such a step in calls (LibraryCache::prepare).
void prepare_library_gemm(CudaWorld& world, int rank, const Plan& plan, const Gemm& step);

}  // namespace shingle::cuda
