#include "shingle/api/operator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "shingle/base/error.hpp"
#include "shingle/verify/verify.hpp"

namespace shingle {
namespace {

#ifdef NDEBUG
constexpr bool always_verify = false;
#else
constexpr bool always_verify = true;
#endif

/// A plan, proven if the options ask for it, or the reason why there is none.
Result<Plan> made(const World& world, const Problem& problem, const Options& options) {
  const Machine& machine = options.profile ? *options.profile : world.machine();
  if (machine.workers != world.machine().workers)
    throw InvalidArgument(
        fmt::format("profile: {} has {} workers, this machine {}; use a profile of this machine",
                    machine.name, machine.workers, world.machine().workers));
  Result<Plan> plan = options.mechanism ? make_plan(problem, machine, *options.mechanism, options.params)
                                        : make_best_plan(problem, machine, options.params);
  if (plan && (options.verify || always_verify)) {
    const Proof proof = verify(*plan);
    const bool refused = proof.rule == "size" && !options.verify;  // no one asked for this proof
    if (!proof && !refused)
      throw Error(fmt::format("the {} plan fails its proof ({}): {}", name(plan->mechanism), proof.rule,
                              proof.failure));
  }
  return plan;
}

Plan planned(const World& world, const Problem& problem, const Options& options) {
  if (problem.world != world.size())
    throw InvalidArgument(
        fmt::format("the problem is for {} ranks, the world has {}", problem.world, world.size()));
  return made(world, problem, options).value();
}

std::string to_text(const MatrixView& matrix) {
  return fmt::format("{}x{} {}", matrix.shape.rows, matrix.shape.cols, name(matrix.dtype));
}

bool fits(std::size_t elements, const MatrixView& wanted) {
  return static_cast<std::int64_t>(elements) == wanted.shape.elements();
}

[[noreturn]] void refuse_matrix(int rank, Role role, const std::string& given, const MatrixView& wanted) {
  throw InvalidArgument(fmt::format("matrix '{}' of rank {}: {} given, expected {} ({} elements)", name(role),
                                    rank, given, to_text(wanted), wanted.shape.elements()),
                        rank);
}

}  // namespace

struct Operator::State {
  /// A plan, and its executable.
  struct Ready {
    Ready(World& world, Plan made) : plan(std::move(made)), executable(world.compile(plan)) {}
    Plan plan;
    std::unique_ptr<Executable> executable;
  };

  World& world;
  std::optional<Options> options;  // options of the plan; empty: the user gave the plan
  double timeout_us;
  std::vector<int> ranks;
  std::unique_ptr<Ready> ready;
  std::vector<std::unique_ptr<Ready>> former;  // plans that the user's graphs may have captured
  bool enqueued = false;                       // true if `ready` has been enqueued
  std::map<std::pair<int, Role>, void*> matrices;
  std::set<std::pair<int, Role>> unbound;

  State(World& on, Plan plan, std::optional<Options> made_with, double deadline)
      : world(on),
        options(std::move(made_with)),
        timeout_us(deadline),
        ranks(on.local_ranks()),
        ready(new Ready(on, std::move(plan))) {
    for (const int rank : ranks)
      for (const Role role : roles_of(ready->plan.problem)) unbound.emplace(rank, role);
  }

  void require_bound() const {
    if (unbound.empty()) return;
    const auto& [rank, role] = *unbound.begin();
    throw InvalidArgument(fmt::format("matrix '{}' of rank {} is not bound", name(role), rank), rank);
  }

