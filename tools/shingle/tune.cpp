// shingle tune: searches mechanisms and params by simulation, confirms them on request, and keeps them.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>

#include "api/workspace.hpp"
#include "cotune/nccl_environment.hpp"
#include "shingle/commands.hpp"
#include "shingle/common/console.hpp"
#include "shingle/common/jobs.hpp"
#include "shingle/common/rows.hpp"
#include "shingle/plan/print.hpp"

namespace shingle::cli {
namespace {

/// Median time of a plan's runs on a world, after a check of the first result.
double measured_us(World& world, const Plan& plan) {
  const auto inputs = random_inputs(plan.problem(), 0);
  Workspace memory(world, *inputs);
  Operator op(world, plan.problem(), {.params = params_of(plan)});
  memory.bind(op);
  memory.poison_outputs();
  op.executable().poison();
  op.run();
  if (const Check result = check(*inputs, memory.outputs()); !result.passed)
    throw Error(fmt::format("{} of {}: wrong result, error {:.2e} is above {:.2e} at {}",
                            name(plan.mechanism), describe(plan.problem()), result.max_error,
                            result.tolerance, result.worst));
  constexpr int runs = 7;
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) times.push_back(op.run().elapsed_us);
  std::ranges::sort(times);
  return times[runs / 2];
}

std::string considered_text(const Chosen& chosen) {
  std::string text;
  for (const Considered& at : chosen.considered) {
    if (at.us == 0) {
      text += fmt::format("  {:<12} {}\n", name(mechanism_of(at.params)), at.reason);
      continue;
    }
    text += fmt::format("  {:<12} {:>10}{}  of {} plans\n", name(mechanism_of(at.params)), format_us(at.us),
                        at.measured_us > 0 ? fmt::format(" (measured {})", format_us(at.measured_us)) : "",
                        at.tried);
  }
  return text;
}

/// The found params as the flags that set them.
std::string params_line(const std::string& params) {
  const std::string text = params_text(params);
  return text.empty() ? "" : fmt::format("  params: {}\n", text);
}

/// Quotes `text` as one shell word.
std::string shell_word(std::string_view text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

/// True from NCCL 2.30 on. Throws InvalidArgument unless `version` is "2.30", "2.30.7", …
bool asks_chunks(const std::string& version) {
  int major = 0, minor = 0, used = 0;
  if (std::sscanf(version.c_str(), "%d.%d%n", &major, &minor, &used) != 2 || major != 2 || minor < 0 ||
      (version[static_cast<std::size_t>(used)] != '.' && version.size() != static_cast<std::size_t>(used)))
    throw InvalidArgument(fmt::format("--nccl: '{}' is not a version of NCCL 2, such as 2.30.7", version));
  return minor >= 30;
}

/// The environment that a program needs to use a tuned table.
std::string nccl_environment_text(const TuneFlags& flags) {
  const TunedTable table = read_tuned_table(flags.nccl_table);
  const NcclEnvironment environment = nccl_environment(table, asks_chunks(flags.nccl_version));
  std::string why = table.why.empty() ? "" : fmt::format("# the table says: {}", table.why);
  // A line break would end the comment.
  std::ranges::replace_if(why, [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  if (!why.empty()) why += '\n';
  return fmt::format(
      "export NCCL_TUNER_PLUGIN='shingle'  # or the path of libnccl-tuner-shingle.so\n"
      "export SHINGLE_TUNER_TABLE={}\n{}{}",
      shell_word(std::filesystem::absolute(flags.nccl_table).lexically_normal().string()), why,
      shell_text(environment));
}

}  // namespace

int tune(const TuneFlags& flags, const ProcessLaunch& launch) {
  if (!launch.speaks()) return 0;
  if (!flags.nccl_table.empty()) {
    fmt::print("{}", nccl_environment_text(flags));
    return 0;
  }
  if (flags.confirm > 0 && launch.processes())
    throw InvalidArgument("--confirm measures in one process: run `shingle tune` without a launcher");
  const int ranks = flags.where.ranks(launch);
  const WorldOptions where = flags.where.options(launch);
  const auto problems = make_problems(flags.what, ranks);  // first: a machine that is not named is measured
  const std::optional<std::string> folder = folder_to_keep(flags.cache);
  const Target target = flags.confirm > 0 ? target_to_run_on(flags.machine, true, ranks, where, launch)
                                          : target_to_tune_for(flags.machine, ranks, where, launch);
  const Machine& machine = target.machine;
  std::optional<TuneCache> cache;
  if (folder) cache.emplace(machine, *folder);
  auto progress = std::make_unique<Progress>(true);
  ChooseOptions options{.mechanisms = flags.how.mechanisms,
                        .tune = {.params = flags.how.params, .refuses = refusals(where)},
                        .margin = flags.margin,
                        .cache = cache ? &*cache : nullptr,
                        .nearest = flags.nearest,
                        .confirmed = std::max(flags.confirm, 1)};
  std::unique_ptr<World> world;
  if (flags.confirm > 0) world = make_world(ranks, where);
  std::vector<Row> rows;
  std::string details;
  for (const NamedProblem& named : problems) {
    options.tune.tried = [&](const Plan& plan, double us) {
      progress->now(fmt::format("{}: {}, {}", describe(named), name(plan.mechanism), format_us(us)));
    };
    if (world)
      options.measure = [&](const Plan& plan) {
        progress->now(fmt::format("{}: {}, measuring", describe(named), name(plan.mechanism)));
        return measured_us(*world, plan);
      };
    const Candidate candidate = candidate_of(choose(named.problem, machine, options));
    rows.push_back(predicted_row(named, candidate, machine));
    if (candidate.choice)
      details += fmt::format("\n{}\n{}  {}\n{}", describe(named), considered_text(*candidate.choice),
                             candidate.choice->reason, params_line(rows.back().params));
  }
  progress.reset();
  if (flags.format == Format::json) {
    fmt::print("{}", simulated_json(rows));
  } else {
    fmt::print("{}{}\n{}\n", predicted_table(machine, rows), details,
               cache ? "kept in " + cache->path() : "not kept");
  }
  return any_predicted(rows) ? 0 : 1;
}

}  // namespace shingle::cli
