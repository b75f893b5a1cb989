#include "shingle/api/context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/agreement.hpp"
#include "base/log.hpp"
#include "call_plans.hpp"
#include "largest_routing.hpp"
#include "matrix.hpp"
#include "own_profile.hpp"
#include "plan/arena_layout.hpp"
#include "plan/gathered_rows.hpp"
#include "ready_plans.hpp"
#include "registered.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"
#include "shingle/plan/json.hpp"

namespace shingle {
namespace {

/// The attention to sequences of these lengths. One sequence is an attention without lengths.
Problem with_lengths(Problem problem, std::vector<std::int64_t> lengths) {
  if (lengths.size() > 1) problem.attention.lengths = std::move(lengths);
  return problem;
}

Problem with_routing(Problem problem, std::shared_ptr<const Routing> routing) {
  problem.m = most_rows(*routing) / problem.choices();
  problem.routing = std::move(routing);
  return problem;
}

std::string text_of(const Params& params) {
  return fmt::format("{} {}", name(mechanism_of(params)), describe(list_of(params)));
}

/// All fields of a problem, as text.
std::string all_of(const Problem& problem) {
  Plan plan;
  plan.work = problem;
  return to_json(plan, -1);
}

}  // namespace

struct Context::State {
  World& world;
  ContextOptions options;
  const Machine machine;
  std::vector<int> ranks;
  std::vector<Declared> operators;
  std::shared_ptr<Registered> registered;  // null: none
  std::shared_ptr<Arena> arena;
  CallPlans plans;
  ReadyPlans ready;
  std::vector<CallMatrix> matrices;  // of the call that is being made
  std::uint32_t calls = 0;
  std::int64_t gathered_bytes = -1;  // of the last call

  State(World& of, ContextOptions with)
      : world(of),
        options(std::move(with)),
        machine(with_workers(machine_for(of, options.profile), options.workers, "machine")),
        ranks(of.local_ranks()),
        plans(world, options, options.registered_bytes <= 0),
        ready(options.most_plans) {
    if (!(options.timeout_us > 0))
      throw InvalidArgument(fmt::format("timeout_us = {} must be positive", options.timeout_us));
    if (options.most_plans < 1) throw InvalidArgument("most_plans = 0 must be at least 1");
    const auto require_no_negative = [](std::int64_t bytes, const char* field) {
      if (bytes < 0) throw InvalidArgument(fmt::format("{} = {} must not be negative", field, bytes));
    };
    require_no_negative(options.arena_bytes, "arena_bytes");
    require_no_negative(options.registered_bytes, "registered_bytes");
    const auto require_same = [this](std::int64_t bytes, const char* field) {
      if (!all_same(world, static_cast<double>(bytes)))
        throw InvalidArgument(fmt::format("{} = {} is not the same on all ranks", field, bytes));
    };
    require_same(options.arena_bytes, "arena_bytes");
    require_same(options.registered_bytes, "registered_bytes");
    if (options.registered_bytes > 0)
      registered = std::make_shared<Registered>(world, options.registered_bytes);
    arena = make_arena(options.arena_bytes);
  }

  std::shared_ptr<Arena> make_arena(std::int64_t bytes) {
    return world.make_arena(bytes, registered ? registered->heap() : nullptr);
  }

  /// Throws if declare() could not enlarge the arena.
  const Arena& staging() const {
    if (!arena)
      throw Error(
          "the context has no staging memory: declare() could not enlarge it; make a new context with a "
          "smaller m");
    return *arena;
  }

  Declared& declared(int op) {
    (void)find(op);
    return operators[static_cast<std::size_t>(op)];
  }
  const Problem& find(int op) const {
    if (op < 0 || static_cast<std::size_t>(op) >= operators.size())
      throw InvalidArgument(
          fmt::format("operator {} is not declared: the context has {}", op, operators.size()));
    return operators[static_cast<std::size_t>(op)].largest;
  }

  /// The plan that serves a call: the chosen one, or the sequential one if that does not serve this m, or
  /// needs more than the context has. `in_graph`: the chosen one cannot be captured, but the call is.
  Plan planned(int op, const Problem& problem, bool in_graph) {
    if (in_graph) return plans.sequential(declared(op), problem);
    Result<Plan> plan = plans.chosen(declared(op), problem);
    if (!plan || arena_layout(*plan).bytes > staging().bytes() || !world.is_prepared(*plan))
      return plans.sequential(declared(op), problem);
    return std::move(plan).value();
  }

