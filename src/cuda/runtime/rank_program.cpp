#include "rank_program.hpp"

#include <algorithm>

#include "cuda/kernels/elementwise.hpp"
#include "cuda/kernels/sync.hpp"
#include "cuda/raii/check.hpp"
#include "shingle/base/error.hpp"
#include "world.hpp"

namespace shingle::cuda {
namespace {

std::unique_ptr<Command> make_any(const Context& context, const Step& step) {
  return std::visit(
      [&](const auto& one) -> std::unique_ptr<Command> {
        if constexpr (requires { make_command(context, one); })
          return make_command(context, one);
        else
          return require_served(context.plan, step), nullptr;
      },
      step);
}

/// One end of an event edge: records the event on a lane's stream, or makes the stream wait for it.
class EventEdge final : public Command {
 public:
  EventEdge(const Event& event, bool waits) : event_(event), waits_(waits) {}
  void enqueue(cudaStream_t stream) override {
    if (waits_)
      event_.make_wait(stream);
    else
      event_.record(stream);
  }

 private:
  const Event& event_;
  bool waits_;
};

std::unique_ptr<Command> make(const Context& context, const Launch& launch, const std::vector<Step>& steps) {
  switch (launch.kind) {
    case LaunchKind::record:
    case LaunchKind::wait:
      return std::make_unique<EventEdge>(context.events[static_cast<std::size_t>(launch.event)],
                                         launch.kind == LaunchKind::wait);
    case LaunchKind::sync:
    case LaunchKind::flags:
    case LaunchKind::host:
      return make_sync_command(context, steps);
    default:
      if (steps.size() == 1) return make_any(context, steps.front());
      std::vector<Elementwise> passes;
      for (const Step& step : steps) passes.push_back(std::get<Elementwise>(step));
      return make_command(context, passes);
  }
}

void move(const std::vector<Memory::Staged::Move>& moves, cudaStream_t stream) {
  for (const Memory::Staged::Move& one : moves)
    check(cudaMemcpy2DAsync(one.to, one.to_pitch, one.from, one.from_pitch, one.row_bytes, one.rows,
                            cudaMemcpyDefault, stream),
          "cudaMemcpy2DAsync");
}

/// Number of a rank's epochs that may be in flight. The driver's queues hold about a thousand launches, and a
/// launch into a full queue blocks.
std::size_t epochs_at_once(const RankPlan& rank) {
  constexpr std::size_t launches = 256, most = 16;
  return std::clamp<std::size_t>(launches / (rank.issue.size() + 1), 2, most);
}

}  // namespace

RankProgram::RankProgram(CudaWorld& world, const Plan& plan, const RankLaunches& launches,
                         const Memory& memory, LocalRank& local)
    : world_(world),
      plan_(plan),
      launches_(launches),
      memory_(memory),
      local_(local),
      on_step_(world.options().on_step),
      edges_(static_cast<std::size_t>(launches.events)),
      backlog_(epochs_at_once(plan.ranks[static_cast<std::size_t>(local.rank())])) {
  for (const Buffer& buffer : plan.buffers) parities_ = std::max(parities_, static_cast<int>(buffer.depth));
  epoch_word_ = DeviceMemory(sizeof(std::uint32_t));
  epoch_word_.fill(0xff);  // the begin of the first epoch adds one, which gives 0
  const RankPlan& rank = plan.ranks[static_cast<std::size_t>(local.rank())];
  queues_ = DeviceMemory(static_cast<std::size_t>(launches.work_queues) * sizeof(std::uint32_t));
  queues_.fill(0);
  for (std::size_t lane = 0; lane < std::max<std::size_t>(rank.lanes.size(), 1); ++lane) {
    streams_.emplace_back();
    ended_.emplace_back();
  }
  check(preload_sync(), "load kernels");
  check(preload_elementwise(), "load kernels");
  world.blas(local.rank());  // here, not in the launching threads: the map of handles has no lock
}

void RankProgram::prepare() {
  if (prepared()) return;
  auto made = std::make_unique<Binding>();
  made->version = memory_.version();
  made->workspaces.resize(streams_.size());
  made->staged = memory_.staged(local_.rank());
  for (int parity = 0; parity < parities_; ++parity) made->programs.push_back(make(*made, parity));
  std::swap(binding_, made);
  if (!made || !made->lent) return;
  made->graphs.clear();
  lent_.push_back(std::move(made));
}

RankProgram::Program RankProgram::make(Binding& binding, int parity) {
  const RankPlan& rank = plan_.ranks[static_cast<std::size_t>(local_.rank())];
  Program program;
  for (const Launch& launch : launches_.launches) {
    const auto lane = static_cast<std::size_t>(launch.stream);
    const auto first = rank.lanes[lane].steps.begin();
    const Context context{.world = world_,
                          .plan = plan_,
                          .launch = launch,
                          .memory = memory_,
                          .table_memory = binding.table_memory,
                          .library = library_,
                          .workspace = binding.workspaces[lane],
                          .events = edges_,
                          .flags = flags_,
                          .rank = local_.rank(),
                          .parity = parity,
                          .watch = watch(),
                          .queues = queues_.get<std::uint32_t>()};
    program.push_back(cuda::make(context, launch, {first + launch.first, first + launch.last}));
  }
  return program;
}

/// Forks the lanes' streams from `stream` after the begin of the epoch, and joins them into it at the end.
/// Launches follow the plan's issue order, in which one hardware queue would serve them without deadlock.
template <class Issue>
void RankProgram::enqueue_lanes(cudaStream_t stream, int parity, Issue&& issue) {
  const std::size_t lanes = plan_.ranks[static_cast<std::size_t>(local_.rank())].lanes.size();
  const Program& program = binding_->programs[static_cast<std::size_t>(parity)];
  check(launch_begin(epoch_word_.get<std::uint32_t>(), stream, flags_.all()), "launch the begin");
  move(binding_->staged.inputs, stream);
  const auto of = [&](std::size_t lane) { return lane == 0 ? stream : streams_[lane].get(); };
  begun_.record(stream);
  for (std::size_t lane = 1; lane < lanes; ++lane) begun_.make_wait(of(lane));
  for (std::size_t i = 0; i < program.size(); ++i) {
    const Launch& launch = launches_.launches[i];
    const cudaStream_t on = of(static_cast<std::size_t>(launch.stream));
    if (on_step_)
      on_step_({local_.rank(), launch.stream, launch.first, epoch_word_.get<const std::uint32_t>(), on});
    if (program[i]) issue(*program[i], on, launch.stream, launch.first);
  }
  for (std::size_t lane = 1; lane < lanes; ++lane) {
    ended_[lane].record(of(lane));
    ended_[lane].make_wait(stream);
  }
  move(binding_->staged.outputs, stream);
}

template <class Enqueue>
void RankProgram::enqueue_epoch(cudaStream_t stream, Enqueue&& enqueue) {
  const unsigned long long id = id_of(stream);
  if (id != last_stream_) backlog_.follow(stream);
  last_stream_ = id;
  try {
    enqueue(static_cast<int>(epoch_++ % static_cast<std::uint64_t>(parities_)));
  } catch (...) {
    backlog_.add(stream);  // launches that were enqueued before the failure also need an end event
    throw;
  }
  backlog_.add(stream);
}

void RankProgram::enqueue(cudaStream_t stream) {
  enqueue_epoch(stream, [&](int parity) {
    enqueue_lanes(stream, parity, [](Command& command, cudaStream_t on, int, int) { command.enqueue(on); });
  });
}

void RankProgram::enqueue_traced(cudaStream_t stream, int epoch) {
  enqueue_epoch(stream, [&](int parity) {
    enqueue_lanes(stream, parity, [&](Command& command, cudaStream_t on, int lane, int step) {
      Traced& traced =
          traced_.emplace_back(Traced{lane, step, epoch, Event(Event::Timing::on), Event(Event::Timing::on)});
      traced.begin.record(on);
      command.enqueue(on);
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
  enqueue_lanes(stream, 0, [](Command& command, cudaStream_t on, int, int) { command.enqueue(on); });
}

void RankProgram::capture() {
  binding_->graphs.clear();
  for (int parity = 0; parity < parities_; ++parity) {
    binding_->graphs.push_back(Graph::capture(stream(), [&](cudaStream_t on) {
      enqueue_lanes(on, parity, [](Command& command, cudaStream_t at, int, int) { command.enqueue(at); });
    }));
    binding_->graphs.back().upload(stream());
  }
  streams_.front().synchronize();
}

bool RankProgram::idle() const {
  return backlog_.empty() && std::ranges::all_of(streams_, &Stream::idle);
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
  for (const DeviceMemory& workspace : workspaces) sum += static_cast<std::int64_t>(workspace.bytes());
  return sum;
}

std::int64_t RankProgram::bytes() const {
  std::int64_t sum = static_cast<std::int64_t>(epoch_word_.bytes() + queues_.bytes() + flags_.bytes()) +
                     (binding_ ? binding_->bytes() : 0);
  for (const auto& binding : lent_) sum += binding->bytes();
  return sum;
}

}  // namespace shingle::cuda
