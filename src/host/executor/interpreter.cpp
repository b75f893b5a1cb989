#include "interpreter.hpp"

#include <algorithm>
#include <cstring>

#include "host/compute/assign_slots.hpp"
#include "host/compute/attend.hpp"
#include "host/compute/attend_backward.hpp"
#include "host/compute/elementwise.hpp"
#include "host/compute/gemm.hpp"
#include "host/compute/merge.hpp"
#include "host/compute/merge_slots.hpp"

namespace shingle::host {
namespace {

void copy(const View& from, const View& to) {
  if (from.row_bytes() == 0) return;
  for (std::int64_t row = 0; row < from.rows; ++row)
    std::memcpy(to.at(row), from.at(row), static_cast<std::size_t>(from.row_bytes()));
}

bool tiled(const Step& step) {
  return std::holds_alternative<Gemm>(step) || std::holds_alternative<Elementwise>(step) ||
         std::holds_alternative<Attend>(step) || std::holds_alternative<Merge>(step) ||
         std::holds_alternative<AttendBackward>(step);
}

}  // namespace

void Interpreter::run(const Caller& caller) {
  caller_ = caller;
  lane_ =
      &engine_.plan.ranks[static_cast<std::size_t>(caller.rank)].lanes[static_cast<std::size_t>(caller.lane)];
  const Step& step = lane_->steps[static_cast<std::size_t>(caller.step)];
  if (lane_->kind == LaneKind::copy) submit();
  const double begin = engine_.trace ? engine_.now_us() : 0;
  std::visit(*this, step);
  if (!engine_.trace || tiled(step)) return;
  double end = engine_.now_us();
  if (lane_->kind == LaneKind::copy && is_command(step))
    end = std::max(end, to_us(queue_.done() - engine_.start));
  spans_.push_back({caller.rank, caller.lane, caller.step, -1,
                    static_cast<std::int32_t>(caller.epoch - engine_.first_epoch), begin, end});
}

void Interpreter::finish() {
  sleep_until(std::max(delivered_, queue_.done()), engine_.health());
}

void Interpreter::submit() {
  const Submission& how = lane_->submission;
  Launchers& launchers = engine_.world->launchers;
  if (!phases().paced()) return;
  if (how.prelaunched) {
    if (caller_.step > 0 || caller_.epoch == engine_.first_epoch) return;  // submitted before the run
    sleep_until(launchers.submit(*lane_, caller_.rank), engine_.health());
    return;
  }
  const auto steps = static_cast<std::int32_t>(lane_->steps.size());
  const auto next = std::ranges::upper_bound(how.doorbells, caller_.step);
  const std::int32_t begin = next == how.doorbells.begin() ? 0 : *std::prev(next);
  const std::int32_t end = next == how.doorbells.end() ? steps : *next;
  const auto awaits = [&](std::int32_t step) {
    return std::holds_alternative<Await>(lane_->steps[static_cast<std::size_t>(step)]);
  };
  if (awaits(caller_.step)) return;
  for (std::int32_t step = begin; step < caller_.step; ++step)
    if (!awaits(step)) return;
  sleep_until(launchers.submit(Launchers::launcher(*lane_, caller_.rank), end - caller_.step, 1),
              engine_.health());
}

void Interpreter::operator()(const Gemm& step) {
  const GemmTask task(engine_.plan, step, engine_.memory, engine_.products, caller_.epoch,
                      engine_.world->executions++);
  const int workers = 1 + pool_.helpers();
  const std::int64_t blocks =
      task.blocks(step.resources.most > 0 ? std::min(workers, step.resources.most) : workers);
  const auto to_others = [&](const Placement& at) { return leaves(at); };
  run_tiled({.grid = step.grid,
             .gates = step.gates,
             .notify = step.notify,
             .last = step.grid.positions(),
             .blocks = blocks,
             .crossing = leaves(step.out) || std::ranges::any_of(step.sums.to, to_others)
                             ? [&](std::int64_t position) { return task.crossing(position); }
                             : std::function<std::int64_t(std::int64_t)>(),
             .compute = [&](Worker& worker, std::int64_t position,
                            std::int64_t block) { task.run(worker, position, block, blocks); }},
            step.resources);
}

void Interpreter::operator()(const Elementwise& step) {
  const ElementwiseTask task(engine_.plan, step, engine_.memory, caller_.epoch);
  const bool reads = std::ranges::any_of(step.from, [&](const Placement& from) { return leaves(from); });
  std::function<std::int64_t(std::int64_t)> crossing;
  if (reads || leaves(step.to))
    crossing = [&](std::int64_t item) { return task.crossing(caller_.rank, item); };
  run_tiled({.grid = step.grid,
             .gates = step.gates,
             .notify = step.notify,
             .first = step.first,
             .last = last_item(step),
             .row_wise = row_wise(step),
             .queue = step.queue < 0 ? nullptr : &engine_.queues.at({caller_.rank, step.queue}),
             .crossing = std::move(crossing),
             .compute = [&](Worker& worker, std::int64_t item, std::int64_t) { task.run(worker, item); }},
            step.resources);
  if (reads) sleep_until(delivered_, engine_.health());  // the lane's next steps use what it has fetched
}

void Interpreter::operator()(const Attend& step) {
  const AttendTask task(engine_.plan, step, engine_.memory, engine_.products, caller_.epoch);
  run_tiled(
      {.grid = step.grid,
       .gates = step.gates,
       .notify = step.notify,
       .last = step.grid.positions(),
       .crossing = leaves(step.out) ? [&](std::int64_t position) { return task.crossing(position); }
                                    : std::function<std::int64_t(std::int64_t)>(),
       .compute = [&](Worker& worker, std::int64_t position, std::int64_t) { task.run(worker, position); }},
      step.resources);
}

void Interpreter::operator()(const Merge& step) {
  const MergeTask task(engine_.plan, step, engine_.memory, caller_.epoch);
  run_tiled(
      {.grid = step.grid,
       .gates = step.gates,
       .notify = step.notify,
       .last = step.grid.positions(),
       .crossing = leaves(step.to) ? [&](std::int64_t position) { return task.crossing(position); }
                                   : std::function<std::int64_t(std::int64_t)>(),
       .compute = [&](Worker& worker, std::int64_t position, std::int64_t) { task.run(worker, position); }},
      step.resources);
}

void Interpreter::operator()(const AttendBackward& step) {
  const AttendBackwardTask task(engine_.plan, step, engine_.memory, engine_.products, caller_.epoch);
  run_tiled(
      {.grid = step.grid,
       .gates = step.gates,
       .notify = step.notify,
       .last = step.grid.positions(),
       .compute = [&](Worker& worker, std::int64_t position, std::int64_t) { task.run(worker, position); }},
      step.resources);
}

void Interpreter::run_tiled(TiledStep step, const Resources& resources) {
  TiledJob job(engine_, caller_, std::move(step));
  const int helpers = resources.most > 0 ? resources.most - 1 : pool_.helpers();
  pool_.run(job, worker_, helpers);
  delivered_ = std::max(delivered_, job.delivered());
  if (engine_.trace) std::ranges::copy(job.spans(), std::back_inserter(spans_));
}

void Interpreter::operator()(const Await& step) {
  engine_.await(caller_, step.counter, step.target);
  if (lane_->kind == LaneKind::copy && lane_->submission.prelaunched)
    sleep_until(Clock::now() + from_us(phases().poll_us), engine_.health());
}

void Interpreter::operator()(const Notify& step) {
  sleep_until(lane_->kind == LaneKind::copy ? queue_.synchronised() : delivered_, engine_.health());
  if (lane_->kind == LaneKind::host) signal(step.counter);
  engine_.notify(caller_, step.counter, step.value);
}

void Interpreter::operator()(const Fill& step) {
  const View to = view(step.slice);
  if (to.row_bytes() == 0) return;
  for (std::int64_t row = 0; row < to.rows; ++row)
    std::memset(to.at(row), 0, static_cast<std::size_t>(to.row_bytes()));
  pace(to.bytes(), crossing(step.slice));
}

void Interpreter::operator()(const AssignSlots& step) {
  assign_slots(step, engine_.memory, caller_.epoch);
}

void Interpreter::operator()(const MergeSlots& step) {
  merge_slots(step, [&](const Slice& slice) { return view(slice); });
}

void Interpreter::operator()(const Collective& step) {
  engine_.transport->collective(caller_, step, view(step.send), view(step.recv));
}

void Interpreter::operator()(const Exchange& step) {
  std::vector<View> sends, receives;
  for (const Exchange::Message& message : step.sends) sends.push_back(view(message.slice));
  for (const Exchange::Message& message : step.receives) receives.push_back(view(message.slice));
  engine_.transport->exchange(caller_, step, sends, receives);
}

void Interpreter::operator()(const Copy& step) {
  copy(view(step.from), view(step.to));
  pace(view(step.to).bytes(), std::max(crossing(step.from), crossing(step.to)));
}

void Interpreter::operator()(const Broadcast& step) {
  for (const Slice& to : step.to) copy(view(step.from), view(to));
  pace(2 * view(step.from).bytes(),
       std::max(crossing(step.from), crossing(step.to[0]) + crossing(step.to[1])), phases().broadcast_us);
}

void Interpreter::operator()(const Swap& step) {
  const View a = view(step.a), b = view(step.b);
  for (std::int64_t row = 0; row < a.rows; ++row)
    std::swap_ranges(a.at(row), a.at(row) + a.row_bytes(), b.at(row));
  // A link carries both directions at once, but the engine writes both.
  pace(2 * a.bytes(), std::max(crossing(step.a), crossing(step.b)), phases().swap_us);
}

bool Interpreter::leaves(const Placement& at) const {
  const auto ranks = ranks_of(at, engine_.plan.world());
  return std::ranges::any_of(ranks, [&](std::int32_t rank) { return rank != caller_.rank; });
}

void Interpreter::signal(const CounterRef& counter) {
  const auto polled = engine_.polled.find({counter.counter, counter.rank});
  if (polled != engine_.polled.end() && phases().paced())
    sleep_until(engine_.world->launchers.signal(polled->second), engine_.health());
}

void Interpreter::pace(std::int64_t written, std::int64_t crossed, double beyond_us) {
  const int own[] = {caller_.rank};
  auto delivered = Clock::now();
  if (crossed > 0) delivered = engine_.world->links.book(own, delivered, static_cast<double>(crossed));
  if (lane_->kind == LaneKind::copy) {
    queue_.start(static_cast<double>(written), delivered, beyond_us);
  } else {
    sleep_until(delivered, engine_.health());
  }
}

std::int64_t Interpreter::crossing(const Slice& slice) const {
  return slice.rank == caller_.rank ? 0 : view(slice).bytes();
}

}  // namespace shingle::host
