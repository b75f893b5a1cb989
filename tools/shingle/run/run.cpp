// shingle run: executes operators, checks every result, and prints how much communication was hidden.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/file.hpp"
#include "check/slots.hpp"
#include "shingle/commands.hpp"
#include "shingle/common/page.hpp"
#include "shingle/common/table.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/run/execute.hpp"
#include "shingle/run/memory.hpp"
#include "tune/searched.hpp"

namespace shingle::cli {
namespace {

/// The plan of a file, proven.
Job job_of(const std::string& file) {
  Plan plan = read_plan(file);
  if (plan.workload())
    throw InvalidArgument(fmt::format("{}: an overlap has no result to check; use `shingle simulate`", file));
  const Problem problem = plan.problem();
  if (problem.world > max_world)
    throw InvalidArgument(fmt::format("{}: {} ranks, but at most {} run", file, problem.world, max_world));
  const std::string mechanism(name(plan.mechanism));
  return {.named = {"", problem}, .candidates = {{mechanism, std::move(plan), {}}}, .as_is = true};
}

/// The user's matrices; empty for random inputs.
struct Own {
  std::optional<UserMatrices> matrices;
  std::unique_ptr<Inputs> inputs;
};

std::vector<NamedProblem> problems_of(const RunFlags& flags, const Own& own, int ranks) {
  if (own.matrices) return {{"", own.matrices->problem()}};
  return make_problems(flags.what, ranks);
}

void require_room(const std::vector<Job>& jobs, const Own& own, const Machine& machine,
                  const ProcessLaunch& launch) {
  constexpr double slack = 1.1;  // for memory of oneDNN, MPI, NCCL, and the system
  for (const Job& job : jobs)
    require_memory(slack * (execute_bytes(job, machine, launch) + (own.matrices ? own.matrices->bytes() : 0)),
                   describe(job.named), launch);
}

void write_pictures(const RunFlags& flags, const Executed& all) {
  if (!flags.trace.empty()) write_file_atomically(flags.trace, to_chrome_trace(all.overlapped));
  if (flags.svg.empty()) return;
  std::vector<Timeline> pairs;
  for (std::size_t i = 0; i < all.overlapped.size(); ++i) {
    pairs.push_back(all.baselines[i]);
    if (all.overlapped[i].plan.mechanism != Mechanism::sequential) pairs.push_back(all.overlapped[i]);
  }
  write_file_atomically(flags.svg, to_svg(pairs));
}

Report page_of(const std::string& head, const Executed& all) {
  Report page = make_page("Measured", {head});
  add_rows(all.rows, lines_of(all.rows), page);
  for (std::size_t i = 0; i < all.overlapped.size(); ++i) {
    const Timeline& overlapped = all.overlapped[i];
    std::vector<Timeline> shown{all.baselines[i]};
    if (overlapped.plan.mechanism != Mechanism::sequential) shown.push_back(overlapped);
    add_timelines(overlapped.title, std::move(shown), page);
  }
  return page;
}

std::string link_text(const Link& link) {
  if (!link.paced()) return "not paced";
  const std::string latency = format_us(link.latency_us);
  return link.gbps > 0 ? fmt::format("{} GB/s, {}", link.gbps, latency)
                       : fmt::format("{} latency, rate not paced", latency);
}

std::string head(const World& world, const RunFlags& flags, std::string_view backend) {
  return fmt::format("{} ranks on {}, {} worker{} each, link {}", world.size(), backend,
                     world.machine().workers, world.machine().workers == 1 ? "" : "s",
                     link_text(flags.where.link));
}

/// Throws if --machine has no effect, or cannot be a profile of this machine. The profile only guides choice
/// and search; runs use this machine.
void require_profile_of_here(const RunFlags& flags, int ranks, const WorldOptions& where) {
  if (flags.machine.empty() || flags.how.automatic) return;
  if (std::ranges::none_of(flags.how.mechanisms, searches_groups))
    throw InvalidArgument("--machine needs --mechanism auto or signal: runs are on this machine");
  const Machine given = machine_from_spec(flags.machine), own = machine_of(ranks, where);
  if (given.workers != own.workers)
    throw InvalidArgument(
        fmt::format("--machine: {} has {} workers, a rank here {}: runs are on this machine", given.name,
                    given.workers, own.workers));
}

int exit_code(const std::vector<Row>& rows) {
  const bool wrong =
      std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.ran() && !row.check.passed; });
  const bool any = std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.ran(); });
  return wrong || !any ? 1 : 0;
}

/// Choices of all ranks that find no slot; empty if the host routes.
std::optional<std::int64_t> dropped_choices(const Inputs& inputs) {
  const Problem& problem = inputs.problem();
  if (!problem.has_slots()) return std::nullopt;
  std::int64_t dropped = 0;
  for (int rank = 0; rank < problem.sources(); ++rank) dropped += taken_choices(inputs, rank).full;
  return dropped;
}

