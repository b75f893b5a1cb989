#include "call_executable.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "backend/remote.hpp"
#include "cuda/raii/capture_mode.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "plan/accesses.hpp"
#include "plan/steps.hpp"
#include "shingle/base/error.hpp"
#include "user_streams.hpp"

namespace shingle::cuda {
namespace {

constexpr std::int64_t alignment = 16;  // bytes, that kernels require of a matrix

/// True if a rank's launches use counts in device memory. Event edges do not.
bool uses_counts(const RankPlan& rank, const RankLaunches& launches) {
  return std::ranges::any_of(launches.launches, [&](const Launch& launch) {
    if (launch.kind == LaunchKind::record || launch.kind == LaunchKind::wait ||
        launch.kind == LaunchKind::delivery)
      return false;
    const auto& steps = rank.lanes[static_cast<std::size_t>(launch.stream)].steps;
    return std::any_of(steps.begin() + launch.first, steps.begin() + launch.last, [](const Step& step) {
      const auto* const gates = gates_of(step);
      const auto* const notifies = notifies_of(step);
      return synchronises(step) || (gates != nullptr && !gates->empty()) ||
             (notifies != nullptr && !notifies->empty()) || queue_of(step) >= 0;
    });
  });
}

/// True if only copies access a rank's part of a buffer. They work at any address.
bool is_only_copied(const Plan& plan, int rank, std::int32_t buffer) {
  const auto& lanes = plan.ranks[static_cast<std::size_t>(rank)].lanes;
  return std::ranges::all_of(lanes, [&](const Lane& lane) {
    return std::ranges::all_of(lane.steps, [&](const Step& step) {
      const auto* const copy = std::get_if<Copy>(&step);
      if ((copy != nullptr && copy->from.rank == rank) || std::holds_alternative<Broadcast>(step))
        return true;
      return std::ranges::none_of(accesses_of(step, plan.world()).memory, [&](const Accesses::Use& use) {
        return use.rank == rank && use.buffer == buffer;
      });
    });
  });
}

/// Rows of a rank's matrix in a call.
std::int64_t rows_of(const Buffer& planned, int rank, const MatrixMemory& memory) {
  return memory.rows >= 0 ? memory.rows : planned.rows[static_cast<std::size_t>(rank)];
}

/// A hash of a matrix's offset. Sums of them tell which role has which offset.
std::uint64_t mixed(std::uint64_t offset, Role role) {
  std::uint64_t hash = offset + (static_cast<std::uint64_t>(role) + 1) * 0x9e3779b97f4a7c15;
  hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
  return hash ^ hash >> 31;
}

/// True if calls of a plan begin and end with kernels. Peers need not know of a call that communicates
/// through NCCL or by deliveries alone, and without counts there is nothing to end. The same on all ranks, so
/// that all number the same calls.
bool tells_peers(const Plan& plan, const LaunchProgram& program) {
  if (!has_flagged(plan) && !remote_access(plan).empty()) return true;
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
    if (uses_counts(plan.ranks[rank], program.ranks[rank])) return true;
  return false;
}

}  // namespace

/// The matrices of a rank as kernels access them.
struct CallExecutable::Matrices {
  Shifts shifts;
  std::uint64_t offsets = 0;  ///< hash of those in the heap
  /// Copies of matrices that kernels cannot access as they are, and the moves to and from them.
  Memory::Staged staged{};
  std::vector<void*> copies{};
};

/// What a local rank launches of a call: its graph, or commands on these matrices.
struct CallExecutable::Ready {
  const Graph* graph = nullptr;
  Matrices matrices;
};

CallExecutable::CallExecutable(CudaWorld& world, const Plan& plan, std::shared_ptr<CudaArena> arena,
                               double timeout_us)
    : world_(world),
      arena_(std::move(arena)),
      memory_(std::make_shared<const Memory>(std::make_shared<const Plan>(plan), world, arena_->memory())),
      plan_(memory_->plan()),
      program_(lower(plan_)) {
  arena_->monitor().set_timeout_us(timeout_us);
  tells_ = tells_peers(plan_, program_);
  unfit_for_graph_ = unfit_for_graph();
  // Commands of cuBLASLt and NCCL alone are few, and NCCL's take long to capture.
  as_graphs_ = tells_ && unfit_for_graph_.empty() && communicators_of(plan_).empty();
  for (std::size_t role = 0; role < buffers_.size(); ++role)
    buffers_[role] = find_buffer(plan_, static_cast<Role>(role));
  const RelaxedCapture relaxed;
  for (std::size_t index = 0; index < arena_->local_ranks(); ++index) {
    CudaArena::Calls& calls = arena_->calls(index);
    const DeviceGuard guard(calls.local.device());
    ranks_.emplace_back(new Rank(calls, program_.ranks[static_cast<std::size_t>(calls.local.rank())]),
                        UnlessHopeless{world_.shared_health()});
    make(*ranks_.back());
  }
}

CallExecutable::~CallExecutable() {
  const Watcher::Hold hold(world_.watcher());
  try {
    const RelaxedCapture relaxed;
    if (!world_.health().stopped())
      arena_->monitor().wait_until([this] {
        return std::ranges::all_of(
            ranks_, [](const auto& rank) { return rank->calls.queue.backlog().ended() >= rank->end; });
      });
  } catch (const std::exception&) {
    world_.fail(std::current_exception());  // the next call reports it
  }
}

/// Makes the commands of a local rank.
void CallExecutable::make(Rank& rank) {
  const int number = rank.calls.local.rank();
  const RankPlan& planned = plan_.ranks[static_cast<std::size_t>(number)];
  const ArenaMemory& arena = arena_->memory();
  const std::size_t counts = memory_->counts(number);
  rank.counts = static_cast<std::int32_t>(counts) + rank.launches.work_queues;
  if (static_cast<std::size_t>(rank.counts) > ArenaMemory::most_counts)
    throw Unsupported(fmt::format("CUDA: the plan has {} counts on rank {}; an arena has {}", rank.counts,
                                  number, ArenaMemory::most_counts));
  rank.calls.queue.reserve(planned.lanes.size());
  while (rank.calls.workspaces.size() < rank.calls.queue.lanes()) rank.calls.workspaces.emplace_back();
  QueuedPasses queued;
  const bool pairs = passes_take_pairs(plan_, number);
  for (const Launch& launch : rank.launches.launches)
    rank.commands.push_back(
        make_command({.world = world_,
                      .plan = plan_,
                      .launch = launch,
                      .memory = *memory_,
                      .table_memory = rank.tables,
                      .library = world_.library(number),
                      .workspace = rank.calls.workspaces[static_cast<std::size_t>(launch.stream)],
                      .events = rank.edges,
                      .flags = nullptr,
                      .rank = number,
                      .parity = 0,
                      .pairs = pairs,
                      .watch = watch(rank),
                      .queues = arena.place(number)->counts + counts,
                      .queued = &queued,
                      .settle = [this] { arena_->synchronize(); }},
                     planned));
  for (std::size_t role = 0; role < buffers_.size(); ++role)
    rank.only_copied[role] = buffers_[role] >= 0 && is_only_copied(plan_, number, buffers_[role]);
  rank.tables.commit(rank.calls.uploads, [this](const Stream& stream) { settle(stream); });
  for (std::size_t i = 0; i < rank.commands.size(); ++i)
    if (rank.commands[i] != nullptr)
      rank.lanes = std::max(rank.lanes, static_cast<std::size_t>(rank.launches.launches[i].stream) + 1);
}

void CallExecutable::bind(int, Role, const MatrixMemory&) {
  throw InvalidArgument("matrices of an executable in an arena come with each call");
}

RunReport CallExecutable::run(const RunOptions&) {
  throw InvalidArgument("an executable in an arena runs by enqueue() with the matrices of a call");
}

void CallExecutable::enqueue(const CallTag& tag, std::span<const CallMatrix> matrices,
                             std::span<void* const> streams) {
  Watcher::Hold hold(world_.watcher());
  const RelaxedCapture relaxed;  // to look at events of earlier calls
  arena_->monitor().require_working();
  if (!streams.empty()) require_one_each(world_.local(), streams);
  require_all(matrices);
  require_registered(matrices);
  const bool capturing = are_captured(world_.local(), streams);
  if (capturing && !unfit_for_graph_.empty()) throw Unsupported(unfit_for_graph_);
  const auto stream_of = [&](std::size_t index) {
    return streams.empty() ? ranks_[index]->calls.queue.stream() : static_cast<cudaStream_t>(streams[index]);
  };
  try {
    // All local ranks get ready before the first one launches. Making a graph, or memory for copies, may wait
    // for the device of another local rank. That device must not wait for a rank that is launched later.
    std::vector<Ready> ready;
    for (std::size_t index = 0; index < ranks_.size(); ++index) {
      const DeviceGuard guard(ranks_[index]->calls.local.device());
      if (!capturing) make_room(*ranks_[index]);
      const Graph* const graph = capturing ? nullptr : graph_of(index, tag, matrices);
      // Here, and not when lanes are forked: the watcher may then look at the streams.
      Rank& rank = *ranks_[index];
      if (graph == nullptr)
        rank.calls.queue.make_urgent(stream_of(index), urgent_lanes(rank.launches, rank.lanes));
      ready.push_back(
          {graph, graph != nullptr ? Matrices{} : fit(*ranks_[index], matrices, stream_of(index))});
    }
    captured_ = captured_ || capturing;
    for (std::size_t index = 0; index < ranks_.size(); ++index) {
      Rank& rank = *ranks_[index];
      const DeviceGuard guard(rank.calls.local.device());
      const cudaStream_t stream = stream_of(index);
      const Outputs outputs = outputs_of(rank, matrices);
      if (capturing) {
        rank.calls.queue.written().note_captured(outputs);
        enqueue(index, tag, ready[index].matrices, stream);
        continue;
      }
      RankQueue& queue = rank.calls.queue;
      rank.calls.recent[queue.backlog().added() % rank.calls.recent.size()] = memory_;
      // The driver blocks a launch while work of the user fills its queue. If that work waits in NCCL for a
      // peer that is gone, only the watcher ends it.
      const Watcher::Pause pause(hold);
      queue.add(stream, launches_of(rank), outputs, [&] {
        if (ready[index].graph != nullptr)
          ready[index].graph->launch(stream);
        else
          enqueue(index, tag, ready[index].matrices, stream);
      });
      rank.end = queue.backlog().added();
    }
  } catch (...) {
    world_.fail_and_throw(std::current_exception());
  }
}

/// The outputs of a call on a rank. Copies of outputs do not count: a move empties them after the call's
/// kernels, and later kernels start after the move.
Outputs CallExecutable::outputs_of(const Rank& rank, std::span<const CallMatrix> matrices) const {
  Outputs outputs;
  const int number = rank.calls.local.rank();
  for (const auto& [owner, role, memory] : matrices)
    if (const std::int32_t buffer = buffers_[static_cast<std::size_t>(role)];
        owner == number && buffer >= 0 && !is_input(role)) {
      const Buffer& planned = plan_.buffers[static_cast<std::size_t>(buffer)];
      outputs.add(memory.data,
                  static_cast<std::size_t>(rows_of(planned, number, memory) * memory_->row_bytes(buffer)));
    }
  return outputs;
}

/// Number of launches of a call, with its begin and its end.
std::size_t CallExecutable::launches_of(const Rank& rank) {
  return rank.launches.launches.size() + 2;
}

/// Waits until the driver's queues have room for a call.
void CallExecutable::make_room(Rank& rank) {
  arena_->monitor().make_room(rank.calls.local.rank(), rank.calls.queue.backlog(), launches_of(rank),
                              [] { return false; });
}

/// Waits until an upload is complete. If it passes the deadline the world fails, so that nothing uses the
/// memory into which it may still copy.
void CallExecutable::settle(const Stream& stream) {
  try {
    arena_->monitor().wait_for(stream);
  } catch (...) {
    world_.fail_and_throw(std::current_exception());
  }
}

/// Throws InvalidArgument if a matrix of a local rank is missing.
void CallExecutable::require_all(std::span<const CallMatrix> matrices) const {
  for (const auto& at : ranks_) {
    const int rank = at->calls.local.rank();
    std::uint32_t given = 0;
    for (const CallMatrix& matrix : matrices)
      if (matrix.rank == rank && (matrix.memory.data != nullptr || matrix.memory.rows == 0))
        given |= 1u << static_cast<int>(matrix.role);
    for (std::size_t role = 0; role < static_cast<std::size_t>(Role::internal); ++role)
      if (buffers_[role] >= 0 && (given >> role & 1) == 0 &&
          plan_.buffers[static_cast<std::size_t>(buffers_[role])].bytes(rank) > 0)
        throw InvalidArgument(
            fmt::format("matrix '{}' of rank {} is missing", name(static_cast<Role>(role)), rank), rank);
  }
}

/// Throws InvalidArgument if a matrix that peers access does not lie in the heap, or is not one that they can
/// access.
void CallExecutable::require_registered(std::span<const CallMatrix> matrices) const {
  for (const auto& [rank, role, memory] : matrices) {
    const std::int32_t buffer = buffers_[static_cast<std::size_t>(role)];
    if (!is_reached(buffer)) continue;
    const Buffer& planned = plan_.buffers[static_cast<std::size_t>(buffer)];
    const CudaHeap& heap = *arena_->memory().heap();
    const std::int64_t offset = memory_->shift(rank, buffer, memory.data);
    const auto require = [rank = rank, role = role](bool holds, const char* what) {
      if (!holds)
        throw InvalidArgument(
            fmt::format("matrix '{}' of rank {}: peers access it, so it must {}", name(role), rank, what),
            rank);
    };
    // Also without rows: a rank computes its peers' addresses from its own.
    require(offset >= 0 && offset + planned.bytes(rank) <= heap.bytes(),
            "lie in registered memory (Context::allocate)");
    require(offset % alignment == 0, "begin at a multiple of 16 bytes");
    require(memory.row_stride == 0 || memory.row_stride == planned.cols, "have no gaps between rows");
  }
}

bool CallExecutable::is_reached(std::int32_t buffer) const {
  return std::ranges::find(memory_->reached(), buffer) != memory_->reached().end();
}

/// Why a graph cannot hold the plan; empty if it can.
std::string CallExecutable::unfit_for_graph() const {
  if (!program_.unfit_for_graph.empty()) return program_.unfit_for_graph;
  const std::size_t lanes = most_lanes(plan_);
  const auto found = world_.side_by_side().find(lanes);
  return found != world_.side_by_side().end() && found->second ? "" : too_many_for_graph(lanes);
}

/// True if the rank's commands cannot access a matrix as it is: it has gaps between rows, or kernels access
/// it and it does not begin at a multiple of 16 bytes.
bool CallExecutable::must_copy(const Rank& rank, const CallMatrix& matrix) const {
  const int number = rank.calls.local.rank();
  const std::int32_t buffer = buffers_[static_cast<std::size_t>(matrix.role)];
  if (matrix.rank != number || buffer < 0) return false;
  const Buffer& planned = plan_.buffers[static_cast<std::size_t>(buffer)];
  const std::int64_t rows = rows_of(planned, number, matrix.memory), stride = matrix.memory.row_stride;
  const bool dense = rows <= 1 || stride == 0 || stride == planned.cols;
  const bool aligned = rank.only_copied[static_cast<std::size_t>(matrix.role)] ||
                       reinterpret_cast<std::uintptr_t>(matrix.memory.data) % alignment == 0;
  return rows > 0 && !(dense && aligned);
}

/// The rank's graph of a call; null if the call is not fit for one. The first call of a plan has none, as
/// many plans are called only once.
const Graph* CallExecutable::graph_of(std::size_t index, const CallTag& tag,
                                      std::span<const CallMatrix> matrices) {
  Rank& rank = *ranks_[index];
  if (!as_graphs_ ||
      std::ranges::any_of(matrices, [&](const CallMatrix& one) { return must_copy(rank, one); }))
    return nullptr;
  if (!std::exchange(rank.called, true)) return nullptr;
  const bool changes = world_.options().on_step != nullptr;
  return &rank.graphs.get(
      tag, matrices, rank.calls.captures, changes,
      [&](cudaStream_t on) { enqueue(index, tag, fit(rank, matrices, on), on); },
      [this](const Stream& stream) { settle(stream); });
}

/// Completes the addresses of the rank's matrices. Those that kernels cannot access get a copy for this call.
CallExecutable::Matrices CallExecutable::fit(const Rank& rank, std::span<const CallMatrix> matrices,
                                             cudaStream_t stream) const {
  Matrices fitted;
  const int number = rank.calls.local.rank();
  for (const CallMatrix& matrix : matrices) {
    const auto& [owner, role, memory] = matrix;
    const std::int32_t buffer = buffers_[static_cast<std::size_t>(role)];
    if (owner != number || buffer < 0) continue;
    void* used = memory.data;
    if (must_copy(rank, matrix)) {
      const Buffer& planned = plan_.buffers[static_cast<std::size_t>(buffer)];
      const auto rows = static_cast<std::size_t>(rows_of(planned, number, memory));
      const std::size_t element = size_bytes(planned.dtype);
      const std::size_t row = static_cast<std::size_t>(planned.cols) * element;
      const std::size_t pitch =
          memory.row_stride == 0 ? row : static_cast<std::size_t>(memory.row_stride) * element;
      used = fitted.copies.emplace_back(rank.calls.copies.allocate(row * rows, stream));
      if (is_input(role))
        fitted.staged.inputs.push_back({used, row, memory.data, pitch, row, rows});
      else
        fitted.staged.outputs.push_back({memory.data, pitch, used, row, row, rows});
    }
    const std::int64_t shift = memory_->shift(number, buffer, used);
    fitted.shifts.of[static_cast<std::size_t>(role)] = shift;
    if (role == Role::topk_ids)
      fitted.shifts.tokens =
          static_cast<std::int32_t>(rows_of(plan_.buffers[static_cast<std::size_t>(buffer)], number, memory));
    if (is_reached(buffer)) fitted.offsets += mixed(static_cast<std::uint64_t>(shift), role);
  }
  return fitted;
}

void CallExecutable::enqueue(std::size_t index, const CallTag& tag, const Matrices& fitted,
                             cudaStream_t stream) {
  Rank& rank = *ranks_[index];
  const CallWords& words = rank.calls.words;
  const Watch watch = this->watch(rank);
  const CallFacts call{.op = static_cast<std::uint32_t>(tag.op),
                       .m = static_cast<std::uint32_t>(tag.m),
                       .offsets = fitted.offsets};
  if (tells_) check(launch_begin_call(words, call, watch, stream), "launch the begin of a call");
  move(fitted.staged.inputs, stream);
  issue_lanes(rank.calls.queue, stream, rank.lanes, rank.launches, rank.commands,
              [&](Command* command, const Launch& launch, cudaStream_t on) {
                if (static_cast<std::size_t>(launch.stream) >= rank.lanes) return;  // has nothing to do
                if (const auto& hook = world_.options().on_step)
                  hook({rank.calls.local.rank(), launch.stream, launch.first, words.epoch, on});
                if (command != nullptr) command->enqueue(on, fitted.shifts);
              });
  move(fitted.staged.outputs, stream);
  for (void* const copy : fitted.copies) MemoryPool::release(copy, stream);
  if (!tells_) return;
  check(launch_end_call(words, call, watch, arena_->memory().place(rank.calls.local.rank())->counts,
                        rank.counts, stream),
        "launch the end of a call");
}

std::int64_t CallExecutable::internal_bytes(int rank) const {
  std::int64_t bytes = arena_->bytes();
  for (const auto& at : ranks_)
    if (at->calls.local.rank() == rank) bytes += at->tables.bytes();
  return bytes;
}

}  // namespace shingle::cuda
