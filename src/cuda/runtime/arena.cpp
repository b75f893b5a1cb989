#include "arena.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/commands/command.hpp"
#include "cuda/kernels/assign_slots.hpp"
#include "cuda/kernels/attention.hpp"
#include "cuda/kernels/flagged.hpp"
#include "cuda/kernels/gemm.hpp"
#include "cuda/kernels/merge.hpp"
#include "cuda/kernels/merge_slots.hpp"
#include "cuda/kernels/skinny.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "devices.hpp"
#include "shingle/base/error.hpp"
#include "user_streams.hpp"

namespace shingle::cuda {
namespace {

constexpr std::size_t calls_in_flight = 64;
constexpr std::size_t launches_in_flight = 512;  // the driver's queues hold about a thousand

std::string text_of(CallWord call) {
  return fmt::format("operator {} with m = {}", op_of(call), m_of(call));
}

}  // namespace

CudaArena::Calls::Calls(LocalRank& of, const CallWords& at)
    : local(of), words(at), queue(calls_in_flight, launches_in_flight), recent(calls_in_flight) {
  check(preload_sync(), "load kernels");
  check(preload_elementwise(), "load kernels");
  check(preload_attention(), "load kernels");
  check(preload_merge(), "load kernels");
  check(preload_assign_slots(), "load kernels");
  check(preload_merge_slots(), "load kernels");
  check(preload_deliveries(), "load kernels");
  check(preload_skinny(), "load kernels");
  for (const GemmKind kind : gemm_kinds)
    for (const GemmInstance& kernel : gemm_instances(family_of(of.device()), kind))
      check(kernel.load(), "load a GEMM kernel");
}

CudaArena::CudaArena(CudaWorld& world, std::int64_t bytes, std::shared_ptr<const CudaHeap> heap)
    : world_(world),
      memory_(world, bytes, world.options().first_epoch, std::move(heap)),
      monitor_(world),
      launchers_(world.local()),
      start_(world) {
  for (LocalRank& local : world.local()) {
    const DeviceGuard guard(local.device());
    calls_.push_back(std::make_unique<Calls>(local, memory_.words(calls_.size())));
    monitor_.add(local, calls_.back()->queue.backlog());
    world.blas(local.rank());
  }
  world_.add(*this);  // last: no destructor would undo it if a later statement threw
}

CudaArena::~CudaArena() {
  const Watcher::Hold hold(world_.watcher());
  try {
    if (!world_.health().stopped()) synchronize();
  } catch (const std::exception&) {  // the world is broken now, and the next call reports it
  }
  world_.remove(*this);
}

void* CudaArena::data(int rank) const {
  return memory_.place(rank)->staging;
}

void CudaArena::extend(std::span<void* const> streams) {
  if (streams.empty()) return;  // the last call is on streams of the context, where nobody else enqueues
  require_one_each(world_.local(), streams);
  if (are_captured(world_.local(), streams)) return;  // a graph's work is in the order of its streams
  const Watcher::Hold hold(world_.watcher());
  for (std::size_t index = 0; index < calls_.size(); ++index) {
    const DeviceGuard guard(calls_[index]->local.device());
    calls_[index]->queue.extend(static_cast<cudaStream_t>(streams[index]));
  }
}

void CudaArena::prepare(const Plan& plan) {
  world_.health().require();
  for (const auto& calls : calls_) {
    const DeviceGuard guard(calls->local.device());
    calls->queue.reserve(most_lanes(plan));
    for (const Lane& lane : plan.ranks[static_cast<std::size_t>(calls->local.rank())].lanes)
      for (const Step& step : lane.steps)
        if (const auto* const gemm = std::get_if<Gemm>(&step);
            gemm != nullptr && gemm->grid.tiles() > 0 && !instrumented(*gemm))
          prepare_library_gemm(world_, calls->local.rank(), plan, *gemm);
  }
  // A thread that is stuck in NCCL still uses it: then it stays.
  const Kept<Connections> connections(new Connections(world_, plan), UnlessHopeless{world_.shared_health()});
  try {
    connections->connect(start_, launchers_, monitor_);
  } catch (...) {
    if (launchers_.stuck()) world_.health().give_up();
    world_.fail_and_throw(std::current_exception());
  }
}

void CudaArena::synchronize() {
  const Watcher::Hold hold(world_.watcher());
  world_.health().require();
  try {
    monitor_.wait_until([this] {
      return std::ranges::all_of(calls_, [](const auto& calls) { return calls->queue.backlog().empty(); });
    });
  } catch (...) {
    world_.fail_and_throw(std::current_exception());
  }
}

bool CudaArena::idle() const noexcept try {
  return std::ranges::all_of(calls_, [](const auto& calls) { return calls->queue.idle(); });
} catch (...) {
  return true;  // a failed device runs nothing
}

namespace {

/// What a rank awaited of a peer in a delivery, or got from it.
std::string describe_delivery(const Stall& stall, int peer) {
  if (stall.own_call == stall.other_call) return fmt::format("waited for rows of rank {}", peer);
  const auto m_of_call = [](std::uint64_t call) { return static_cast<std::uint32_t>(call); };
  if (m_of_call(stall.own_call) == m_of_call(stall.other_call))
    return fmt::format("calls another operator with m = {} than rank {}; all ranks must make the same calls",
                       m_of_call(stall.own_call), peer);
  return fmt::format("calls with m = {}, where rank {} calls with m = {}; all ranks must make the same calls",
                     m_of_call(stall.own_call), peer, m_of_call(stall.other_call));
}

}  // namespace

std::string CudaArena::describe(const Stall& stall) const {
  for (std::size_t index = 0; index < calls_.size(); ++index) {
    const CallWords& words = calls_[index]->words;
    if (memory_.flagged() != nullptr)
      if (const int peer = memory_.flagged()->awaited(stall.counter); peer >= 0)
        return describe_delivery(stall, peer);
    if (stall.counter == words.busy)
      return "began a call while another call of the context was running: order the streams of its calls";
    const auto* const call = reinterpret_cast<const Call*>(stall.counter);
    if (call >= words.calls && call < words.calls + words.world * calls_kept) {
      const auto peer = (call - words.calls) / calls_kept;
      if (stall.own_call == stall.other_call)
        return fmt::format(
            "calls {} with registered matrices at other offsets than rank {}; all ranks must "
            "allocate and release registered memory in the same order",
            text_of(stall.own_call), peer);
      return fmt::format("calls {}, where rank {} calls {}; all ranks must make the same calls",
                         text_of(stall.own_call), peer, text_of(stall.other_call));
    }
    const Calls& calls = *calls_[index];
    const Backlog& backlog = calls.queue.backlog();
    const std::size_t ended = backlog.ended();
    if (ended == backlog.added()) continue;  // a graph of the user replays the call
    const auto& recent = calls.recent[ended % calls_in_flight];
    if (const std::string at = recent->describe(stall.counter); !at.empty())
      return fmt::format("waited for {}: saw {}, wanted {}", at, stall.seen, stall.wanted);
  }
  return {};
}

}  // namespace shingle::cuda
