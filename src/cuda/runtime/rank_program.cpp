#include "rank_program.hpp"

#include <algorithm>

#include "cuda/kernels/assign_slots.hpp"
#include "cuda/kernels/attention.hpp"
#include "cuda/kernels/flagged.hpp"
#include "cuda/kernels/merge.hpp"
#include "cuda/kernels/merge_slots.hpp"
#include "cuda/kernels/skinny.hpp"
#include "cuda/kernels/sync.hpp"
#include "cuda/raii/check.hpp"
#include "shingle/base/error.hpp"
#include "world.hpp"

namespace shingle::cuda {
namespace {

/// Number of a rank's epochs that may be in flight. The driver's queues hold about a thousand launches.
std::size_t epochs_at_once(const RankPlan& rank) {
  constexpr std::size_t launches = 256, most = 16;
  return std::clamp<std::size_t>(launches / (rank.issue.size() + 1), 2, most);
}

}  // namespace

RankProgram::RankProgram(CudaWorld& world, const Plan& plan, const RankLaunches& launches,
                         const Memory& memory, LocalRank& local, const WaitTimeout& timeout)
    : world_(world),
      plan_(plan),
      launches_(launches),
      memory_(memory),
      local_(local),
      timeout_(timeout),
      on_step_(world.options().on_step),
      edges_(static_cast<std::size_t>(launches.events)),
      queue_(epochs_at_once(plan.ranks[static_cast<std::size_t>(local.rank())])) {
  for (const Buffer& buffer : plan.buffers)  // turns of flagged buffers are counted on the device
    if (!buffer.flagged) parities_ = std::max(parities_, static_cast<int>(buffer.depth));
  epoch_word_ = DeviceMemory(sizeof(std::uint32_t));
  epoch_word_.fill(0xff);  // the begin of the first epoch adds one, which gives 0
  const RankPlan& rank = plan.ranks[static_cast<std::size_t>(local.rank())];
  queues_ = DeviceMemory(static_cast<std::size_t>(launches.work_queues) * sizeof(std::uint32_t));
  queues_.fill(0);
  queue_.reserve(rank.lanes.size());
  check(preload_sync(), "load kernels");
  check(preload_elementwise(), "load kernels");
  check(preload_attention(), "load kernels");
  check(preload_merge(), "load kernels");
  check(preload_assign_slots(), "load kernels");
  check(preload_merge_slots(), "load kernels");
  check(preload_deliveries(), "load kernels");
  check(preload_skinny(), "load kernels");
  world.blas(local.rank());  // here, not in the launching threads: the map of handles has no lock
}

void RankProgram::prepare() {
  if (prepared()) return;
  auto made = std::make_unique<Binding>();
  made->version = memory_.version();
  made->workspaces.resize(queue_.lanes());
  made->staged = memory_.staged(local_.rank());
  made->written = memory_.written(local_.rank());
  const RankPlan& rank = plan_.ranks[static_cast<std::size_t>(local_.rank())];
  const bool pairs = passes_take_pairs(plan_, local_.rank());
  for (int parity = 0; parity < parities_; ++parity) {
    Commands& program = made->programs.emplace_back();
    QueuedPasses queued;
    for (const Launch& launch : launches_.launches)
      program.push_back(make_command({.world = world_,
                                      .plan = plan_,
                                      .launch = launch,
                                      .memory = memory_,
                                      .table_memory = made->table_memory,
                                      .library = library_,
                                      .workspace = made->workspaces[static_cast<std::size_t>(launch.stream)],
                                      .events = edges_,
                                      .flags = &flags_,
                                      .rank = local_.rank(),
                                      .parity = parity,
                                      .pairs = pairs,
                                      .watch = watch(),
                                      .queues = queues_.get<std::uint32_t>(),
                                      .queued = &queued},
                                     rank));
  }
  made->table_memory.commit(Stream(), [](const Stream& stream) { stream.synchronize(); });
  std::swap(binding_, made);
  if (!made || !made->lent) return;
  made->graphs.clear();
  lent_.push_back(std::move(made));
}

template <class Issue>
void RankProgram::enqueue_lanes(cudaStream_t stream, int parity, Issue&& issue) {
  const Commands& program = binding_->programs[static_cast<std::size_t>(parity)];
  check(launch_begin(epoch_word_.get<std::uint32_t>(), stream, flags_.all()), "launch the begin");
  move(binding_->staged.inputs, stream);
  const std::size_t lanes = plan_.ranks[static_cast<std::size_t>(local_.rank())].lanes.size();
  issue_lanes(
      queue_, stream, lanes, launches_, program,
      [&](Command* command, const Launch& launch, cudaStream_t on) {
        if (on_step_)
          on_step_({local_.rank(), launch.stream, launch.first, epoch_word_.get<const std::uint32_t>(), on});
        if (command != nullptr) issue(*command, on, launch.stream, launch.first);
      });
  move(binding_->staged.outputs, stream);
}

template <class Enqueue>
void RankProgram::enqueue_epoch(cudaStream_t stream, Enqueue&& enqueue) {
  queue_.add(stream, launches(), binding_->written,
             [&] { enqueue(static_cast<int>(epoch_++ % static_cast<std::uint64_t>(parities_))); });
}

void RankProgram::enqueue(cudaStream_t stream) {
  enqueue_epoch(stream, [&](int parity) {
    enqueue_lanes(stream, parity,
                  [](Command& command, cudaStream_t on, int, int) { command.enqueue(on, {}); });
  });
}

void RankProgram::enqueue_traced(cudaStream_t stream, int epoch) {
  enqueue_epoch(stream, [&](int parity) {
    enqueue_lanes(stream, parity, [&](Command& command, cudaStream_t on, int lane, int step) {
      Traced& traced =
          traced_.emplace_back(Traced{lane, step, epoch, Event(Event::Timing::on), Event(Event::Timing::on)});
      traced.begin.record(on);
      command.enqueue(on, {});
      traced.end.record(on);
    });
  });
}

void RankProgram::replay(cudaStream_t stream) {
  enqueue_epoch(stream,
                [&](int parity) { binding_->graphs[static_cast<std::size_t>(parity)].launch(stream); });
}

void RankProgram::lend(cudaStream_t stream) {
  binding_->lent = true;
  queue_.written().note_captured(binding_->written);
  enqueue_lanes(stream, 0, [](Command& command, cudaStream_t on, int, int) { command.enqueue(on, {}); });
}

void RankProgram::capture() {
  binding_->graphs.clear();
  for (int parity = 0; parity < parities_; ++parity) {
    binding_->graphs.push_back(Graph::capture(
        stream(),
        [&](cudaStream_t on) {
          enqueue_lanes(on, parity,
                        [](Command& command, cudaStream_t at, int, int) { command.enqueue(at, {}); });
        },
        launches_.any_urgent()));
    binding_->graphs.back().upload(stream());
  }
  check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
}

void RankProgram::drop_graphs() noexcept {
  if (binding_) binding_->graphs.clear();
}

std::vector<Span> RankProgram::spans(const Event& begin) {
  std::vector<Span> spans;
  for (const Traced& traced : traced_)
    spans.push_back({local_.rank(), traced.lane, traced.step, -1, traced.epoch,
                     1e3 * traced.begin.milliseconds_since(begin),
                     1e3 * traced.end.milliseconds_since(begin)});
  traced_.clear();
  return spans;
}

std::int64_t RankProgram::Binding::bytes() const {
  std::int64_t sum = table_memory.bytes();
  for (const Scratch& workspace : workspaces) sum += workspace.bytes();
  return sum;
}

std::int64_t RankProgram::bytes() const {
  std::int64_t sum = static_cast<std::int64_t>(epoch_word_.bytes() + queues_.bytes() + flags_.bytes()) +
                     (binding_ ? binding_->bytes() : 0);
  for (const auto& binding : lent_) sum += binding->bytes();
  return sum;
}

}  // namespace shingle::cuda
