// Shows that the verifier can fail: correct plans of random problems are broken in one place each, and every
// broken plan has to be rejected with a failure that says where. What a mutator must not touch, because the
// plan stays right, is argued where it is skipped; `Harmless` shows that such plans indeed still pass.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <optional>

#include "plan/steps.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/plan/rounding.hpp"
#include "shingle/verify/verify.hpp"
#include "support/random_problem.hpp"

namespace shingle::verify_mutation_test {
namespace {

using test::Dice;

struct At {
  int rank;
  std::size_t lane;
  std::size_t step;
};

/// A step for which `wanted(step, at)` holds, drawn from all of them.
template <class Wanted>
std::optional<At> pick(const Plan& plan, Dice& dice, Wanted wanted) {
  std::vector<At> found;
  for (int r = 0; r < plan.world(); ++r)
    for (std::size_t l = 0; l < plan.ranks[r].lanes.size(); ++l)
      for (std::size_t s = 0; s < plan.ranks[r].lanes[l].steps.size(); ++s)
        if (wanted(plan.ranks[r].lanes[l].steps[s], At{r, l, s})) found.push_back({r, l, s});
  if (found.empty()) return std::nullopt;
  return found[static_cast<std::size_t>(dice.size(0, static_cast<std::int64_t>(found.size()) - 1))];
}

template <class T>
std::optional<At> pick_kind(const Plan& plan, Dice& dice) {
  return pick(plan, dice, [](const Step& step, const At&) { return std::holds_alternative<T>(step); });
}

std::vector<Step>& steps(Plan& plan, const At& at) {
  return plan.ranks[at.rank].lanes[at.lane].steps;
}
const std::vector<Step>& steps(const Plan& plan, const At& at) {
  return plan.ranks[at.rank].lanes[at.lane].steps;
}

template <class T>
T& get(Plan& plan, const At& at) {
  return std::get<T>(steps(plan, at)[at.step]);
}

/// Position in the order of issue of a step.
std::ptrdiff_t issued_at(const Plan& plan, const At& at) {
  const auto& issue = plan.ranks[at.rank].issue;
  std::size_t before = 0;
  for (std::size_t i = 0; i < issue.size(); ++i)
    if (static_cast<std::size_t>(issue[i]) == at.lane && before++ == at.step)
      return static_cast<std::ptrdiff_t>(i);
  return static_cast<std::ptrdiff_t>(issue.size());
}

void erase(Plan& plan, const At& at) {
  auto& issue = plan.ranks[at.rank].issue;
  issue.erase(issue.begin() + issued_at(plan, at));
  steps(plan, at).erase(steps(plan, at).begin() + static_cast<std::ptrdiff_t>(at.step));
}

void insert(Plan& plan, const At& at, Step step) {
  auto& issue = plan.ranks[at.rank].issue;
  issue.insert(issue.begin() + issued_at(plan, at), static_cast<std::int32_t>(at.lane));
  steps(plan, at).insert(steps(plan, at).begin() + static_cast<std::ptrdiff_t>(at.step), std::move(step));
}

/// An await that the next one implies: both counts are raised by the same lane, this one first.
bool implied(const Plan& plan, const At& at) {
  const auto& lane = steps(plan, at);
  const auto* await = std::get_if<Await>(&lane[at.step]);
  const auto* next = at.step + 1 < lane.size() ? std::get_if<Await>(&lane[at.step + 1]) : nullptr;
  return await && next && await->counter.counter == next->counter.counter;
}

/// Whether a collective moves anything on this rank; an empty one needs nobody to wait.
bool moves(const Collective& c) {
  return c.send.rows > 0 && c.recv.rows > 0;
}

/// An await whose removal must show: not implied, of a count that grows, and for data that exists.
std::optional<At> pick_await(const Plan& plan, Dice& dice) {
  // Where shards are padded to equal parts, an await may be for padding alone.
  if (plan.problem().op == Op::gemm_reducescatter && plan.problem().m % plan.world() != 0)
    return std::nullopt;
  return pick(plan, dice, [&](const Step& step, const At& at) {
    const auto* await = std::get_if<Await>(&step);
    if (!await || await->target == 0 || implied(plan, at)) return false;
    for (const Lane& lane : plan.ranks[at.rank].lanes)
      for (const Step& other : lane.steps)
        if (const auto* c = std::get_if<Collective>(&other); c && !moves(*c)) return false;
    return true;
  });
}

std::optional<At> pick_collective(const Plan& plan, Dice& dice) {
  return pick(plan, dice, [](const Step& step, const At&) {
    const auto* c = std::get_if<Collective>(&step);
    return c && moves(*c);
  });
}

/// A gated step, and a group of it that holds tiles whose data arrives. The first of its lane: those behind
/// it know what it has awaited.
std::optional<std::pair<At, std::size_t>> pick_gate(const Plan& plan, Dice& dice) {
  const auto gated = [](const Step& step) {
    const auto* pass = std::get_if<Elementwise>(&step);
    return pass && !pass->gates.empty();
  };
  const auto at = pick(plan, dice, [&](const Step& step, const At& a) {
    const auto& lane = steps(plan, a);
    return gated(step) && std::find_if(lane.begin(), lane.end(), gated) - lane.begin() ==
                              static_cast<std::ptrdiff_t>(a.step);
  });
  if (!at) return std::nullopt;
  const auto& pass = std::get<Elementwise>(steps(plan, *at)[at->step]);
  std::vector<std::size_t> groups;
  for (std::int64_t i = 0; i < pass.grid.positions(); ++i) {
    bool data = false;
    if (!pass.grid.phantom(pass.grid.tile(i)))
      for_each_piece(pass.to, pass.grid, plan.routing(), i, [&](const Piece&) { data = true; });
    if (data) groups.push_back(static_cast<std::size_t>(group_of(pass.gates[0].ends, i)));
  }
  if (groups.empty()) return std::nullopt;
  return std::pair{
      *at, groups[static_cast<std::size_t>(dice.size(0, static_cast<std::int64_t>(groups.size()) - 1))]};
}

/// A pass that the plan needs: it stores something.
std::optional<At> pick_pass(const Plan& plan, Dice& dice) {
  return pick(plan, dice, [&](const Step& step, const At&) {
    const auto* pass = std::get_if<Elementwise>(&step);
    if (!pass) return false;
    bool stores = false;
    for (std::int64_t i = 0; i < pass->grid.positions(); ++i)
      for_each_piece(pass->to, pass->grid, plan.routing(), i,
                     [&](const Piece& piece) { stores = stores || piece.rows > 0; });
    return stores;
  });
}

std::optional<At> pick_gemm(const Plan& plan, Dice& dice) {
  return pick(plan, dice, [](const Step& step, const At&) {
    const auto* gemm = std::get_if<Gemm>(&step);
    return gemm && gemm->grid.positions() > 0 && gemm->a_rows.run_at(0, 1).matrix_row >= 0;
  });
}

/// Breaks a plan; false where it has no such place.
using Mutator = std::function<bool(Plan&, Dice&)>;
struct Mutation {
  const char* name;
  Mutator apply;
};

bool drop_await(Plan& plan, Dice& dice) {
  const auto at = pick_await(plan, dice);
  if (at) erase(plan, *at);
  return at.has_value();
}

bool lower_target(Plan& plan, Dice& dice) {
  const auto at = pick_await(plan, dice);
  if (at) --get<Await>(plan, *at).target;
  return at.has_value();
}

bool raise_target(Plan& plan, Dice& dice) {
  const auto at = pick_kind<Await>(plan, dice);
  if (at) ++get<Await>(plan, *at).target;
  return at.has_value();
}

bool shift_collective(Plan& plan, Dice& dice) {
  // Where shards are padded to equal parts, a slice may hold nothing but padding, which may lie anywhere.
  if (plan.problem().op != Op::gemm_alltoall && plan.problem().m % plan.world() != 0) return false;
  const auto at = pick_collective(plan, dice);
  if (!at) return false;
  Collective& c = get<Collective>(plan, *at);
  Slice& slice = dice.size(0, 1) ? c.send : c.recv;
  const std::int64_t rows = plan.buffers[slice.buffer].rows[at->rank];
  if (slice.row + slice.rows < rows)
    ++slice.row;
  else if (slice.row > 0)
    --slice.row;
  else
    return false;
  return true;
}

bool swap_collectives(Plan& plan, Dice& dice) {
  const auto at = pick_collective(plan, dice);
  if (!at) return false;
  auto& lane = steps(plan, *at);
  for (std::size_t s = at->step + 1; s < lane.size(); ++s) {
    auto* other = std::get_if<Collective>(&lane[s]);
    if (!other || !moves(*other)) continue;
    std::swap(lane[at->step], lane[s]);
    return true;
  }
  return false;
}

bool duplicate_store(Plan& plan, Dice& dice) {
  const auto at = dice.size(0, 1) ? pick_pass(plan, dice) : pick_gemm(plan, dice);
  if (!at) return false;
  Step copy = steps(plan, *at)[at->step];
  if (auto* gemm = std::get_if<Gemm>(&copy)) gemm->notify.clear();
  if (auto* pass = std::get_if<Elementwise>(&copy)) pass->gates.clear();
  plan.ranks[at->rank].lanes.push_back({LaneKind::compute, "again", {std::move(copy)}});
  auto& issue = plan.ranks[at->rank].issue;
  issue.insert(issue.begin(), static_cast<std::int32_t>(plan.ranks[at->rank].lanes.size()) - 1);
  plan.workers += 8;  // it is the store that is wrong, not the lack of workers
  return true;
}

/// Whether a collective sums where it reads: once more would add the sums.
bool sums_in_place(const Collective& collective) {
  const bool sums =
      collective.kind == CollectiveKind::allreduce || collective.kind == CollectiveKind::reducescatter;
  return sums && collective.send.buffer == collective.recv.buffer;
}

/// A sum in place once more on every rank. (Once more of any other collective changes nothing: see Harmless.)
bool duplicate_contribution(Plan& plan, Dice& dice) {
  const auto at = pick_collective(plan, dice);
  if (!at || plan.world() == 1) return false;
  if (!sums_in_place(get<Collective>(plan, *at))) return false;
  for (int r = 0; r < plan.world(); ++r) {
    const At there{r, at->lane, at->step};
    insert(plan, there, steps(plan, there)[there.step]);
  }
  return true;
}

/// Where the reader looks for the tiles is rotated, where the writer put them is not.
bool permute_slots(Plan& plan, Dice& dice) {
  const auto at = pick(plan, dice, [](const Step& step, const At&) {
    const auto* pass = std::get_if<Elementwise>(&step);
    return pass && std::holds_alternative<placement::Slots>(pass->from[0].form) && pass->grid.tiles() > 1;
  });
  if (!at) return false;
  TileGrid& grid = get<Elementwise>(plan, *at).grid;
  const TileGrid before = grid;
  for (int i = 0; i < grid.loop_count; ++i) {
    grid.loops[i].rotation = (grid.loops[i].rotation + 1) % grid.loops[i].extent;
    for (std::int64_t p = 0; p < grid.positions(); ++p) {  // phantom tiles may turn about each other only
      const Tile tile = before.tile(p);
      if (!before.phantom(tile) && before.rows_before(p) != grid.rows_before(grid.linear(tile))) return true;
    }
    grid = before;
  }
  return false;
}

bool forget_contribution(Plan& plan, Dice& dice) {
  const auto at = pick_gemm(plan, dice);
  if (!at) return false;
  const Gemm gemm = get<Gemm>(plan, *at);
  erase(plan, *at);
  for (const TileNotify& notify : gemm.notify)
    for (std::size_t g = 0; g < notify.ends.size(); ++g) {
      const CounterRef count{notify.counter, at->rank, static_cast<std::int32_t>(g)};
      const auto tiles = plan.counters[notify.counter].growth[at->rank][g];
      if (tiles > 0) insert(plan, *at, Notify{count, tiles});
    }
  return true;
}

bool exceed_workers(Plan& plan, Dice& dice) {
  if (const auto at = pick_kind<Collective>(plan, dice); at && dice.size(0, 1)) {
    get<Collective>(plan, *at).resources = {plan.workers + 1, plan.workers + 1};
    return true;
  }
  const auto gate = pick_gate(plan, dice);
  if (gate) get<Elementwise>(plan, gate->first).resources = {plan.workers + 1, plan.workers + 1};
  return gate.has_value();
}

bool drop_notify(Plan& plan, Dice& dice) {
  const auto at = pick_kind<Notify>(plan, dice);
  if (at) erase(plan, *at);
  return at.has_value();
}

bool notify_twice(Plan& plan, Dice& dice) {
  const auto at = pick_kind<Notify>(plan, dice);
  if (at) insert(plan, *at, steps(plan, *at)[at->step]);
  return at.has_value();
}

/// The communicator's steps are issued before the GEMM that they wait for.
bool issue_await_first(Plan& plan, Dice& dice) {
  const auto at = pick(plan, dice, [](const Step& step, const At& where) {
    const auto* await = std::get_if<Await>(&step);
    return await && await->target > 0 && where.lane == 1;
  });
  if (!at) return false;
  auto& issue = plan.ranks[at->rank].issue;
  std::stable_sort(issue.begin(), issue.end(), std::greater<>{});
  return true;
}

bool remove_gate(Plan& plan, Dice& dice) {
  const auto gate = pick_gate(plan, dice);
  if (gate) get<Elementwise>(plan, gate->first).gates.clear();
  return gate.has_value();
}

bool lower_gate(Plan& plan, Dice& dice) {
  const auto gate = pick_gate(plan, dice);
  if (gate) get<Elementwise>(plan, gate->first).gates[0].targets[gate->second] = 0;
  return gate.has_value();
}

/// The last tile of a group counts for the next one.
bool move_boundary(Plan& plan, Dice& dice) {
  const auto at = pick_gemm(plan, dice);
  if (!at || get<Gemm>(plan, *at).notify.empty()) return false;
  Gemm& gemm = get<Gemm>(plan, *at);
  auto& ends = gemm.notify[0].ends;
  for (std::size_t g = 0; g + 1 < ends.size(); ++g)
    if (ends[g] > (g == 0 ? 0 : ends[g - 1]) && !gemm.grid.phantom(gemm.grid.tile(ends[g] - 1))) {
      --ends[g];
      return true;
    }
  return false;
}

bool collective_before_await(Plan& plan, Dice& dice) {
  const auto at = pick(plan, dice, [&](const Step& step, const At& where) {
    const auto* c = std::get_if<Collective>(&step);
    if (!c || !moves(*c) || where.step == 0) return false;
    const auto* await = std::get_if<Await>(&steps(plan, where)[where.step - 1]);
    return await && await->target > 0;
  });
  if (at) std::swap(steps(plan, *at)[at->step - 1], steps(plan, *at)[at->step]);
  return at.has_value();
}

bool second_lane(Plan& plan, Dice& dice) {
  const auto at = pick_kind<Collective>(plan, dice);
  if (!at) return false;
  std::size_t calls = 0;
  for (const Step& step : steps(plan, *at)) calls += std::holds_alternative<Collective>(step);
  if (calls < 2) return false;
  auto& rank = plan.ranks[at->rank];
  rank.issue[static_cast<std::size_t>(issued_at(plan, *at))] = static_cast<std::int32_t>(rank.lanes.size());
  Step moved = steps(plan, *at)[at->step];
  steps(plan, *at).erase(steps(plan, *at).begin() + static_cast<std::ptrdiff_t>(at->step));
  rank.lanes.push_back({LaneKind::communicate, "second", {std::move(moved)}});
  return true;
}

bool drop_collective(Plan& plan, Dice& dice) {
  const auto at = pick_collective(plan, dice);
  if (at) erase(plan, *at);
  return at.has_value();
}

bool shift_rows_of_a(Plan& plan, Dice& dice) {
  const auto at = pick_gemm(plan, dice);
  if (at) ++get<Gemm>(plan, *at).a_rows.base;
  return at.has_value();
}

/// First rows of pools or of groups of slots; null if the placement has neither.
std::vector<std::int64_t>* bases_of(Placement& at) {
  if (auto* pools = std::get_if<placement::Pools>(&at.form)) return &pools->bases;
  auto* slots = std::get_if<placement::Slots>(&at.form);
  return slots == nullptr ? nullptr : &slots->bases;
}

bool shift_bases(Plan& plan, Dice& dice) {
  const auto at = pick_pass(plan, dice);
  if (!at) return false;
  Elementwise& pass = get<Elementwise>(plan, *at);
  auto* bases = bases_of(std::holds_alternative<placement::Pools>(pass.to.form) ? pass.to : pass.from[0]);
  if (bases == nullptr) return false;
  for (std::int64_t& base : *bases) ++base;
  return !bases->empty();
}

bool read_other_buffer(Plan& plan, Dice& dice) {
  const auto at = pick_pass(plan, dice);
  if (!at) return false;
  const Placement& source = get<Elementwise>(plan, *at).from[0];
  if (const auto* pools = std::get_if<placement::Pools>(&source.form); pools && pools->source == at->rank)
    return false;  // what it sent to itself
  Slice& from = get<Elementwise>(plan, *at).from[0].slice;
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    const Buffer& other = plan.buffers[b];
    if (static_cast<std::int32_t>(b) == from.buffer || other.cols != from.cols ||
        other.rows[at->rank] < from.row + from.rows)
      continue;
    from.buffer = static_cast<std::int32_t>(b);
    return true;
  }
  return false;
}

bool read_neighbour(Plan& plan, Dice& dice) {
  const auto at = pick_pass(plan, dice);
  if (!at || plan.world() == 1) return false;
  Slice& from = get<Elementwise>(plan, *at).from[0].slice;
  from.rank = (from.rank + 1) % plan.world();
  return true;
}

bool drop_pass(Plan& plan, Dice& dice) {
  const auto at = pick_pass(plan, dice);
  if (at) erase(plan, *at);
  return at.has_value();
}

bool other_epilogue(Plan& plan, Dice& dice) {
  for (const bool gemm : {true, false}) {
    const auto at = gemm ? pick_gemm(plan, dice) : pick_pass(plan, dice);
    if (!at) continue;
    Epilogue& epilogue = gemm ? get<Gemm>(plan, *at).epilogue : get<Elementwise>(plan, *at).epilogue;
    if (epilogue.activation == Activation::none || epilogue.activation == Activation::swiglu) continue;
    epilogue.activation = epilogue.activation == Activation::relu ? Activation::gelu : Activation::relu;
    return true;
  }
  return false;
}

/// What every rank has at the end is summed over them once more.
bool sum_again(Plan& plan, Dice& dice) {
  const auto at = pick_kind<Collective>(plan, dice);
  if (!at) return false;
  const auto out = find_buffer(plan, Role::out);
  const auto communicator = get<Collective>(plan, *at).communicator;
  for (int r = 0; r < plan.world(); ++r) {
    const Slice all = whole(plan, out, r);
    insert(plan, {r, at->lane, plan.ranks[r].lanes[at->lane].steps.size()},
           Collective{CollectiveKind::allreduce, communicator, all, all, {}, {}, {}});
  }
  return true;
}

bool rotate_counts(Plan& plan, Dice& dice) {
  const auto at = pick_collective(plan, dice);
  if (!at) return false;
  auto& counts = get<Collective>(plan, *at).send_rows;
  if (std::ranges::adjacent_find(counts, std::not_equal_to<>{}) == counts.end()) return false;
  std::ranges::rotate(counts, counts.begin() + 1);
  return true;
}

/// A list of messages of an exchange that is not empty.
std::vector<Exchange::Message>* pick_messages(Plan& plan, Dice& dice) {
  const auto at = pick_kind<Exchange>(plan, dice);
  if (!at) return nullptr;
  Exchange& exchange = get<Exchange>(plan, *at);
  const bool sends = exchange.receives.empty() || (!exchange.sends.empty() && dice.size(0, 1));
  return sends ? &exchange.sends : &exchange.receives;
}

bool drop_message(Plan& plan, Dice& dice) {
  auto* messages = pick_messages(plan, dice);
  if (messages) messages->pop_back();
  return messages != nullptr;
}

/// The message goes to, or is expected of, another rank than agreed.
bool swap_peers(Plan& plan, Dice& dice) {
  auto* messages = pick_messages(plan, dice);
  if (!messages) return false;
  std::int32_t& peer = messages->front().peer;
  peer = (peer + 1) % plan.world();
  return true;
}

bool shift_message(Plan& plan, Dice& dice) {
  auto* messages = pick_messages(plan, dice);
  if (!messages) return false;
  Slice& slice = messages->front().slice;
  const std::int64_t rows = plan.buffers[slice.buffer].rows[slice.rank];
  if (slice.rows == rows) return false;
  slice.row += slice.row + slice.rows < rows ? 1 : -1;
  return true;
}

bool drop_await_before_send(Plan& plan, Dice& dice) {
  const auto at = pick(plan, dice, [&](const Step& step, const At& where) {
    const auto& lane = steps(plan, where);
    return std::holds_alternative<Await>(step) && where.step + 1 < lane.size() &&
           std::holds_alternative<Exchange>(lane[where.step + 1]);
  });
  if (at) erase(plan, *at);
  return at.has_value();
}

/// Two that both send: their receivers get each message for the other. (One that only sends and one that only
/// receives may come in any order.)
bool swap_exchanges(Plan& plan, Dice& dice) {
  const auto at = pick(plan, dice, [](const Step& step, const At&) {
    const auto* exchange = std::get_if<Exchange>(&step);
    return exchange && !exchange->sends.empty();
  });
  if (!at) return false;
  auto& lane = steps(plan, *at);
  for (std::size_t s = at->step + 1; s < lane.size(); ++s)
    if (const auto* other = std::get_if<Exchange>(&lane[s]); other && !other->sends.empty()) {
      std::swap(lane[at->step], lane[s]);
      return true;
    }
  return false;
}

/// The plan says something else of its numbers. (A sum of two has several names; so has one that f32 does not
/// tell apart.)
bool forge_rounding(Plan& plan, Dice& dice) {
  if (dice.size(0, 4) == 0) {
    plan.rounding += '0';
    return true;
  }
  if (plan.world() < 3 || plan.dtype() == DType::f32) return false;
  const auto all = statements(plan.work);  // the last is true of every plan
  Rounding other = all[static_cast<std::size_t>(dice.size(0, static_cast<std::int64_t>(all.size()) - 2))];
  if (sentence(plan.work, other) == plan.rounding) other.last_pass = !other.last_pass;
  plan.rounding = sentence(plan.work, other);
  return true;
}

/// A pass that follows its groups is issued before the lane that opens them.
bool issue_gated_pass_first(Plan& plan, Dice& dice) {
  const auto at = pick_gate(plan, dice);
  if (!at || at->first.lane != 0) return false;
  const Elementwise& pass = get<Elementwise>(plan, at->first);
  if (!by_groups(pass) || pass.gates[0].targets[at->second] == 0) return false;
  auto& issue = plan.ranks[at->first.rank].issue;
  std::stable_sort(issue.begin(), issue.end());
  return true;
}

bool wrong_growth(Plan& plan, Dice& dice) {
  if (plan.counters.empty()) return false;
  auto& ranks = plan.counters[static_cast<std::size_t>(
                                  dice.size(0, static_cast<std::int64_t>(plan.counters.size()) - 1))]
                    .growth;
  auto& entries = ranks[static_cast<std::size_t>(dice.size(0, plan.world() - 1))];
  if (entries.empty()) return false;
  ++entries[0];
  return true;
}

const Mutation mutations[] = {{"drop an await", drop_await},
                              {"lower a target", lower_target},
                              {"raise a target", raise_target},
                              {"shift a collective's slice", shift_collective},
                              {"swap two collectives on one rank", swap_collectives},
                              {"duplicate a store", duplicate_store},
                              {"duplicate a contribution", duplicate_contribution},
                              {"permute slots on one side", permute_slots},
                              {"forget a rank's contribution", forget_contribution},
                              {"exceed the workers", exceed_workers},
                              {"drop a notify", drop_notify},
                              {"notify twice", notify_twice},
                              {"issue an await first", issue_await_first},
                              {"remove a gate", remove_gate},
                              {"lower a gate's target", lower_gate},
                              {"move a group's boundary", move_boundary},
                              {"collective before its await", collective_before_await},
                              {"second lane on a communicator", second_lane},
                              {"drop a collective on one rank", drop_collective},
                              {"shift the rows of A", shift_rows_of_a},
                              {"shift the bases", shift_bases},
                              {"read another buffer", read_other_buffer},
                              {"read the neighbour's memory", read_neighbour},
                              {"drop a pass", drop_pass},
                              {"another epilogue", other_epilogue},
                              {"sum again", sum_again},
                              {"rotate an alltoall's counts", rotate_counts},
                              {"drop a message", drop_message},
                              {"swap peers", swap_peers},
                              {"shift a message", shift_message},
                              {"drop the await before a send", drop_await_before_send},
                              {"swap two exchanges on one rank", swap_exchanges},
                              {"forge the rounding", forge_rounding},
                              {"issue a gated pass first", issue_gated_pass_first},
                              {"declare another growth", wrong_growth}};

/// A correct plan, of a problem in which every rank has rows to compute and to keep.
std::optional<Plan> random_plan(Dice& dice) {
  const Problem p = test::random_problem(dice, {.world = 6, .m = 60, .n = 40, .k = 12});
  if (p.world == 1) return std::nullopt;
  for (int r = 0; r < p.world; ++r)
    if (p.a_rows(r) == 0 || p.out_rows(r) == 0) return std::nullopt;
  const Machine machine = test::random_machine(dice);
  const auto all = test::random_params(dice, p);
  const auto mechanism = test::one_of(dice, {Mechanism::sequential, Mechanism::chunked, Mechanism::signal,
                                             Mechanism::signal, Mechanism::ring});
  Params params = all[static_cast<std::size_t>(mechanism)];
  if (auto* ring = std::get_if<RingParams>(&params)) ring->engines = 0;  // verify_ring_mutation_test.cpp
  auto plan = plan_with(p, machine, params);
  if (!plan) return std::nullopt;
  return *plan;
}

class Mutations : public ::testing::TestWithParam<Mutation> {};

TEST_P(Mutations, AreAllCaught) {
  constexpr int wanted = 200;
  Dice dice(20);
  int caught = 0;
  for (int tries = 0; caught < wanted && tries < 400 * wanted; ++tries) {
    auto plan = random_plan(dice);
    if (!plan) continue;
    Plan mutant = *plan;
    if (!GetParam().apply(mutant, dice)) continue;
    const Proof proof = verify(mutant);
    if (proof.ok) {
      ASSERT_TRUE(verify(*plan)) << "the plan was wrong before";
      FAIL() << "survived: " << GetParam().name << "\n" << to_text(*plan) << "\nmutant\n" << to_text(mutant);
    }
    ASSERT_FALSE(proof.failure.empty());
    EXPECT_TRUE(proof.failure.find_first_of("0123456789") != std::string::npos) << proof.failure;
    ++caught;
  }
  EXPECT_EQ(caught, wanted) << "too few plans have a place for this mutation";
}

INSTANTIATE_TEST_SUITE_P(Verify, Mutations, ::testing::ValuesIn(mutations), [](const auto& param) {
  std::string text = param.param.name;
  std::ranges::replace_if(text, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return text;
});

/// The changes that mutators skip are no defects: the plans are as right as before.
TEST(Harmless, ChangesPass) {
  Dice dice(7);
  int awaits = 0, collectives = 0, depths = 0;
  for (int tries = 0; tries < 4000 && (awaits < 30 || collectives < 30 || depths < 30); ++tries) {
    const auto plan = random_plan(dice);
    if (!plan) continue;
    // An await that the next one implies.
    if (const auto at = pick(*plan, dice, [&](const Step&, const At& a) { return implied(*plan, a); })) {
      Plan mutant = *plan;
      erase(mutant, *at);
      const Proof proof = verify(mutant);
      EXPECT_TRUE(proof) << proof.failure << "\n" << to_text(mutant);
      ++awaits;
    }
    // A collective that does not sum in place, once more: it sends the same again.
    if (const auto at = pick_collective(*plan, dice)) {
      Plan mutant = *plan;
      const auto& collective = get<Collective>(mutant, *at);
      if (collective.kind != CollectiveKind::allreduce && !sums_in_place(collective)) {
        for (int r = 0; r < mutant.world(); ++r)
          insert(mutant, {r, at->lane, at->step}, steps(mutant, {r, at->lane, at->step})[at->step]);
        const Proof proof = verify(mutant);
        EXPECT_TRUE(proof) << proof.failure << "\n" << to_text(mutant);
        ++collectives;
      }
    }
    // Two copies of every internal buffer instead of one.
    Plan mutant = *plan;
    for (Buffer& buffer : mutant.buffers)
      if (buffer.role == Role::internal) buffer.depth = 2;
    const Proof proof = verify(mutant);
    EXPECT_TRUE(proof) << proof.failure << "\n" << to_text(mutant);
    ++depths;
  }
  EXPECT_GE(awaits, 30);
  EXPECT_GE(collectives, 30);
}

}  // namespace
}  // namespace shingle::verify_mutation_test