/// A line for each operator with a capacity.
std::string dropped_text(const std::vector<Row>& rows, const std::vector<Job>& jobs) {
  std::string text;
  for (const Job& job : jobs) {
    const auto row = std::ranges::find_if(
        rows, [&](const Row& of) { return of.dropped && describe(of.named) == describe(job.named); });
    if (row == rows.end()) continue;
    const Problem& problem = job.named.problem;
    const std::string_view op = job.named.name.empty() ? name(problem.op) : job.named.name;
    text += fmt::format("dropped     {}: {} of {} choices found no slot (--capacity {})\n", op, *row->dropped,
                        problem.sources() * problem.m * problem.experts.topk, problem.experts.capacity);
  }
  return text;
}

/// Runs all jobs and prints their results.
int run_jobs(World& world, const std::vector<Job>& jobs, const Own& own, const RunFlags& flags,
             const ProcessLaunch& launch) {
  const ExecuteOptions options{
      .how = flags.how,
      .where = flags.where,
      .repeat = flags.repeat,
      .timelines = flags.timeline || !flags.trace.empty() || !flags.svg.empty() || !flags.html.empty(),
      .backend = std::string(flags.where.options(launch).backend)};
  Executed all;
  {
    Progress progress(launch.speaks());
    std::size_t rows = 0;
    for (const Job& job : jobs) rows += job.candidates.size();
    progress.expect(rows);
    for (const Job& job : jobs) {
      const auto random =
          own.inputs ? nullptr
                     : random_inputs(job.named.problem, flags.what.seed, Values::normal, job.named.choices);
      const Inputs& inputs = own.inputs ? *own.inputs : *random;
      Executed one = execute(world, job, inputs, own.matrices ? &*own.matrices : nullptr, options, progress);
      const std::optional<std::int64_t> dropped = dropped_choices(inputs);
      for (Row& row : one.rows)
        if (row.ran()) row.dropped = dropped;
      std::ranges::move(one.rows, std::back_inserter(all.rows));
      std::ranges::move(one.baselines, std::back_inserter(all.baselines));
      std::ranges::move(one.overlapped, std::back_inserter(all.overlapped));
    }
  }
  if (launch.speaks()) {
    if (flags.format == Format::json) {
      fmt::print("{}", to_json(all.rows));
    } else {
      fmt::print("{}\n{}\n{}{}", head(world, flags, options.backend), to_table(all.rows), legend(all.rows),
                 dropped_text(all.rows, jobs));
      if (flags.timeline) {
        for (const Timeline& timeline : all.overlapped)
          fmt::print("\n{}", to_chart(timeline, 0, page_width()));
        fmt::print("\n{}", chart_legend());
      }
    }
    write_pictures(flags, all);
    if (!flags.html.empty())
      write_file_atomically(flags.html, to_html(page_of(head(world, flags, options.backend), all)));
  }
  return exit_code(all.rows);
}

}  // namespace

int run(const RunFlags& flags, const ProcessLaunch& launch) {
  require_writable(
      {{"--trace", flags.trace}, {"--svg", flags.svg}, {"--html", flags.html}, {"--out", flags.own.out}});
  require_text("--timeline", flags.timeline, flags.format);
  std::vector<Job> jobs;
  if (!flags.file.empty()) jobs.push_back(job_of(flags.file));
  const int ranks = jobs.empty() ? flags.where.ranks(launch) : jobs[0].named.problem.world;
  WorldOptions where = flags.where.options(launch);
  Own own;
  if (!flags.own.a.empty() || !flags.own.b.empty() || !flags.own.out.empty())
    own.matrices.emplace(flags.own, flags.what, ranks);
  require_profile_of_here(flags, ranks, where);
  const bool predicts = flags.how.automatic || !flags.machine.empty();
  const Target target = target_to_run_on(flags.machine, predicts, ranks, where, launch);
  PlanFlags how = flags.how;
  how.refuses = refusals(where);
  if (jobs.empty())
    jobs = make_jobs(problems_of(flags, own, ranks), how, target, launch);
  else
    require_proof(*jobs[0].candidates[0].plan, flags.file);
  require_room(jobs, own, target.machine, launch);
  if (own.matrices) own.inputs = own.matrices->load();
  for (const Job& job : jobs)
    where.timeout_us = std::max(where.timeout_us, run_timeout_us(job.named.problem, flags.where));

  const auto world = make_world(ranks, where);
  try {
    if (launch.processes() && how.automatic) agree(*world, jobs, target);
    return run_jobs(*world, jobs, own, flags, launch);
  } catch (const std::exception& error) {
    print_failure(error, launch);  // now, because a broken MPI world ends the process when it is destroyed
    return 1;
  }
}

}  // namespace shingle::cli
