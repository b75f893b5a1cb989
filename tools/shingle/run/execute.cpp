#include "shingle/run/execute.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shingle/run/memory.hpp"
#include "shingle/run/together.hpp"

namespace shingle::cli {
namespace {

class Execution {
 public:
  Execution(World& world, const Job& job, const Inputs& inputs, const UserMatrices* own,
            const ExecuteOptions& options, Progress& progress)
      : world_(world), job_(job), inputs_(inputs), own_(own), options_(options), progress_(progress) {
    if (std::ranges::none_of(job.candidates,
                             [](const Candidate& candidate) { return candidate.plan.has_value(); }))
      return;
    now("filling inputs");
    together(world, [&] { memory_.emplace(world, inputs); });
    if (!job.named.problem.traits().is_collective())
      gemm_.emplace(world, inputs, *memory_, run_timeout_us(job.named.problem, options.where));
    sequential_.emplace(world, inputs.problem(),
                        Options{.params = SequentialParams{},
                                .timeout_us = run_timeout_us(job.named.problem, options.where)});
    memory_->bind(*sequential_);
  }

  Executed go() {
    for (const Candidate& candidate : job_.candidates) {
      Row row{.named = job_.named,
              .backend = options_.backend,
              .mechanism = candidate.mechanism,
              .choice = candidate.choice,
              .note = candidate.note};
      if (!candidate.plan) {
        row.reason = candidate.plan.reason();
      } else {
        serve(*candidate.plan, row);
      }
      done_.rows.push_back(std::move(row));
      progress_.advance();
    }
    return std::move(done_);
  }

 private:
  void now(const std::string& what) { progress_.now(fmt::format("{}: {}", describe(job_.named), what)); }

  void serve(const Plan& plan, Row& row) {
    std::optional<Operator> own_operator;
    if (job_.as_is || plan.mechanism != Mechanism::sequential)
      own_operator.emplace(world_, job_.as_is ? plan : prove_if_asked(plan),
                           run_timeout_us(job_.named.problem, options_.where));
    if (own_operator) memory_->bind(*own_operator);
    Operator& op = own_operator ? *own_operator : *sequential_;
    row.params = params_json(op.plan());
    now(row.mechanism + ", checking");
    row.check =
        checked_run(world_, op, *memory_, [&] { return shingle::check(inputs_, memory_->outputs()); });
    if (!row.check.passed) row.reason = wrong_result(row.check);
    if (row.check.passed && own_ != nullptr)
      own_->save(world_, memory_->outputs(), world_.local_ranks()[0] == 0);
    now(row.mechanism + ", measuring");
    row.time = measure(world_, gemm_ ? gemm_->products() : std::span<Operator>(), *sequential_, op,
                       {.repeat = options_.repeat});
    if (options_.timelines) trace(op);
  }

  void trace(Operator& op) {
    const auto timeline = [&](Operator& traced) {
      return Timeline{fmt::format("{}, {}", describe(job_.named), name(traced.plan().mechanism)),
                      traced.plan(), traced.run(1, true).spans};
    };
    done_.baselines.push_back(timeline(*sequential_));
    done_.overlapped.push_back(timeline(op));
  }

  World& world_;
  const Job& job_;
  const Inputs& inputs_;
  const UserMatrices* own_;
  const ExecuteOptions& options_;
  Progress& progress_;
  std::optional<Workspace> memory_;
  std::optional<GemmAlone> gemm_;
  std::optional<Operator> sequential_;
  Executed done_;
};

/// Rows of all tokens, once for each of their choices.
double routed_rows(const Problem& p) {
  return static_cast<double>(p.routing->global_base(p.sources()));
}

/// Time of a rank's GEMMs and attention on a slow core. A routing may send all rows to one rank.
double gemm_us(const Problem& p) {
  constexpr double flops_per_us = 2e3;
  const double m = p.traits().grouped ? routed_rows(p) : static_cast<double>(p.m);
  double flops = 0;
  if (p.traits().attends)
    flops += (p.traits().backward ? 10 : 4) * m * m *
             static_cast<double>(p.traits().shards_tokens() ? p.k / p.world : p.k);
  if (p.traits().multiplies()) flops += 2 * m * static_cast<double>(p.b_cols()) * static_cast<double>(p.k);
  if (p.traits().chains()) flops += 2 * m * static_cast<double>(p.n) * static_cast<double>(p.inner);
  return flops / flops_per_us;
}

/// Max. bytes over a rank's link, both directions: a routing may send all rows to one rank.
double most_bytes(const Problem& p) {
  const bool both = (p.traits().chains() && p.traits().after) || p.traits().backward;
  const double ways = both ? 2 : 1;  // gather and scatter
  const double rows = p.traits().grouped ? routed_rows(p) : static_cast<double>(p.global_rows());
  const auto cols = static_cast<double>(std::max({p.n, p.k, p.gathered_cols()}));
  return 2 * ways * rows * cols * static_cast<double>(size_bytes(p.dtype));
}

/// Max. time that copy engines add, one after the other. Any two ranks have at most two copies (an
/// allreduce's). Each copy is a batch of four commands, of which up to two are polls.
double engines_us(const EnginePhases& phases, double bytes, int world) {
  const double copies = 2.0 * world * world;
  const double launch = 4 * phases.control_us + phases.schedule_us + phases.fetch_us + 2 * phases.poll_us;
  const double copy = phases.queued_us + phases.copy_us + std::max(phases.broadcast_us, phases.swap_us);
  return copies * (launch + copy + phases.sync_us) + (phases.gbps > 0 ? bytes / (phases.gbps * 1e3) : 0);
}

}  // namespace

Executed execute(World& world, const Job& job, const Inputs& inputs, const UserMatrices* own,
                 const ExecuteOptions& options, Progress& progress) {
  return Execution(world, job, inputs, own, options, progress).go();
}

Check checked_run(World& world, Operator& op, Workspace& memory, const std::function<Check()>& check) {
  memory.poison_outputs();
  op.executable().poison();
  world.barrier();
  op.run();
  Check result;
  together(world, [&] { result = check(); });
  const std::vector<double> all = world.all_max({result.max_error, result.passed ? 0.0 : 1.0});
  if (all[1] > 0 && result.passed) result.worst = "the outputs of another process";
  result.max_error = all[0];
  result.passed = all[1] == 0;
  return result;
}

std::string wrong_result(const Check& check) {
  return fmt::format("wrong result: error {:.2e} is above {:.2e} at {}", check.max_error, check.tolerance,
                     check.worst);
}

double run_timeout_us(const Problem& problem, const WorldFlags& where) {
  const double bytes = most_bytes(problem);
  return where.timeout_us.value_or(default_timeout_us + gemm_us(problem) + where.link.transfer_us(bytes) +
                                   engines_us(where.engine, bytes, problem.world));
}

double execute_bytes(const Job& job, const Machine& machine, const ProcessLaunch& launch) {
  const Problem& problem = job.named.problem;
  double internal = 0;
  for (const Candidate& candidate : job.candidates)
    if (candidate.plan) internal = std::max(internal, internal_bytes(*candidate.plan, launch));
  const Result<Plan> baseline = make_plan(problem, machine, SequentialParams{});
  if (baseline) internal += internal_bytes(*baseline, launch);
  double alone = 0;
  for (int rank = 0; rank < problem.world; ++rank)
    if (!problem.traits().is_collective() && (!launch.processes() || rank == launch.rank))
      alone += static_cast<double>(GemmAlone::bytes(problem, rank));
  return user_matrix_bytes(problem, launch) + internal + alone + static_cast<double>(check_bytes(problem));
}

}  // namespace shingle::cli
