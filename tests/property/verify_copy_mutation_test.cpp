// Plans of copy engines, broken in one place each: every one has to be rejected. Beside
// verify_collective_mutation_test.cpp (collectives) and verify_peer_mutation_test.cpp (stores into other
// ranks).
#include "shingle/planner/planner.hpp"
#include "support/hand_plan.hpp"
#include "support/mutation.hpp"

namespace shingle::verify_copy_mutation_test {
namespace {

using namespace test;

CopyEngineParams chosen(const Plan& plan) {
  return std::get<CopyEngineParams>(params_of(plan));
}

bool on_copy_lane(const Plan& plan, const At& at) {
  return lane_of(plan, at).kind == LaneKind::copy;
}
bool on_host_lane(const Plan& plan, const At& at) {
  return lane_of(plan, at).kind == LaneKind::host;
}

template <class S>
bool remove_one(Plan& plan, Dice& dice, const Wanted<S>& wanted) {
  const auto at = pick<S>(plan, dice, wanted);
  if (at) remove_step(plan, *at);
  return at.has_value();
}

bool summed_for_all(const Plan& plan) {
  return plan.problem().traits().reduces() && !plan.problem().traits().scatters();
}

/// Whether an engine's next command after a step reads what the user gave, which is there from the begin.
bool sends_input(const Plan& plan, const At& at) {
  const auto& steps = lane_of(plan, at).steps;
  const auto next = std::find_if(steps.begin() + at.step, steps.end(), is_command);
  if (next == steps.end()) return false;
  const auto* copy = std::get_if<Copy>(&*next);
  const auto* broadcast = std::get_if<Broadcast>(&*next);
  const Slice* from = copy ? &copy->from : broadcast ? &broadcast->from : nullptr;
  return from && is_input(plan.buffers[static_cast<std::size_t>(from->buffer)].role);
}

/// Whether an engine's trigger orders nothing that is not ordered anyway: what it sends is there, and whether
/// others may be written into it either asks them itself, or, in an allreduce, knows from having all sums of
/// the last epoch.
bool needs_no_trigger(const Plan& plan, const At& at) {
  return sends_input(plan, at) && (chosen(plan).trigger == EngineTrigger::direct || summed_for_all(plan));
}

bool is_trigger(const Plan& plan, const At& at, const Await& await) {
  return on_copy_lane(plan, at) && counter_name(plan, await.counter) == "trigger" &&
         !needs_no_trigger(plan, at);
}

/// An engine starts without being told.
bool drop_poll(Plan& plan, Dice& dice) {
  return remove_one<Await>(plan, dice,
                           [&](const At& at, const Await& await) { return is_trigger(plan, at, await); });
}

/// It looks at another rank's place.
bool poll_neighbour(Plan& plan, Dice& dice) {
  if (chosen(plan).poll == PollScope::collective) return false;
  const int world = plan.world();
  return change<Await>(
      plan, dice,
      [&](const At& at, const Await& await) {
        // Where input is sent, a neighbour that may start may know as much of the others as is needed.
        return is_trigger(plan, at, await) && !sends_input(plan, at);
      },
      [&](Await& await) { await.counter.rank = (await.counter.rank + 1) % world; });
}

/// The host starts engines before it knows that others may be written into, or that data is there.
bool trigger_first(Plan& plan, Dice& dice) {
  if (plan.problem().op == Op::allreduce) return false;  // its first trigger orders nothing
  const auto at = pick<Notify>(plan, dice, [&](const At& where, const Notify& notify) {
    return on_host_lane(plan, where) && counter_name(plan, notify.counter) == "trigger";
  });
  if (!at) return false;
  const Step trigger = step_of(plan, *at);
  remove_step(plan, *at);
  insert_step(plan, {at->rank, at->lane, 0}, trigger);
  return true;
}

bool has_counter(const Plan& plan, std::string_view name) {
  return std::ranges::any_of(plan.counters, [&](const Counter& counter) { return counter.name == name; });
}

/// A peer may still be in the last epoch, or has yet to make what is exchanged in place.
bool drop_await_of_peer(Plan& plan, Dice& dice) {
  return remove_one<Await>(plan, dice, [&](const At& at, const Await& await) {
    if (await.counter.entry == at.rank) return false;  // it knows of itself
    const std::string& name = counter_name(plan, await.counter);
    // Who has all sums knows that all regions are read. Where peers tell more than that they have begun,
    // dropping this alone does no harm outside a context.
    const bool tells_more =
        has_counter(plan, "made") || has_counter(plan, "ready") || has_counter(plan, "in step");
    if (name == "begun") return !summed_for_all(plan) && !tells_more;
    if (name == "ready") return plan.problem().op != Op::allreduce;
    return name == "made";
  });
}

/// Nobody hears that an engine is done.
bool drop_sync(Plan& plan, Dice& dice) {
  return remove_one<Notify>(plan, dice, [&](const At& at, const Notify&) { return on_copy_lane(plan, at); });
}

/// An engine says that it is done while a command is under way.
bool sync_too_soon(Plan& plan, Dice& dice) {
  const auto at = pick<Notify>(plan, dice, [&](const At& where, const Notify&) {
    return on_copy_lane(plan, where) && where.step > 0 &&
           is_command(lane_of(plan, where).steps[static_cast<std::size_t>(where.step) - 1]);
  });
  if (!at) return false;
  const At command{at->rank, at->lane, at->step - 1};
  At behind = *at;
  const auto steps = static_cast<int>(lane_of(plan, *at).steps.size());
  const bool slices = chosen(plan).sum_slices > 1;  // the notify of a later slice tells of this one, too
  while (behind.step < steps && (slices || std::holds_alternative<Notify>(step_of(plan, behind))))
    ++behind.step;
  insert_step(plan, behind, step_of(plan, command));
  remove_step(plan, command);
  return true;
}

/// The host does not wait for an engine before it says that all is sent.
bool drop_await_of_engine(Plan& plan, Dice& dice) {
  return remove_one<Await>(
      plan, dice, [&](const At&, const Await& await) { return counter_name(plan, await.counter) == "done"; });
}

/// What has not come is used, or left behind at the end. (Around a ring the last shard to come says that all
/// others have. And of what a rank's own engine has exchanged, its lanes know at the end.)
bool drop_await_of_arrival(Plan& plan, Dice& dice) {
  const bool ring = chosen(plan).variant == CopyVariant::ring;
  return remove_one<Await>(plan, dice, [&](const At& at, const Await& await) {
    if (on_copy_lane(plan, at) || counter_name(plan, await.counter) != "sent") return false;
    const auto& entries = plan.counters[static_cast<std::size_t>(await.counter.counter)].growth[0];
    const auto engines = static_cast<int>(entries.size()) / plan.world();
    if (ring && await.counter.entry != (at.rank + 1) % plan.world()) return false;
    return await.counter.entry / engines != at.rank;
  });
}

/// What others have sent is used before the host has heard of it.
bool use_too_soon(Plan& plan, Dice& dice) {
  return remove_one<Await>(plan, dice, [&](const At& at, const Await& await) {
    const auto& steps = lane_of(plan, at).steps;
    const bool used = std::any_of(steps.begin() + at.step, steps.end(), [&](const Step& step) {
      return (std::holds_alternative<Gemm>(step) || std::holds_alternative<Elementwise>(step)) &&
             !moves_nothing(plan, step);
    });
    return used && counter_name(plan, await.counter) == "come";
  });
}

/// A shard is passed on before it has come.
bool pass_on_too_soon(Plan& plan, Dice& dice) {
  return remove_one<Await>(plan, dice, [&](const At& at, const Await& await) {
    return on_copy_lane(plan, at) && counter_name(plan, await.counter) == "sent";
  });
}

bool any_command(const Step& step) {
  return is_command(step);
}

/// A command of an engine, drawn from all of them.
std::optional<At> pick_command(const Plan& plan, Dice& dice) {
  std::vector<At> found;
  for_each_step(plan, [&](const At& at, const Step& step) {
    if (on_copy_lane(plan, at) && any_command(step)) found.push_back(at);
  });
  if (found.empty()) return std::nullopt;
  return found[static_cast<std::size_t>(dice.size(0, static_cast<std::int64_t>(found.size()) - 1))];
}

bool drop_command(Plan& plan, Dice& dice) {
  const auto at = pick_command(plan, dice);
  if (at) remove_step(plan, *at);
  return at.has_value();
}

/// Commands between two notifies are in no order: the second may overtake the first.
bool repeat_command(Plan& plan, Dice& dice) {
  const auto at = pick_command(plan, dice);
  if (at) insert_step(plan, *at, step_of(plan, *at));
  return at.has_value();
}

/// Exchanged twice in order, rows are where they were.
bool swap_back(Plan& plan, Dice& dice) {
  const auto at = pick<Swap>(plan, dice, [](const At&, const Swap&) { return true; });
  if (!at) return false;
  const Step again = step_of(plan, *at);
  insert_step(plan, *at, Notify{{0, at->rank, 0}, 1});
  insert_step(plan, *at, again);
  count_growth(plan);
  return true;
}

/// A rank's own rows are added to themselves on their way into the result.
bool double_own_rows(Plan& plan, Dice& dice) {
  const auto at = pick<Copy>(plan, dice, [&](const At& where, const Copy& copy) {
    return !on_copy_lane(plan, where) && copy.from.rows > 0;
  });
  if (!at) return false;
  const Copy copy = std::get<Copy>(step_of(plan, *at));
  step_of(plan, *at) = Hand::pass({copy.from, copy.from}, copy.to);
  return true;
}

/// One side of a command a row off.
bool shift_command(Plan& plan, Dice& dice) {
  const auto at = pick_command(plan, dice);
  if (!at) return false;
  Step& step = step_of(plan, *at);
  Slice* slice = nullptr;
  if (auto* copy = std::get_if<Copy>(&step)) slice = &copy->to;
  if (auto* broadcast = std::get_if<Broadcast>(&step)) slice = &broadcast->to[1];
  if (auto* swap = std::get_if<Swap>(&step)) slice = &swap->b;
  if (slice == nullptr || slice->row == 0) return false;
  --slice->row;
  return true;
}

/// The rows for one rank go to another.
bool send_elsewhere(Plan& plan, Dice& dice) {
  const int world = plan.world();
  if (world < 3) return false;
  const auto at = pick_command(plan, dice);
  if (!at) return false;
  Step& step = step_of(plan, *at);
  Slice* slice = nullptr;
  if (auto* copy = std::get_if<Copy>(&step)) slice = &copy->to;
  if (auto* broadcast = std::get_if<Broadcast>(&step)) slice = &broadcast->to[0];
  if (auto* swap = std::get_if<Swap>(&step)) slice = &swap->b;
  slice->rank = (slice->rank + 1) % world;
  return true;
}

/// Both destinations of a broadcast are one rank.
bool broadcast_to_one(Plan& plan, Dice& dice) {
  return change<Broadcast>(
      plan, dice, [](const At&, const Broadcast&) { return true; },
      [](Broadcast& broadcast) { broadcast.to[1] = broadcast.to[0]; });
}

/// Another lane also sets a count that one writer alone may set.
bool second_writer(Plan& plan, Dice& dice) {
  const auto at =
      pick<Notify>(plan, dice, [&](const At& where, const Notify&) { return on_copy_lane(plan, where); });
  if (!at) return false;
  insert_step(plan, {(at->rank + 1) % plan.world(), 0, 0}, step_of(plan, *at));
  return true;
}

/// A step that an engine does not know.
bool other_step(Plan& plan, Dice& dice) {
  const auto at = pick_command(plan, dice);
  if (!at) return false;
  Elementwise pass;
  pass.grid = make_grid(1, 1, 1, 1);
  if (chance(dice, 50))
    insert_step(plan, *at, pass);
  else
    insert_step(plan, *at, Collective{});
  return true;
}

/// Queued ahead of time, but with nothing to wait for: it may begin while the user still writes.
bool prelaunch_without_poll(Plan& plan, Dice& dice) {
  const auto at = pick_command(plan, dice);
  if (!at) return false;
  Lane& lane = lane_of(plan, *at);
  lane.submission.prelaunched = true;
  lane.submission.doorbells.clear();
  while (std::holds_alternative<Await>(lane.steps.front())) remove_step(plan, {at->rank, at->lane, 0});
  return true;
}

/// What an engine polls is set at the begin of another rank's epoch: that says nothing of its own rank.
bool prelaunch_by_a_stranger(Plan& plan, Dice& dice) {
  const auto at = pick_command(plan, dice);
  if (!at || chosen(plan).poll == PollScope::collective || !sends_input(plan, *at)) return false;
  Lane& lane = lane_of(plan, *at);
  lane.submission.prelaunched = true;
  lane.submission.doorbells.clear();
  plan.counters.push_back({"stranger", CounterKind::add, {}});
  for (int r = 0; r < plan.world(); ++r) plan.counters.back().growth.push_back({0});
  const int other = (at->rank + 1) % plan.world();
  const CounterRef count{static_cast<std::int32_t>(plan.counters.size()) - 1, other, 0};
  insert_step(plan, {other, 0, 0}, Notify{count, 1});
  while (std::holds_alternative<Await>(lane.steps.front())) remove_step(plan, {at->rank, at->lane, 0});
  insert_step(plan, {at->rank, at->lane, 0}, Await{count, 1});
  count_growth(plan);
  return true;
}

/// A doorbell that is not between two steps.
bool wrong_doorbell(Plan& plan, Dice& dice) {
  const auto at = pick_command(plan, dice);
  if (!at) return false;
  Lane& lane = lane_of(plan, *at);
  lane.submission.doorbells.push_back(static_cast<std::int32_t>(lane.steps.size()));
  return true;
}

const Mutation mutations[] = {{"drop an engine's poll", drop_poll},
                              {"poll the neighbour's place", poll_neighbour},
                              {"trigger first", trigger_first},
                              {"drop an await of a peer", drop_await_of_peer},
                              {"drop a sync", drop_sync},
                              {"sync too soon", sync_too_soon},
                              {"drop the await of an engine", drop_await_of_engine},
                              {"drop the await of what comes", drop_await_of_arrival},
                              {"use too soon", use_too_soon},
                              {"pass on too soon", pass_on_too_soon},
                              {"drop a command", drop_command},
                              {"repeat a command", repeat_command},
                              {"swap back", swap_back},
                              {"double own rows", double_own_rows},
                              {"shift a command", shift_command},
                              {"send elsewhere", send_elsewhere},
                              {"broadcast to one rank twice", broadcast_to_one},
                              {"set by a second writer", second_writer},
                              {"a step that engines do not know", other_step},
                              {"prelaunch without a poll", prelaunch_without_poll},
                              {"prelaunch by a stranger", prelaunch_by_a_stranger},
                              {"wrong doorbell", wrong_doorbell}};

/// A correct plan in which every rank has rows for every other, and the same number each way.
std::optional<Plan> random_plan(Dice& dice) {
  Problem p = random_problem(dice, {.world = 5, .m = 60, .n = 30, .k = 10, .experts = false});
  if (p.world == 1 || p.op == Op::gemm) return std::nullopt;
  if (p.traits().routes()) {
    const std::int64_t rows = dice.size(1, 5);
    std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(p.world));
    for (auto& list : dest)
      for (std::int64_t i = 0; i < rows * p.world; ++i)
        list.push_back(static_cast<std::int32_t>(i % p.world));
    p.routing = std::make_shared<const Routing>(std::move(dest));
    p.m = rows * p.world;
  } else if (p.m <= p.world * (p.world - 1)) {
    return std::nullopt;
  }
  auto plan = plan_copy_engine(p, random_machine(dice),
                               std::get<CopyEngineParams>(random_params(dice, p, Mechanism::copy_engine)));
  if (!plan) return std::nullopt;
  return *plan;
}

class CopyMutations : public testing::TestWithParam<Mutation> {};

TEST_P(CopyMutations, AreAllCaught) {
  expect_caught(GetParam(), random_plan);
}

INSTANTIATE_TEST_SUITE_P(Verify, CopyMutations, testing::ValuesIn(mutations), mutation_name);

}  // namespace
}  // namespace shingle::verify_copy_mutation_test
