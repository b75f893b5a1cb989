// The flags of shingle bench, named after those of nccl-tests if nccl-tests has them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "shingle/commands.hpp"

namespace shingle::cli {
namespace {

std::int64_t rows_of(const std::string& text) {
  const std::int64_t value = parse_size(text);
  if (value < 1 || value > max_extent)
    throw InvalidArgument(fmt::format("{} is outside [1, {}]", text, max_extent));
  return value;
}

Checked parse_checked(const std::string& text) {
  if (text == "none" || text == "0") return Checked::none;
  if (text == "sampled" || text == "1") return Checked::sampled;
  if (text == "full") return Checked::full;
  throw InvalidArgument("unknown check '" + text + "' (one of sampled, full, none)");
}

void add_shapes(CLI::App& app, BenchFlags& flags) {
  const char* const group = group::problem;
  add_problem_flags(app, flags.what);
  CLI::Option* suite = add(app, "--suite", "[FILE]", "The shapes of a suite: the one that ships, or a file's",
                           [&flags](const std::string& file) {
                             flags.suite = true;
                             flags.suite_file = file;
                           })
                           ->expected(0, 1)
                           ->default_str("")
                           ->group(group);
  exclude(app, suite, group::problems, {"--op", "--dtype", "--seed"});
  add(app, "-b,--begin", "M", "First M, or number of tokens of a --model; of a suite the least",
      [&flags](const std::string& text) { flags.begin = rows_of(text); })
      ->group(group);
  add(app, "-e,--end,--max-m", "M", "Last M; of a suite the largest", [&flags](const std::string& text) {
    flags.end = rows_of(text);
  })->group(group);
  app.add_option("-f,--factor", flags.factor, "From one M to the next")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str()
      ->excludes(suite)
      ->group(group);
  app.add_option("--only", flags.only, "Shapes that match, such as 'ffn_down.*(8192|16384)x'")
      ->type_name("REGEX")
      ->group(group);
}

void add_contenders(CLI::App& app, BenchFlags& flags) {
  const std::string group = "How";
  add(app, "--mechanism", "LIST",
      "Held against sequential, with params as of `run`: auto,chunked:chunks=4,signal:groups=1,2 (default: "
      "auto,chunked,signal)",
      [&flags](const std::string& text) { flags.contenders = parse_contenders(text); })
      ->group(group);
  add(app, "--comm-workers", "LIST", "Each of them with each number of workers for collectives: 8,16,24",
      [&flags](const std::string& text) {
        flags.comm_workers.clear();
        for (const std::string& count : split(text, ','))
          flags.comm_workers.push_back(static_cast<std::int32_t>(rows_of(count)));
      })
      ->group(group);
  app.add_option("--confirm", flags.confirm,
                 "auto: measure the best N mechanisms beside sequential first, and take the fastest")
      ->check(CLI::Range(1, 6))
      ->group(group);
  app.add_option("--machine", flags.machine, "Profile to choose and to predict by (default: this machine's)")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--cache", flags.cache,
                 "auto takes params that `tune --cache` has kept there, and adds its own")
      ->type_name("DIR")
      ->group(group);
}

void add_measuring(CLI::App& app, BenchFlags& flags) {
  const std::string group = "Measuring";
  app.add_option("-n,--iters", flags.iters, "Pairs of runs, sequential and contender, of which medians count")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str()
      ->group(group);
  app.add_option("-w,--warmup", flags.warmup, "Runs before them")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str()
      ->group(group);
  add(app, "-c,--check", "WHAT",
      "Of every result, before and after timing: sampled (the default), full or none",
      [&flags](const std::string& text) { flags.checked = parse_checked(text); })
      ->group(group);
  CLI::Option* idle =
      app.add_option_function<double>(
             "--idle-ms", [&flags](double ms) { flags.idle_us = 1e3 * ms; },
             "Before each timed run, so that clocks are those of a single shot (default: 40 on cuda, else 0)")
          ->check(number_between(0.0, 60000.0))
          ->group(group);
  app.add_flag("--sustained", flags.sustained, "Ten runs back to back instead, with no idle between")
      ->excludes(idle)
      ->group(group);
  add(app, "--budget", "TIME", "Begin no further shape after so long, such as 300s, and say which are left",
      [&flags](const std::string& text) {
        flags.budget_us = parse_time_us(text);
        if (flags.budget_us <= 0) throw InvalidArgument("must be above zero");
      })
      ->group(group);
}

}  // namespace

void add_bench(CLI::App& app, BenchFlags& flags) {
  add_shapes(app, flags);
  add_contenders(app, flags);
  add_world_flags(app, flags.where);
  add_measuring(app, flags);
  add_format_flag(app, flags.format, "table");
  app.add_option("--out", flags.out, "Write the record there as JSON, anew after each shape")
      ->type_name("FILE");
  app.add_option("--html", flags.html, "Write a page with tables and figures")->type_name("FILE");
}

}  // namespace shingle::cli