  /// If peers cannot access a bound matrix, replaces the plan by one that stages it. Ranks then copy the
  /// parts that arrive to their own matrices. Collective.
  void suit_matrices() {
    if (!options || options->params.unregistered || !ready->executable->copies_whole()) return;
    Options other = *options;
    other.params.unregistered = true;
    other.mechanism = ready->plan.mechanism;
    Result<Plan> plan = made(world, ready->plan.problem, other);
    if (!plan) return options.reset();
    std::unique_ptr<Ready> next;
    try {
      next = std::make_unique<Ready>(world, std::move(plan).value());
      for (const auto& [at, memory] : matrices) next->executable->bind(at.first, at.second, memory);
    } catch (const Error&) {  // some rank has no room for both plans
      next.reset();
    }
    if (world.all_max({next ? 0.0 : 1.0})[0] > 0) return options.reset();
    ready->executable->synchronize();  // its epochs come before the next plan's
    std::swap(ready, next);
    options = other;
    if (enqueued) former.push_back(std::move(next));
    enqueued = false;
  }
};

Operator::Operator(World& world, const Problem& problem, const Options& options)
    : state_(new State(world, planned(world, problem, options), options, options.timeout_us)) {}

Operator::Operator(World& world, Plan plan, double timeout_us)
    : state_(new State(world, std::move(plan), std::nullopt, timeout_us)) {}

Operator::Operator(Operator&&) noexcept = default;
Operator& Operator::operator=(Operator&&) noexcept = default;
Operator::~Operator() = default;

const Problem& Operator::problem() const {
  return state_->ready->plan.problem;
}
const Plan& Operator::plan() const {
  return state_->ready->plan;
}
Executable& Operator::executable() {
  return *state_->ready->executable;
}
std::int64_t Operator::memory_bytes(int rank) const {
  return state_->ready->executable->internal_bytes(rank);
}

void Operator::require_matrix(int rank, Role role) const {
  const std::vector<Role> roles = roles_of(problem());
  if (std::find(roles.begin(), roles.end(), role) == roles.end())
    throw InvalidArgument(fmt::format("{} has no matrix '{}'", describe(problem()), name(role)), rank);
  if (std::find(state_->ranks.begin(), state_->ranks.end(), rank) == state_->ranks.end())
    throw InvalidArgument(fmt::format("rank {} is not a rank of this process", rank), rank);
}

void Operator::bind(int rank, Role role, const MatrixView& matrix) {
  require_matrix(rank, role);
  const MatrixView wanted{nullptr, shape(role, rank), problem().dtype};
  if (matrix.shape != wanted.shape || matrix.dtype != wanted.dtype)
    refuse_matrix(rank, role, to_text(matrix), wanted);
  bind(rank, role, matrix.data);
}

void Operator::bind(int rank, Role role, std::span<float> elements) {
  require_matrix(rank, role);
  const MatrixView wanted{nullptr, shape(role, rank), problem().dtype};
  if (wanted.dtype != DType::f32 || !fits(elements.size(), wanted))
    refuse_matrix(rank, role, fmt::format("{} elements of f32", elements.size()), wanted);
  bind(rank, role, static_cast<void*>(elements.data()));
}

void Operator::bind(int rank, Role role, std::span<std::uint16_t> elements) {
  require_matrix(rank, role);
  const MatrixView wanted{nullptr, shape(role, rank), problem().dtype};
  if (size_bytes(wanted.dtype) != sizeof(std::uint16_t) || !fits(elements.size(), wanted))
    refuse_matrix(rank, role, fmt::format("{} elements of 16 bits", elements.size()), wanted);
  bind(rank, role, static_cast<void*>(elements.data()));
}

void Operator::bind(int rank, Role role, void* memory) {
  require_matrix(rank, role);
  if (memory == nullptr && shape(role, rank).elements() > 0)
    throw InvalidArgument(fmt::format("matrix '{}' of rank {} is null", name(role), rank), rank);
  executable().bind(rank, role, memory);
  state_->matrices[{rank, role}] = memory;
  state_->unbound.erase({rank, role});
}

RunReport Operator::run(int epochs, bool trace) {
  state_->require_bound();
  state_->suit_matrices();
  return executable().run({.epochs = epochs, .timeout_us = state_->timeout_us, .trace = trace});
}

void Operator::prepare() {
  state_->require_bound();
  state_->suit_matrices();
  executable().prepare(state_->timeout_us);
}
void Operator::enqueue(std::span<void* const> streams) {
  state_->enqueued = true;
  executable().enqueue(streams);
}
void Operator::synchronize() {
  executable().synchronize();
}

}  // namespace shingle