  ReadyPlan& get(int op, const Problem& problem, bool in_graph = false) {
    if (ReadyPlan* const found = ready.find(op, problem, in_graph)) return *found;
    ReadyPlan made{.op = op,
                   .problem = problem,
                   .in_graph = in_graph,
                   .plan = prove_if_asked(planned(op, problem, in_graph), options.verify, Setting::context)};
    log_line(LogLevel::debug, fmt::format("operator {}: {} by {} {}", op, describe(problem),
                                          name(made.plan.mechanism), describe(made.plan.params)));
    for (const int rank : ranks)
      for (const Role role : roles_of(problem))
        made.wanted.push_back({rank, role, shape_of(problem, role, rank)});
    if (const std::int32_t gathered = find_gathered_rows(made.plan); gathered >= 0)
      made.gathered_bytes = arena_layout(made.plan).offset_bytes[static_cast<std::size_t>(gathered)];
    made.executable = world.compile(made.plan, arena, options.timeout_us);
    return ready.add(std::move(made));
  }

  Problem sized(int op, std::int64_t m) const {
    require_rows(op, m);
    return with_m(find(op), m);
  }

  void require_rows(int op, std::int64_t m) const {
    const Problem& largest = find(op);
    if (needs_routing(largest))
      throw InvalidArgument(
          fmt::format("operator {} ({}) exchanges rows: a call needs a routing", op, name(largest.op)));
    if (m < 1 || m > largest.m)
      throw InvalidArgument(
          fmt::format("m = {} of a call of operator {} is outside [1, {}]", m, op, largest.m));
    if (const std::int64_t step = operators[static_cast<std::size_t>(op)].options.m_step; m % step != 0)
      throw InvalidArgument(fmt::format("m = {} of a call of operator {} is no multiple of {}", m, op, step));
  }

  Problem packed(int op, std::span<const std::int64_t> lengths) const {
    const Problem& largest = find(op);
    if (!largest.traits().attends)
      throw InvalidArgument(
          fmt::format("operator {} ({}) is no attention: a call needs an m, not lengths of sequences", op,
                      name(largest.op)));
    Problem problem = with_lengths(largest, {lengths.begin(), lengths.end()});
    problem.m = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    require_rows(op, problem.m);
    problem.validate();
    return problem;
  }

  Problem routed(int op, std::shared_ptr<const Routing> routing) const {
    const Problem& largest = find(op);
    if (!needs_routing(largest))
      throw InvalidArgument(fmt::format("operator {} ({}) {}: a call needs an m, not a routing", op,
                                        name(largest.op),
                                        largest.has_slots() ? "routes on the device" : "exchanges no rows"));
    if (!routing) throw InvalidArgument("the routing of the call is null");
    Problem problem = with_routing(largest, std::move(routing));
    if (problem.m > largest.m)
      throw InvalidArgument(fmt::format("a rank sends {} {} in a call of operator {}, which takes at most {}",
                                        problem.m, largest.traits().grouped ? "tokens" : "rows", op,
                                        largest.m));
    problem.validate();
    return problem;
  }

  /// The matrices of all local ranks, each checked.
  std::span<const CallMatrix> checked(const ReadyPlan& serving, std::span<const Argument> arguments) {
    matrices.clear();
    const auto given = [&](int rank, Role role) {
      return std::ranges::any_of(matrices,
                                 [&](const CallMatrix& at) { return at.rank == rank && at.role == role; });
    };
    for (const auto& [rank, role, matrix] : arguments) {
      const auto wanted = std::ranges::find_if(
          serving.wanted, [&](const ReadyPlan::Wanted& at) { return at.rank == rank && at.role == role; });
      std::int64_t fewer = -1;  // rows, if they are fewer than the plan's
      // The common case costs no allocation; otherwise require_fits() finds the words.
      if (wanted == serving.wanted.end() || matrix.shape != wanted->shape ||
          matrix.dtype != dtype_of(serving.problem, role) || matrix.row_stride != 0 ||
          (matrix.data == nullptr && wanted->shape.elements() > 0)) {
        if (std::ranges::find(ranks, rank) == ranks.end())
          throw InvalidArgument(fmt::format("rank {} is not a rank of this process", rank), rank);
        require_fits(serving.problem, rank, role, matrix, true);
        if (matrix.shape.rows < wanted->shape.rows) fewer = matrix.shape.rows;
      }
      if (given(rank, role)) throw wrong_matrix(rank, role, "given twice");
      matrices.push_back({rank, role, {matrix.data, matrix.row_stride, fewer}});
    }
    require_same_tokens(serving.problem, matrices);
    for (const ReadyPlan::Wanted& at : serving.wanted)
      if (matrices.size() < serving.wanted.size() && !given(at.rank, at.role))
        throw wrong_matrix(at.rank, at.role, "not given");
    return matrices;
  }

