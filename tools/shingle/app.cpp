#include "shingle/app.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "shingle/base/error.hpp"
#include "shingle/commands.hpp"
#include "shingle/common/console.hpp"

namespace shingle::cli {
namespace {

constexpr int failure = 1, bad_usage = 2;

constexpr const char* examples = R"(Examples
  shingle run --model models/llama-3-8b.json --tp 4 --tokens 512 --layer-ops
  shingle run --op gemm+allreduce --m 2K --n 4K --k 1K --world 2 --link 2GB/s,10us --mechanism all
  shingle run --op gemm+reducescatter --a x.npy --b w.npy --out y.npy --world 4
  mpirun --oversubscribe -n 4 shingle run --op gemm+alltoall --m 512 --n 1K --k 1K --routing skewed --format json
  shingle plan --op gemm+reducescatter --m 1K --n 1K --k 512 --mechanism signal --workers 4 --groups 1,2,1 --tile 256x256
  shingle plan --model models/llama-3-8b.json --tp 8 --tokens 8K --layer-ops --machine h200x8
  shingle verify plan.json
  shingle run plan.json --link 2GB/s,10us
  shingle simulate --model models/llama-3-8b.json --tp 8 --tokens 8K --layer-ops --machine machines/h200x8.json --html page.html
  shingle cotune --model models/phi-2.json --pattern fsdp --tokens 4K --sequence 2K --machine a40x8-nvlink
  shingle bench --suite --world 8 --backend cuda --out h200x8.json
  shingle compare before.json after.json --threshold 5

Exit codes: 0; 1 where a result or a proof is wrong, a run failed or is slower than allowed; 2 for bad usage.)";

struct Commands {
  RunFlags run;
  PlanCommandFlags plan;
  VerifyFlags verify;
  SimulateFlags simulate;
  CompareFlags compare;
  ProfileFlags profile;
  TuneFlags tune;
  CotuneFlags cotune;
  BenchFlags bench;
  Format info_format = Format::text;
  WorldFlags info_world;
};

using Groups = std::vector<std::string>;

Groups all_of(const std::vector<Groups>& lists) {
  Groups all;
  for (const Groups& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

/// Omits the lists of flags that an option needs or excludes, because the error for a pair names both.
class Formatter final : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return {};
    return " " + option->get_type_name() + (option->get_required() ? " (required)" : "");
  }
};

void add_html(CLI::App& app, std::string& html) {
  app.add_option("--html", html, "Write a page with table and figures, one file that needs no network")
      ->type_name("FILE");
}

CLI::Option* add_plan_file(CLI::App& app, std::string& file) {
  return app.add_option("plan", file, "Plan file, as `shingle plan --format json` prints it")
      ->type_name("FILE");
}

void add_run(CLI::App& app, RunFlags& flags) {
  CLI::Option* file = add_plan_file(app, flags.file);
  add_problem_flags(app, flags.what);
  add_matrix_flags(app, flags.own);
  add_plan_flags(app, flags.how);
  add_world_flags(app, flags.where);
  app.add_option("--repeat", flags.repeat, "Rounds of which the median counts (default: 5 to 20)")
      ->check(CLI::Range(1, 1000000));
  add_format_flag(app, flags.format, "table");
  app.add_flag("--timeline", flags.timeline, "Show where the time of rank 0 went");
  app.add_option("--trace", flags.trace, "Write a Chrome trace of a run, for ui.perfetto.dev")
      ->type_name("FILE");
  app.add_option("--svg", flags.svg, "Write a picture of a sequential and an overlapped run")
      ->type_name("FILE");
  add_html(app, flags.html);
  app.add_option(
         "--machine", flags.machine,
         "With --mechanism auto or signal: the profile of this machine (default: the one that is kept; auto "
         "measures it once)")
      ->type_name("FILE")
      ->group(group::world);
  exclude(app, file, all_of({group::problems, {group::matrices}, group::plans(), {group::world}}),
          {"--seed", "--backend", "--link", "--engine", "--workers", "--timeout"});
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

void add_plan(CLI::App& app, PlanCommandFlags& flags) {
  add_problem_flags(app, flags.what);
  add_plan_flags(app, flags.how);
  add_symmetric_flag(app, flags.how);
  add_world_flags(app, flags.where, max_planned_world);
  app.add_option("--rank", flags.rank, "Rank to print (default: 0, and how others differ)")
      ->check(CLI::Range(0, max_planned_world));
  add_format_flag(app, flags.format, "text");
  app.add_flag("--lowered", flags.lowered, "Print the launches on streams that a GPU makes of the plan");
  app.add_option("--out", flags.out, "File for the output")->type_name("FILE");
  app.add_option("--trace", flags.trace, "Write a Chrome trace of the plan laid out in unit costs")
      ->type_name("FILE");
  app.add_option("--svg", flags.svg, "Write a picture of the same")->type_name("FILE");
  CLI::Option* machine = add_machine(app, flags.machine);
  app.add_flag(
         "--steps", flags.steps,
         "With --machine: print plans, as --rank, --out, --trace and --svg also do; not how long they take")
      ->needs(machine);
}

void add_verify(CLI::App& app, VerifyFlags& flags) {
  CLI::Option* file = add_plan_file(app, flags.file);
  add_problem_flags(app, flags.what);
  add_plan_flags(app, flags.how);
  add_world_flags(app, flags.where);
  add_machine(app, flags.machine);
  exclude(app, file, all_of({group::problems, group::plans(), {group::world}}));
}

void add_simulate(CLI::App& app, SimulateFlags& flags) {
  CLI::Option* file = add_plan_file(app, flags.file);
  add_problem_flags(app, flags.what);
  add_plan_flags(app, flags.how);
  add_symmetric_flag(app, flags.how);
  add_world_flags(app, flags.where, max_planned_world);
  add_machine(app, flags.machine, {"--world", "--link", "--engine"});
  app.add_option("--sweep", flags.sweeps, "Many sizes: k=1K,2K,4K; for m, n, k or inner, may be repeated")
      ->type_name("SIZES")
      ->group(group::problem);
  exclude(app, file, all_of({group::problems, group::plans(), {group::world}}), {"--machine"});
  const std::string group = "Simulation";
  app.add_option("--epochs", flags.options.epochs, "Runs back to back; times are of one")
      ->check(CLI::Range(1, 1000))
      ->group(group);
  app.add_option("--noise", flags.options.noise, "Standard deviation of every duration, relative to it")
      ->check(number_between(0.0, 0.99))
      ->group(group);
  app.add_option("--noise-seed", flags.options.seed, "Seed of the noise")->group(group);
  app.add_option("--slowdown", flags.options.slowdown, "By rank: its computation takes so many times as long")
      ->delimiter(',')
      ->check(number_between(0.01, 1000.0))
      ->group(group);
  app.add_option("--worker-share", flags.options.worker_share, "Of the machine's workers, those to be used")
      ->check(number_between(0.001, 1.0))
      ->group(group);
  add_format_flag(app, flags.format, "table");
  app.add_flag("--timeline", flags.timeline, "Show where the time of rank 0 goes");
  app.add_flag("--critical-path", flags.critical_path, "Show which steps make the time");
  app.add_option("--trace", flags.trace, "Write a Chrome trace, for ui.perfetto.dev")->type_name("FILE");
  app.add_option("--svg", flags.svg, "Write a picture of the same")->type_name("FILE");
  add_html(app, flags.html);
}

void add_compare(CLI::App& app, CompareFlags& flags) {
  app.add_option("a", flags.a, "rows of run, simulate or plan with --format json, or a record of bench")
      ->required()
      ->type_name("A.json");
  app.add_option("b", flags.b, "those to hold against A's: a later run, or measurements of predictions")
      ->required()
      ->type_name("B.json");
  app.add_option("--threshold", flags.threshold,
                 "Exit with 1 if a row of B is slower by more than so many percent")
      ->check(number_between(0.0, 1e6))
      ->type_name("PERCENT");
  add_format_flag(app, flags.format, "table");
  add_html(app, flags.html);
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

void add_profile(CLI::App& app, ProfileFlags& flags) {
  add_world_flags(app, flags.where);
  app.add_option("--name", flags.name, "Of the machine, in the profile (default: the base's)");
  app.add_option_function<std::string>(
         "--dtype", [&](const std::string& text) { flags.dtype = parse_dtype(text); },
         "Of what is timed: f32, bf16 or f16 (default: the backend's first native one)")
      ->type_name("TYPE");
  app.add_option("--base", flags.base,
                 "Has the figures that are not measured: h200x8, or a profile's file (default: what the "
                 "backend knows)")
      ->type_name("MACHINE");
  app.add_flag(
      "--contention", flags.contention,
      "Measure only what communication and computation take from each other, and fit it together with "
      "what the base has measured of that");
  app.add_option_function<std::string>(
         "--chunk", [&](const std::string& text) { flags.chunk_bytes = parse_chunk(text); },
         "Measure that alone with NCCL's chunks of so many bytes")
      ->type_name("BYTES");
  app.add_option("--budget", flags.budget_s, "After so long nothing new is measured; 0: no bound")
      ->check(number_between(0.0, 1e6))
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_option("--repeat", flags.repeat, "Runs of each plan, of which the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add(app, "--most-spread", "PERCENT",
      fmt::format(
          "Refuse the profile where times of one plan differ by more: the interquartile range over the "
          "median (default: {:.0f}; 0: take any)",
          100 * default_spread),
      [&](const std::string& text) { flags.most_spread = parse_percent(text); });
  app.add_flag("--keep", flags.keep,
               "Also keep it as this machine's profile, by which signal is searched and auto chooses");
  app.add_option("--out", flags.out, "File for the output")->type_name("FILE");
}

void add_tune(CLI::App& app, TuneFlags& flags) {
  add_problem_flags(app, flags.what);
  add_plan_flags(app, flags.how);
  add_world_flags(app, flags.where, max_planned_world);
  add_machine(app, flags.machine, {"--world", "--link", "--engine", "--workers", "--timeout"});
  const std::string group = "Search";
  app.add_option("--margin", flags.margin, "A smaller gain over sequential, relative, counts as none")
      ->check(number_between(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  app.add_option("--confirm", flags.confirm,
                 "Measure the best N mechanisms and the sequential plan here, and take the fastest")
      ->check(CLI::Range(1, 6))
      ->group(group);
  app.add_flag("--nearest", flags.nearest, "For new sizes take the params of the nearest known ones")
      ->group(group);
  app.add_option("--cache", flags.cache, "Where params are kept (default: ~/.cache/shingle)")
      ->type_name("DIR")
      ->group(group);
  app.add_option(
         "--nccl-env", flags.nccl_table,
         "Instead: print what NCCL's tuner plugin cannot set of a tuned table, for a shell to evaluate")
      ->type_name("TABLE")
      ->group("NCCL");
  add_format_flag(app, flags.format, "table");
}

int dispatch(CLI::App& app, const Commands& commands, const ProcessLaunch& launch) {
  const std::string name = app.get_subcommands().at(0)->get_name();
  if (name == "run") return run(commands.run, launch);
  if (name == "plan") return plan(commands.plan, launch);
  if (name == "verify") return verify(commands.verify, launch);
  if (name == "tune") return tune(commands.tune, launch);
  if (name == "cotune") return cotune(commands.cotune, launch);
  if (name == "bench") return bench(commands.bench, launch);
  if (name == "profile") return profile(commands.profile, launch);
  if (name == "simulate") return simulate(commands.simulate, launch);
  if (name == "compare") return compare(commands.compare, launch);
  return info(commands.info_format, commands.info_world, launch);
}

/// Runs `work`; a failure becomes one line and an exit code. All processes of an MPI run detect usage errors
/// alike.
template <class Work>
int guarded(const ProcessLaunch& launch, Work work) {
  const auto refuse = [&](const std::exception& error) {
    if (launch.speaks()) print_failure(error.what());
    return bad_usage;
  };
  try {
    return work();
  } catch (const InvalidArgument& error) {
    return refuse(error);
  } catch (const WriteError& error) {  // writing a result failed: the work is done but lost
    print_failure(error, launch);
    return failure;
  } catch (const IoError& error) {
    return refuse(error);
  } catch (const std::exception& error) {
    print_failure(error, launch);
    return failure;
  }
}

/// Names the unknown command; CLI11 would only report a missing subcommand.
void refuse_unknown_command(const CLI::App& app, int argc, const char* const* argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::string known;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == argv[1]) return;
    known += (known.empty() ? "" : ", ") + command->get_name();
  }
  throw InvalidArgument(fmt::format("unknown command '{}' (one of {})", argv[1], known));
}

/// Refuses empty values, for example from an unset shell variable, which CLI11 would treat as a missing flag.
void refuse_empty_values(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands())
    for (const CLI::Option* option : command->get_options()) {
      if (option->count() == 0 || option->get_items_expected_min() == 0) continue;
      if (std::ranges::any_of(option->results(), &std::string::empty))
        throw InvalidArgument(
            fmt::format("{} is empty; give {} or leave it out", option->get_name(), option->get_type_name()));
    }
}

/// Required arguments of a command, such as "compare needs A.json and B.json".
std::string usage_of_required(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    std::vector<std::string> missing, types;
    for (const CLI::Option* option : command->get_options()) {
      if (!option->get_required()) continue;
      types.push_back(option->get_type_name());
      if (option->count() == 0)
        missing.push_back(fmt::format("{} ({})", option->get_type_name(), option->get_description()));
    }
    if (!missing.empty())
      return fmt::format("{} needs {}: shingle {} {}", command->get_name(), fmt::join(missing, " and "),
                         command->get_name(), fmt::join(types, " "));
  }
  return {};
}

/// First unknown flag among the arguments that a command with a positional file leaves over, such as --wings
/// of "--wings 2". Empty if there is none.
std::string unknown_flag(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands())
    for (const std::string& word : command->remaining())
      if (word.starts_with('-')) return word;
  return {};
}

