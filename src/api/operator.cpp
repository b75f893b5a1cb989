#include "shingle/api/operator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "matrix.hpp"
#include "own_profile.hpp"
#include "shingle/base/error.hpp"
#include "shingle/verify/verify.hpp"

namespace shingle {
namespace {

#ifdef NDEBUG
constexpr bool always_verify = false;
#else
constexpr bool always_verify = true;
#endif

Result<Plan> made(const Problem& problem, const Machine& machine, const Options& options) {
  if (options.params)
    return make_plan(problem, machine,
                     options.registered ? *options.params : with_unregistered(*options.params));
  Result<Plan> best = make_best_plan(problem, machine);
  if (!best || options.registered) return best;
  return make_plan(problem, machine, with_unregistered(default_params(best->mechanism)));
}

Plan planned(const World& world, const Problem& problem, const Options& options) {
  if (problem.world != world.size())
    throw InvalidArgument(
        fmt::format("the problem is for {} ranks, the world has {}", problem.world, world.size()));
  const Machine machine = machine_for(world, options.profile);
  if (machine.workers != world.machine().workers)
    throw InvalidArgument(
        fmt::format("profile: {} has {} workers, this machine {}; use a profile of this machine",
                    machine.name, machine.workers, world.machine().workers));
  return made(problem, machine, options).value();
}

/// Throws InvalidArgument unless the matrix has this many elements of a type with this size.
void require_elements(const Work& work, int rank, Role role, std::size_t elements, bool right_type,
                      std::string_view type) {
  require_role(work, rank, role);
  const Shape wanted = shape_of(work, role, rank);
  if (right_type && static_cast<std::int64_t>(elements) == wanted.elements()) return;
  throw wrong_matrix(rank, role,
                     fmt::format("{} elements of {} given, expected {}x{} {} ({} elements)", elements, type,
                                 wanted.rows, wanted.cols, name(dtype_of(work, role)), wanted.elements()));
}

}  // namespace

struct Operator::State {
  Plan plan;
  std::unique_ptr<Executable> executable;
  double timeout_us;
  std::vector<int> ranks;
  std::set<std::pair<int, Role>> unbound;

  State(World& world, Plan made, double deadline)
      : plan(std::move(made)),
        executable(world.compile(plan)),
        timeout_us(deadline),
        ranks(world.local_ranks()) {
    for (const int rank : ranks)
      for (const Role role : roles_of(plan.work)) unbound.emplace(rank, role);
  }

  void bind(int rank, Role role, const MatrixMemory& memory) {
    executable->bind(rank, role, memory);
    unbound.erase({rank, role});
  }

  void require_bound() const {
    if (unbound.empty()) return;
    const auto& [rank, role] = *unbound.begin();
    throw InvalidArgument(fmt::format("matrix '{}' of rank {} is not bound", name(role), rank), rank);
  }
};

Plan prove_if_asked(Plan plan, bool asked, Setting setting) {
  if (!asked && !always_verify) return plan;
  const Proof proof = verify(plan, setting);
  if (!proof && (asked || proof.rule != "size"))
    throw Error(
        fmt::format("the {} plan fails its proof ({}): {}", name(plan.mechanism), proof.rule, proof.failure));
  return plan;
}

Operator::Operator(World& world, const Problem& problem, const Options& options)
    : state_(new State(world, prove_if_asked(planned(world, problem, options), options.verify),
                       options.timeout_us)) {}

Operator::Operator(World& world, Plan plan, double timeout_us)
    : state_(new State(world, std::move(plan), timeout_us)) {}

Operator::Operator(Operator&&) noexcept = default;
Operator& Operator::operator=(Operator&&) noexcept = default;
Operator::~Operator() = default;

const Problem& Operator::problem() const {
  return state_->plan.problem();
}
Shape Operator::shape(Role role, int rank) const {
  return shape_of(plan().work, role, rank);
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

void Operator::require_local(int rank) const {
  if (std::find(state_->ranks.begin(), state_->ranks.end(), rank) == state_->ranks.end())
    throw InvalidArgument(fmt::format("rank {} is not a rank of this process", rank), rank);
}

void Operator::bind(int rank, Role role, const MatrixView& matrix) {
  require_local(rank);
  require_fits(plan().work, rank, role, matrix);
  state_->bind(rank, role, {matrix.data, matrix.row_stride});
}

void Operator::bind(int rank, Role role, std::span<float> elements) {
  require_elements(plan().work, rank, role, elements.size(), dtype_of(plan().work, role) == DType::f32,
                   "f32");
  bind(rank, role, static_cast<void*>(elements.data()));
}

void Operator::bind(int rank, Role role, std::span<std::uint16_t> elements) {
  const bool right_type = size_bytes(dtype_of(plan().work, role)) == sizeof(std::uint16_t);
  require_elements(plan().work, rank, role, elements.size(), right_type, "16 bits");
  bind(rank, role, static_cast<void*>(elements.data()));
}

void Operator::bind(int rank, Role role, void* memory) {
  require_local(rank);
  require_role(plan().work, rank, role);
  if (memory == nullptr && shape(role, rank).elements() > 0) throw wrong_matrix(rank, role, "null given");
  state_->bind(rank, role, memory);
}

RunReport Operator::run(int epochs, bool trace) {
  state_->require_bound();
  return executable().run({.epochs = epochs, .timeout_us = state_->timeout_us, .trace = trace});
}

void Operator::prepare() {
  state_->require_bound();
  executable().prepare(state_->timeout_us);
}
void Operator::enqueue(std::span<void* const> streams) {
  executable().enqueue(streams);
}
void Operator::synchronize() {
  executable().synchronize();
}

}  // namespace shingle
