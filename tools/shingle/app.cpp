#include "shingle/app.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "api/c/status.hpp"
#include "arguments.hpp"
#include "base/command_line.hpp"
#include "base/file.hpp"
#include "shingle/base/error.hpp"
#include "shingle/commands.hpp"
#include "shingle/common/console.hpp"

namespace shingle::cli {
namespace {

constexpr int failure = 1;

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

Exit codes: 0 success; 1 wrong result or proof, failed run, or slower than allowed; 2 wrong usage.)";

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

/// Omits the lists of flags that an option needs or excludes, because the error for a pair names both.
class Formatter final : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return {};
    return " " + option->get_type_name() + (option->get_required() ? " (required)" : "");
  }
};

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

/// Prints the current exception to stderr as a line of JSON: the name of its status in the C interface, and
/// its message. Call it in a handler.
void print_failure_as_json() {
  const std::string_view status = shingle_status_name(c::keep_error());
  const nlohmann::ordered_json line{{"status", status}, {"message", shingle_last_error()}};
  fmt::print(stderr, "{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

/// Runs `work`; a failure becomes one line, in JSON if `as_json` is set by then, and an exit code. All
/// processes of an MPI run detect usage errors alike.
template <class Work>
int guarded(const ProcessLaunch& launch, const bool& as_json, Work work) {
  const auto refuse = [&](const std::exception& error) {
    if (launch.speaks()) as_json ? print_failure_as_json() : print_failure(error.what());
    return bad_usage;
  };
  const auto fail = [&](const std::exception& error) {
    as_json ? print_failure_as_json() : print_failure(error, launch);
    return failure;
  };
  try {
    return work();
  } catch (const InvalidArgument& error) {
    return refuse(error);
  } catch (const WriteError& error) {  // writing a result failed: the work is done but lost
    return fail(error);
  } catch (const IoError& error) {
    return refuse(error);
  } catch (const std::exception& error) {
    return fail(error);
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
  bool json_errors = false;
  app.add_flag("--json-errors", json_errors, "Print a failure as a line of JSON, with status and message")
      ->trigger_on_parse();
  app.require_subcommand(1);
  Commands commands;
  add_run(*app.add_subcommand("run", "Run operators, check the results and time them"), commands.run);
  add_plan(*app.add_subcommand("plan", "Print a plan; with --machine predict how long it takes there"),
           commands.plan);
  add_verify(*app.add_subcommand("verify", "Prove a plan"), commands.verify);
  add_simulate(*app.add_subcommand("simulate", "Predict how long a plan takes on a machine"),
               commands.simulate);
  add_compare(*app.add_subcommand("compare", "Compare two results"), commands.compare);
  add_tune(*app.add_subcommand("tune", "Search for the fastest mechanism and params on a machine"),
           commands.tune);
  add_cotune(*app.add_subcommand("cotune", "Search for settings of collectives that run beside computation"),
             commands.cotune);
  add_profile(*app.add_subcommand("profile", "Measure this machine, for simulate and tune"),
              commands.profile);
  commands.bench.command = command_line(argc, argv);
  add_bench(*app.add_subcommand("bench", "Measure many shapes, mechanisms and params"), commands.bench);
  CLI::App& info = *app.add_subcommand("info", "Show the machine, backends and libraries");
  add_format_flag(info, commands.info_format, "text");
  add_world_flags(info, commands.info_world);
  return guarded(launch, json_errors, [&] {
    const std::optional<int> answered = parse(app, argc, argv, launch);
    const int code = answered ? *answered : dispatch(app, commands, launch);
    if (std::cout.flush(); std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout)
      throw Error(unwritable_output);
    return code;
  });
}

}  // namespace shingle::cli