/// Exit code if the arguments were answered (help, version) or refused. Empty if there is work to do.
std::optional<int> parse(CLI::App& app, int argc, const char* const* argv, const ProcessLaunch& launch) {
  refuse_unknown_command(app, argc, argv);
  try {
    app.parse(argc, argv);
    refuse_empty_values(app);
    return std::nullopt;
  } catch (const CLI::RequiredError& error) {
    const std::string usage = usage_of_required(app);
    if (launch.speaks())
      print_failure(fmt::format("{} (see shingle --help)", usage.empty() ? error.what() : usage));
    return bad_usage;
  } catch (const CLI::ExcludesError& error) {
    // CLI11 takes a misspelt flag's value for the file, which then excludes other options. The flag is the
    // error.
    const std::string unknown = unknown_flag(app);
    const std::string what = unknown.empty() ? error.what() : fmt::format("unknown flag {}", unknown);
    if (launch.speaks()) print_failure(fmt::format("{} (see shingle --help)", what));
    return bad_usage;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      if (launch.speaks()) print_failure(fmt::format("{} (see shingle --help)", error.what()));
      return bad_usage;
    }
    return launch.speaks() ? app.exit(error) : 0;
  }
}

}  // namespace

int main(int argc, const char* const* argv) {
  ProcessLaunch launch;
  try {
    launch = find_process_launch();
  } catch (const InvalidArgument& error) {
    print_failure(error.what());
    return bad_usage;
  }
  CLI::App app{"Overlaps matrix products with the communication that depends on them.", "shingle"};
  app.formatter(std::make_shared<Formatter>());
  app.set_version_flag("--version", fmt::format("shingle {} ({})", SHINGLE_VERSION, commit()));
  app.footer(examples);
  app.require_subcommand(1);
  Commands commands;
  add_run(*app.add_subcommand("run", "Run operators, check the results and time them"), commands.run);
  add_plan(*app.add_subcommand("plan", "Print a plan; with --machine predict how long it takes there"),
           commands.plan);
  add_verify(*app.add_subcommand("verify", "Prove a plan"), commands.verify);
  add_simulate(*app.add_subcommand("simulate", "Predict how long a plan takes on a machine"),
               commands.simulate);
  add_compare(*app.add_subcommand("compare", "Compare two results"), commands.compare);
  add_tune(*app.add_subcommand("tune", "Search the fastest mechanism and params for a machine"),
           commands.tune);
  add_cotune(
      *app.add_subcommand("cotune", "Search configurations of collectives that run beside computation"),
      commands.cotune);
  add_profile(*app.add_subcommand("profile", "Measure this machine, for simulate and tune"),
              commands.profile);
  for (int i = 0; i < argc; ++i) commands.bench.command += fmt::format("{}{}", i == 0 ? "" : " ", argv[i]);
  add_bench(*app.add_subcommand("bench", "Measure many shapes, mechanisms and parameters"), commands.bench);
  CLI::App& info = *app.add_subcommand("info", "Show the machine, backends and libraries");
  add_format_flag(info, commands.info_format, "text");
  add_world_flags(info, commands.info_world);
  return guarded(launch, [&] {
    const std::optional<int> answered = parse(app, argc, argv, launch);
    const int code = answered ? *answered : dispatch(app, commands, launch);
    if (std::cout.flush(); std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout)
      throw Error(unwritable_output);
    return code;
  });
}

}  // namespace shingle::cli
