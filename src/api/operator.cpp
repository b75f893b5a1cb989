#include "shingle/api/operator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "shingle/base/error.hpp"
#include "shingle/plan/verify.hpp"

namespace shingle {
namespace {

#ifdef NDEBUG
constexpr bool always_verify = false;
#else
constexpr bool always_verify = true;
#endif

Plan planned(const World& world, const Problem& problem, const Options& options) {
  if (problem.world != world.size())
    throw InvalidArgument(
        fmt::format("the problem is for {} ranks, the world has {}", problem.world, world.size()));
  Result<Plan> plan = options.mechanism
                          ? make_plan(problem, world.machine(), *options.mechanism, options.params)
                          : make_best_plan(problem, world.machine(), options.params);
  if (options.verify || always_verify) {
    const Proof proof = verify(plan.value());
    if (!proof)
      throw Error(fmt::format("the {} plan fails its proof ({}): {}", name(plan->mechanism), proof.rule,
                              proof.failure));
  }
  return std::move(plan).value();
}

}  // namespace

struct Operator::State {
  Plan plan;
  std::vector<int> ranks;
  double timeout_us;
  std::unique_ptr<Executable> executable;
  std::set<std::pair<int, Role>> unbound;

  void require_bound() const {
    if (unbound.empty()) return;
    const auto& [rank, role] = *unbound.begin();
    throw InvalidArgument(fmt::format("matrix '{}' of rank {} is not bound", name(role), rank), rank);
  }
};

Operator::Operator(World& world, const Problem& problem, const Options& options)
    : Operator(world, planned(world, problem, options), options.timeout_us) {}

Operator::Operator(World& world, Plan plan, double timeout_us)
    : state_(new State{std::move(plan), world.local_ranks(), timeout_us, nullptr, {}}) {
  state_->executable = world.compile(state_->plan);
  for (const int rank : state_->ranks)
    for (const Role role : roles_of(state_->plan.problem)) state_->unbound.emplace(rank, role);
}

Operator::Operator(Operator&&) noexcept = default;
Operator& Operator::operator=(Operator&&) noexcept = default;
Operator::~Operator() = default;

const Problem& Operator::problem() const {
  return state_->plan.problem;
}
const Plan& Operator::plan() const {
  return state_->plan;
}
Executable& Operator::executable() {
  return *state_->executable;
}
std::int64_t Operator::memory_bytes(int rank) const {
  return state_->executable->internal_bytes(rank);
}

void Operator::bind(int rank, Role role, void* memory) {
  const std::vector<Role> roles = roles_of(problem());
  if (std::find(roles.begin(), roles.end(), role) == roles.end())
    throw InvalidArgument(fmt::format("{} has no matrix '{}'", describe(problem()), name(role)), rank);
  if (std::find(state_->ranks.begin(), state_->ranks.end(), rank) == state_->ranks.end())
    throw InvalidArgument(fmt::format("rank {} is not a rank of this process", rank), rank);
  if (memory == nullptr && shape(role, rank).elements() > 0)
    throw InvalidArgument(fmt::format("matrix '{}' of rank {} is null", name(role), rank), rank);
  state_->executable->bind(rank, role, memory);
  state_->unbound.erase({rank, role});
}

RunReport Operator::run(int epochs, bool trace) {
  state_->require_bound();
  return state_->executable->run({.epochs = epochs, .timeout_us = state_->timeout_us, .trace = trace});
}

void Operator::prepare() {
  state_->require_bound();
  state_->executable->prepare(state_->timeout_us);
}
void Operator::enqueue(std::span<void* const> streams) {
  state_->executable->enqueue(streams);
}
void Operator::synchronize() {
  state_->executable->synchronize();
}

}  // namespace shingle
