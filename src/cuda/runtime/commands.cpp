#include "commands.hpp"

#include "cuda/raii/check.hpp"

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
  void enqueue(cudaStream_t stream, const Shifts&) override {
    if (waits_)
      event_.make_wait(stream);
    else
      event_.record(stream);
  }

 private:
  const Event& event_;
  bool waits_;
};

}  // namespace

std::unique_ptr<Command> make_command(const Context& context, const RankPlan& rank) {
  const Launch& launch = context.launch;
  const auto begin = rank.lanes[static_cast<std::size_t>(launch.stream)].steps.begin();
  const std::vector<Step> steps(begin + launch.first, begin + launch.last);
  switch (launch.kind) {
    case LaunchKind::record:
    case LaunchKind::wait:
      return std::make_unique<EventEdge>(context.events[static_cast<std::size_t>(launch.event)],
                                         launch.kind == LaunchKind::wait);
    case LaunchKind::sync:
    case LaunchKind::flags:
    case LaunchKind::host:
      return make_sync_command(context, steps);
    case LaunchKind::delivery:
      return make_delivery(context, steps);
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

}  // namespace shingle::cuda
