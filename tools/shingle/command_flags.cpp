// The flags of the subcommands run, plan, verify, simulate, compare, profile and tune.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "shingle/commands.hpp"

namespace shingle::cli {
namespace {

using Groups = std::vector<std::string>;

Groups all_of(const std::vector<Groups>& lists) {
  Groups all;
  for (const Groups& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

void add_html(CLI::App& app, std::string& html) {
  app.add_option("--html", html, "Write a page with the table and figures: one file, readable offline")
      ->type_name("FILE");
}

CLI::Option* add_plan_file(CLI::App& app, std::string& file) {
  return app.add_option("plan", file, "Plan file, as `shingle plan --format json` prints it")
      ->type_name("FILE");
}

/// `allowed`: world flags that still have a meaning if --machine is given.
CLI::Option* add_machine(CLI::App& app, std::string& machine,
                         const std::vector<std::string>& allowed = {"--world"}) {
  CLI::Option* option =
      app.add_option("--machine", machine,
                     "Plan for another machine: h200x8, a profile's file, or 'h200x8 * 512, 8x400Gb/s'")
          ->type_name("MACHINE")
          ->group(group::world);
  exclude(app, option, {group::world}, allowed);
  return option;
}

std::int64_t parse_chunk(const std::string& text) {
  constexpr std::int64_t least = std::int64_t{4} << 10, most = std::int64_t{4} << 20;
  const std::int64_t bytes = parse_size(text);
  if (bytes < least || bytes > most)
    throw InvalidArgument(fmt::format("--chunk = {} is outside [{}, {}]", bytes, least, most));
  return bytes;
}

double parse_percent(const std::string& text) {
  std::size_t end = 0;
  double percent = -1;
  try {
    percent = std::stod(text, &end);
  } catch (const std::logic_error&) {
  }
  if (end != text.size() || !(percent >= 0 && percent <= 1000))
    throw InvalidArgument(fmt::format("'{}' is not a percentage from 0 to 1000", text));
  return percent / 100;
}

}  // namespace

void add_run(CLI::App& app, RunFlags& flags) {
  CLI::Option* file = add_plan_file(app, flags.file);
  add_problem_flags(app, flags.what);
  add_matrix_flags(app, flags.own);
  add_plan_flags(app, flags.how);
  add_world_flags(app, flags.where);
  app.add_option("--repeat", flags.repeat, "Number of rounds; times are medians over them (default: 5 to 20)")
      ->check(CLI::Range(1, 1000000));
  add_format_flag(app, flags.format, "table");
  app.add_flag("--timeline", flags.timeline, "Show where the time of rank 0 went");
  app.add_option("--trace", flags.trace, "Write a Chrome trace of a run, for ui.perfetto.dev")
      ->type_name("FILE");
  app.add_option("--svg", flags.svg, "Draw a sequential and an overlapped run as SVG")->type_name("FILE");
  add_html(app, flags.html);
  app.add_option(
         "--machine", flags.machine,
         "With --mechanism auto or signal: profile of this machine (default: the kept profile; auto measures "
         "it once)")
      ->type_name("FILE")
      ->group(group::world);
  exclude(app, file, all_of({group::problems, {group::matrices}, group::plans(), {group::world}}),
          {"--seed", "--backend", "--link", "--engine", "--workers", "--timeout"});
}

void add_plan(CLI::App& app, PlanCommandFlags& flags) {
  CLI::Option* file = add_plan_file(app, flags.file);
  add_problem_flags(app, flags.what);
  add_plan_flags(app, flags.how);
  add_symmetric_flag(app, flags.how);
  add_world_flags(app, flags.where, max_planned_world);
  app.add_option("--rank", flags.rank, "Rank to print (default: rank 0, and how the others differ)")
      ->check(CLI::Range(0, max_planned_world));
  add_format_flag(app, flags.format, "text");
  app.add_flag("--lowered", flags.lowered, "Print the launches on streams to which a GPU lowers the plan");
  app.add_option("--out", flags.out, "File for the output")->type_name("FILE");
  app.add_option("--trace", flags.trace, "Write a Chrome trace of the plan in unit costs")->type_name("FILE");
  app.add_option("--svg", flags.svg, "Draw the plan in unit costs as SVG")->type_name("FILE");
  CLI::Option* machine = add_machine(app, flags.machine);
  app.add_flag(
         "--steps", flags.steps,
         "With --machine: print the plans, not predicted times (implied by --rank, --out, --trace, --svg)")
      ->needs(machine);
  exclude(app, file, all_of({group::problems, group::plans(), {group::world}}));
}

void add_verify(CLI::App& app, VerifyFlags& flags) {
  CLI::Option* file = add_plan_file(app, flags.file);
  add_problem_flags(app, flags.what);
  add_plan_flags(app, flags.how);
  add_world_flags(app, flags.where);
  add_machine(app, flags.machine);
  app.add_flag("--context", flags.in_context,
               "Prove that calls of other plans may come before and after, on the same staging memory");
  add_format_flag(app, flags.format, "text");
  exclude(app, file, all_of({group::problems, group::plans(), {group::world}}));
}

void add_simulate(CLI::App& app, SimulateFlags& flags) {
  CLI::Option* file = add_plan_file(app, flags.file);
  add_problem_flags(app, flags.what);
  add_plan_flags(app, flags.how);
  add_symmetric_flag(app, flags.how);
  add_world_flags(app, flags.where, max_planned_world);
  add_machine(app, flags.machine, {"--world", "--link", "--engine"});
  app.add_option("--sweep", flags.sweeps,
                 "Sizes to predict, such as k=1K,2K,4K: for m, n, k or inner; may be repeated")
      ->type_name("SIZES")
      ->group(group::problem);
  exclude(app, file, all_of({group::problems, group::plans(), {group::world}}), {"--machine"});
  const std::string group = "Simulation";
  app.add_option("--epochs", flags.options.epochs, "Number of runs back to back; times are per run")
      ->check(CLI::Range(1, 1000))
      ->group(group);
  app.add_option("--noise", flags.options.noise, "Relative standard deviation of every duration")
      ->check(number_between(0.0, 0.99))
      ->group(group);
  app.add_option("--noise-seed", flags.options.seed, "Seed of the noise")->group(group);
  app.add_option("--slowdown", flags.options.slowdown, "Factors on the computation time, by rank: 1,1.5")
      ->delimiter(',')
      ->check(number_between(0.01, 1000.0))
      ->group(group);
  app.add_option("--worker-share", flags.options.worker_share, "Fraction of the machine's workers to use")
      ->check(number_between(0.001, 1.0))
      ->group(group);
  add_format_flag(app, flags.format, "table");
  app.add_flag("--timeline", flags.timeline, "Show where the time of rank 0 goes");
  app.add_flag("--critical-path", flags.critical_path, "Show the steps of the critical path");
  app.add_option("--trace", flags.trace, "Write a Chrome trace, for ui.perfetto.dev")->type_name("FILE");
  app.add_option("--svg", flags.svg, "Draw the simulated run as SVG")->type_name("FILE");
  add_html(app, flags.html);
}

void add_compare(CLI::App& app, CompareFlags& flags) {
  app.add_option("a", flags.a, "rows of run, simulate or plan with --format json, or a record of bench")
      ->required()
      ->type_name("A.json");
  app.add_option("b", flags.b, "rows to compare with A: a later run, or measurements of predictions")
      ->required()
      ->type_name("B.json");
  app.add_option("--threshold", flags.threshold,
                 "Exit with 1 if a row of B is slower by more than this percentage")
      ->check(number_between(0.0, 1e6))
      ->type_name("PERCENT");
  add_format_flag(app, flags.format, "table");
  add_html(app, flags.html);
}

void add_profile(CLI::App& app, ProfileFlags& flags) {
  add_world_flags(app, flags.where);
  app.add_option("--name", flags.name, "Name of the machine in the profile (default: the base's)");
  app.add_option_function<std::string>(
         "--dtype", [&](const std::string& text) { flags.dtype = parse_dtype(text); },
         "Element type to time: f32, bf16 or f16 (default: the backend's first native type)")
      ->type_name("TYPE");
  app.add_option("--base", flags.base,
                 "Profile with the figures that are not measured: h200x8, or a file (default: the backend's)")
      ->type_name("MACHINE");
  app.add_flag(
      "--contention", flags.contention,
      "Measure only how communication and computation slow each other; fit that together with the base's "
      "measurements");
  app.add_option_function<std::string>(
         "--chunk", [&](const std::string& text) { flags.chunk_bytes = parse_chunk(text); },
         "Measure only contention, with NCCL chunks of this size")
      ->type_name("BYTES");
  app.add_option("--budget", flags.budget_s, "Start no measurement after this time; 0: no limit")
      ->check(number_between(0.0, 1e6))
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_option("--repeat", flags.repeat, "Runs of each plan; times are medians over them")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add(app, "--most-spread", "PERCENT",
      fmt::format(
          "Refuse the profile if the times of a plan spread more: interquartile range over median (default: "
          "{:.0f}; 0: no limit)",
          100 * default_spread),
      [&](const std::string& text) { flags.most_spread = parse_percent(text); });
  app.add_flag("--keep", flags.keep,
               "Also keep it as this machine's profile, which signal and auto then use");
  app.add_option("--out", flags.out, "File for the output")->type_name("FILE");
}

void add_tune(CLI::App& app, TuneFlags& flags) {
  add_problem_flags(app, flags.what);
  add_plan_flags(app, flags.how);
  add_world_flags(app, flags.where, max_planned_world);
  add_machine(app, flags.machine, {"--world", "--link", "--engine", "--workers", "--timeout"});
  const std::string group = "Search";
  app.add_option("--margin", flags.margin,
                 "Relative gain over sequential below which a mechanism counts as no faster")
      ->check(number_between(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  app.add_option("--confirm", flags.confirm,
                 "Measure the best N mechanisms and the sequential plan here, and take the fastest")
      ->check(CLI::Range(1, 6))
      ->group(group);
  app.add_flag("--nearest", flags.nearest, "For new sizes, take the params of the nearest known size")
      ->group(group);
  app.add_option("--cache", flags.cache, "Folder of kept params (default: ~/.cache/shingle)")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--nccl-env", flags.nccl_table,
                 "Only print, for a shell, the settings of a tuned table that NCCL's tuner plugin cannot set")
      ->type_name("TABLE")
      ->group("NCCL");
  app.add_option("--nccl", flags.nccl_version,
                 "With --nccl-env: version of NCCL; from 2.30 on, the plugin sets chunk sizes itself")
      ->type_name("VERSION")
      ->capture_default_str()
      ->group("NCCL")
      ->needs("--nccl-env");
  add_format_flag(app, flags.format, "table");
}

}  // namespace shingle::cli