  void call(ReadyPlan& serving, std::span<const Argument> arguments, std::span<void* const> streams) {
    const std::span<const CallMatrix> checked_matrices = checked(serving, arguments);
    const CallTag tag{serving.op, serving.problem.m, calls};
    ReadyPlan* served = &serving;
    try {
      serving.executable->enqueue(tag, checked_matrices, streams);
    } catch (const Unsupported&) {  // the streams are being captured, and a graph cannot hold the plan
      served = &get(tag.op, Problem(serving.problem), true);
      served->executable->enqueue(tag, checked_matrices, streams);
    }
    gathered_bytes = served->gathered_bytes;
    ++calls;
  }

  void call(int op, std::int64_t m, std::span<const Argument> arguments, std::span<void* const> streams) {
    require_rows(op, m);
    ReadyPlan* const known = ready.find(op, m);
    call(known != nullptr ? *known : get(op, with_m(find(op), m)), arguments, streams);
  }

  int declare(const Problem& largest, DeclareOptions with) {
    largest.validate();
    const std::int64_t m_step = with.m_step;
    if (m_step < 1 || (m_step > 1 && (largest.routing || largest.m % m_step != 0)))
      throw InvalidArgument(
          fmt::format("m_step = {} must divide m = {}, and be 1 with a routing", m_step, largest.m));
    if (!largest.attention.lengths.empty())
      throw InvalidArgument(
          "an operator of a context is declared without lengths of sequences: each call gives its own");
    if (largest.world != world.size())
      throw InvalidArgument(
          fmt::format("the problem is for {} ranks, the world has {}", largest.world, world.size()));
    if (!all_same(world, fmt::format("{} {} {} {}", all_of(largest), m_step, with.workers,
                                     with.params ? text_of(*with.params) : "")))
      throw InvalidArgument(
          fmt::format("the processes declare different operators; this one {}", describe(largest)));
    const int op = static_cast<int>(operators.size());
    Machine of_calls = with_workers(machine, with.workers, "context");
    operators.push_back({largest, std::move(with), std::move(of_calls), {}});
    try {
      const Problem worst =
          needs_routing(largest) ? with_routing(largest, all_to_first(largest)) : with_m(largest, largest.m);
      const std::vector<Plan> typical = plans.typical(operators.back(), worst);
      std::int64_t bytes = plans.sequential_bytes(operators.back(), worst);
      for (const Plan& plan : typical)
        if (plan.problem().m == worst.m) bytes = std::max(bytes, arena_layout(plan).bytes);
      if (bytes > staging().bytes()) {
        ready.clear();
        gathered_bytes = -1;
        arena.reset();  // before the next is made: both may not fit
        arena = make_arena(bytes);
      }
      for (const Plan& plan : typical) world.prepare(plan, arena);
    } catch (...) {
      operators.pop_back();
      throw;
    }
    return op;
  }
};

Context::Context(World& world, ContextOptions options) : state_(new State(world, std::move(options))) {}
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;
Context::~Context() = default;

int Context::declare(const Problem& largest, DeclareOptions options) {
  return state_->declare(largest, std::move(options));
}

void Context::call(int op, std::int64_t m, std::span<const Argument> arguments,
                   std::span<void* const> streams) {
  state_->call(op, m, arguments, streams);
}

void Context::call(int op, std::shared_ptr<const Routing> routing, std::span<const Argument> arguments,
                   std::span<void* const> streams) {
  state_->call(state_->get(op, state_->routed(op, std::move(routing))), arguments, streams);
}

void Context::call(int op, std::span<const std::int64_t> lengths, std::span<const Argument> arguments,
                   std::span<void* const> streams) {
  state_->call(state_->get(op, state_->packed(op, lengths)), arguments, streams);
}

const void* Context::gathered(int rank) const {
  if (std::ranges::find(state_->ranks, rank) == state_->ranks.end())
    throw InvalidArgument(fmt::format("rank {} is not a rank of this process", rank), rank);
  if (state_->gathered_bytes < 0) return nullptr;
  return static_cast<const std::byte*>(state_->arena->data(rank)) + state_->gathered_bytes;
}

bool Context::gathers_in_order(int op, std::int64_t m) {
  return state_->get(op, state_->sized(op, m)).gathered_bytes >= 0;
}

void Context::extend(std::span<void* const> streams) {
  state_->staging();  // throws if there is none
  state_->arena->extend(streams);
}

void Context::synchronize() {
  state_->ready.synchronize();
}

const Problem& Context::largest(int op) const {
  return state_->find(op);
}

Problem Context::problem(int op, std::int64_t m) const {
  return state_->sized(op, m);
}

const Plan& Context::plan(int op, std::int64_t m) {
  return state_->get(op, state_->sized(op, m)).plan;
}

DeviceBuffer Context::allocate(int rank, std::int64_t bytes) {
  if (!state_->registered)
    throw InvalidArgument("the context has no registered memory: set registered_bytes of its options");
  return state_->registered->allocate(rank, bytes);
}

std::int64_t Context::arena_bytes() const {
  return state_->staging().bytes();
}

}  // namespace shingle
