#include "rank_program.hpp"

#include <algorithm>

#include "cuda/kernels/elementwise.hpp"
#include "cuda/kernels/sync.hpp"
#include "cuda/raii/check.hpp"
#include "lower/early.hpp"
#include "lower/passes.hpp"
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

/// A lane hands over to another one of the rank, or is handed over to.
class HandOver final : public Command {
 public:
  HandOver(const Event& event, bool waits) : event_(event), waits_(waits) {}
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

/// Waits and counts of a lane that follow one another: by events where they hand over, else by kernels.
std::unique_ptr<Command> make_syncs(const Context& context, const std::vector<Step>& steps) {
  std::vector<std::unique_ptr<Command>> parts;
  std::vector<Step> together;
  const auto flush = [&] {
    if (!together.empty()) parts.push_back(make_sync_command(context, std::exchange(together, {})));
  };
  for (const Step& step : steps) {
    const Event* const event = context.hand_overs->of(step);
    if (event == nullptr) {
      together.push_back(step);
    } else {
      flush();
      parts.push_back(std::make_unique<HandOver>(*event, std::holds_alternative<Await>(step)));
    }
  }
  flush();
  return parts.size() == 1 ? std::move(parts.front()) : std::make_unique<Sequence>(std::move(parts));
}

/// What carries out the steps of an item that neither wait nor count.
std::unique_ptr<Command> make_item(const Context& context, const std::vector<Step>& steps) {
  if (steps.size() == 1) return make_any(context, steps.front());
  std::vector<Elementwise> passes;
  for (const Step& step : steps) passes.push_back(std::get<Elementwise>(step));
  return make_command(context, passes);
}

/// How many queues the steps of a rank share.
std::size_t count_queues(const RankPlan& rank) {
  std::int32_t last = -1;
  for (const Lane& lane : rank.lanes)
    for (const Step& step : lane.steps)
      if (const auto* pass = std::get_if<Elementwise>(&step)) last = std::max(last, pass->queue);
  return static_cast<std::size_t>(last + 1);
}

/// The end of the steps from `first` on that are one command: waits and counts, or passes that merge, which
/// follow one another also in the order of issue. Any other would have a wait issued before what it waits
/// for, and all behind it in a hardware queue.
std::size_t end_of_item(const Plan& plan, const RankPlan& rank, std::size_t lane, std::size_t first) {
  const std::vector<Step>& steps = rank.lanes[lane].steps;
  const auto* const pass = std::get_if<Elementwise>(&steps[first]);
  const auto joins = [&](const Step& next) {
    const auto* const other = std::get_if<Elementwise>(&next);
    return pass != nullptr ? other != nullptr && one_pass(plan, *pass, *other) : synchronises(next);
  };
  std::size_t last = first + 1;
  if (pass == nullptr && !synchronises(steps[first])) return last;
  std::size_t seen = 0;  // steps of the lane that have been issued
  for (std::size_t i = 0; i < rank.issue.size() && last < steps.size(); ++i) {
    const bool own = static_cast<std::size_t>(rank.issue[i]) == lane;
    if (seen > first && (!own || !joins(steps[last]))) break;
    if (own && ++seen > last) ++last;
  }
  return last;
}

void move(const std::vector<Memory::Staged::Move>& moves, cudaStream_t stream) {
  for (const Memory::Staged::Move& one : moves)
    check(cudaMemcpyAsync(one.to, one.from, one.bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

/// How many epochs of a rank the device's queues take: they hold a thousand launches or so.
std::size_t epochs_at_once(const RankPlan& rank) {
  constexpr std::size_t launches = 256, most = 16;
  return std::clamp<std::size_t>(launches / (rank.issue.size() + 1), 2, most);
}

}  // namespace

RankProgram::RankProgram(CudaWorld& world, const Plan& plan, const Memory& memory, LocalRank& local)
    : world_(world),
      plan_(plan),
      memory_(memory),
      local_(local),
      on_step_(world.options().on_step),
      hand_overs_(plan, local.rank()),
      backlog_(epochs_at_once(plan.ranks[static_cast<std::size_t>(local.rank())])) {
  for (const Buffer& buffer : plan.buffers) parities_ = std::max(parities_, static_cast<int>(buffer.depth));
  epoch_word_ = DeviceMemory(sizeof(std::uint32_t));
  epoch_word_.fill(0xff);  // the first epoch adds one: it is 0
  const RankPlan& rank = plan.ranks[static_cast<std::size_t>(local.rank())];
  queues_ = DeviceMemory(count_queues(rank) * sizeof(std::uint32_t));
  queues_.fill(0);
  for (std::size_t lane = 0; lane < std::max<std::size_t>(rank.lanes.size(), 1); ++lane) {
    streams_.emplace_back();
    ended_.emplace_back();
  }
  check(preload_sync(), "load kernels");
  check(preload_elementwise(), "load kernels");
  world.blas(local.rank());  // not from the threads that prepare
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
  for (std::size_t lane = 0; lane < rank.lanes.size(); ++lane) {
    const std::vector<Step>& steps = rank.lanes[lane].steps;
    Context context{world_,        plan_,
                    memory_,       binding.arena,
                    library_,      binding.workspaces[lane],
                    local_.rank(), parity,
                    watch(),       queues_.get<std::uint32_t>()};
    context.hand_overs = &hand_overs_;
    context.flags = rank.lanes[lane].kind == LaneKind::copy ? &flags_ : nullptr;
    context.by_host =
        plan_.mechanism == Mechanism::copy_engine && rank.lanes[lane].kind == LaneKind::communicate;
    auto& items = program.emplace_back();
    for (std::size_t first = 0, last = 0; first < steps.size(); first = last) {
      last = end_of_item(plan_, rank, lane, first);
      context.last = last == steps.size();
      context.early = begins_early(plan_, local_.rank(), rank.lanes[lane], first);
      const std::vector<Step> item(steps.begin() + static_cast<std::ptrdiff_t>(first),
                                   steps.begin() + static_cast<std::ptrdiff_t>(last));
      items.push_back(
          {first, last, synchronises(item.front()) ? make_syncs(context, item) : make_item(context, item)});
    }
  }
  return program;
}

/// Lanes fork from the stream behind the begin of the epoch and join it again. Lane 0 is the stream itself.
/// Steps are issued in the plan's order, in which they would pass through one hardware queue.
template <class Issue>
void RankProgram::enqueue_lanes(cudaStream_t stream, int parity, Issue&& issue) {
  const RankPlan& rank = plan_.ranks[static_cast<std::size_t>(local_.rank())];
  Program& program = binding_->programs[static_cast<std::size_t>(parity)];
  check(launch_begin(epoch_word_.get<std::uint32_t>(), stream, flags_.all()), "launch the begin");
  move(binding_->staged.inputs, stream);
  const auto of = [&](std::size_t lane) { return lane == 0 ? stream : streams_[lane].get(); };
  begun_.record(stream);
  for (std::size_t lane = 1; lane < rank.lanes.size(); ++lane) begun_.make_wait(of(lane));
  std::vector<std::size_t> step(rank.lanes.size(), 0), item(rank.lanes.size(), 0);
  for (const std::int32_t at : rank.issue) {
    const auto lane = static_cast<std::size_t>(at);
    auto& items = program[lane];
    if (item[lane] < items.size() && items[item[lane]].first == step[lane]) {
      Item& next = items[item[lane]++];
      const int number = static_cast<int>(next.first);
      if (on_step_) on_step_({local_.rank(), at, number, epoch_word_.get<const std::uint32_t>(), of(lane)});
      if (next.command) issue(*next.command, of(lane), at, number);
    }
    ++step[lane];
  }
  for (std::size_t lane = 1; lane < rank.lanes.size(); ++lane) {
    ended_[lane].record(of(lane));
    ended_[lane].make_wait(stream);
  }
  move(binding_->staged.outputs, stream);
}

template <class Launch>
void RankProgram::enqueue_epoch(cudaStream_t stream, Launch&& launch) {
  const unsigned long long id = id_of(stream);
  if (id != last_stream_) backlog_.follow(stream);
  last_stream_ = id;
  try {
    launch(static_cast<int>(epoch_++ % static_cast<std::uint64_t>(parities_)));
  } catch (...) {
    backlog_.add(stream);  // what is there of it has an end, too
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
  std::int64_t sum = arena.bytes();
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
