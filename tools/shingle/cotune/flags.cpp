// The flags of shingle cotune.
#include <CLI/CLI.hpp>

#include "shingle/commands.hpp"

namespace shingle::cli {

void add_cotune(CLI::App& app, CotuneFlags& flags) {
  const auto option = [&](const char* name, auto& value, const char* help, const char* type) {
    return app.add_option(name, value, help)->type_name(type)->group(group::problem);
  };
  const auto parsed = [&](const char* name, auto store, const char* help, const char* type) {
    add(app, name, type, help, store)->group(group::problem);
  };
  option("--model", flags.model, "The iteration of a model: llama-3-8b, or its Hugging Face config.json",
         "MODEL");
  parsed(
      "--pattern", [&](const std::string& text) { flags.pattern = parse_parallelism(text); },
      "With --model: fsdp, tp (two half-batches) or ep (two batches)", "NAME");
  parsed(
      "--tokens", [&](const std::string& text) { flags.tokens = parse_size(text); },
      "With --model: tokens of a micro-batch", "N");
  parsed(
      "--sequence", [&](const std::string& text) { flags.sequence = parse_size(text); },
      "With --model: tokens of a sequence (default: all tokens are one)", "N");
  parsed(
      "--dtype", [&](const std::string& text) { flags.dtype = parse_dtype(text); },
      "f32, bf16 or f16 (default: the trace's, else bf16)", "TYPE");
  option("--overlap", flags.overlap, "Any computations and collectives: a list as JSON", "FILE");
  option("--trace", flags.trace, "An iteration as it ran: a trace that torch.profiler exported", "FILE");
  option("--step", flags.step, "With --trace: ProfilerStep#N (default: the last one)", "N")
      ->check(CLI::NonNegativeNumber);
  add_world_flags(app, flags.where, max_planned_world);
  CLI::Option* machine =
      app.add_option("--machine", flags.machine,
                     "Predict for a machine instead: h200x8, a profile's file, or 'h200x8 * 2, 8x400Gb/s'")
          ->type_name("MACHINE")
          ->group(group::world);
  exclude(app, machine, {group::world}, {"--world"});
  app.add_option("--repeat", flags.repeat, "Measurements of each configuration")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->group("Search")
      ->excludes(machine);
  app.add_option("--most", flags.most, "Measure at most so many configurations (default: no limit)")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N")
      ->group("Search");
  app.add_flag("--exhaustive", flags.exhaustive, "Beside it the best of all channels and chunk sizes")
      ->group("Search");
  app.add_option("--plan", flags.plan, "With --overlap or --trace: write the plan, for verify and simulate")
      ->type_name("FILE");
  app.add_option("--list", flags.list, "With --trace: write its list, for --overlap")->type_name("FILE");
  app.add_option(
         "--table", flags.table,
         "Write the table that NCCL's tuner plugin reads; what it cannot tell apart gets one configuration")
      ->type_name("FILE");
  add_format_flag(app, flags.format, "table");
}

}  // namespace shingle::cli
