#include "shingle/common/flags.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <map>

namespace shingle::cli {
namespace {

/// Parses a whole number in [least, most].
std::int64_t whole(const std::string& text, std::int64_t least, std::int64_t most) {
  const std::int64_t value = parse_size(text);
  if (value < least || value > most)
    throw InvalidArgument(fmt::format("{} is outside [{}, {}]", text, least, most));
  return value;
}

std::int64_t extent(const std::string& text) {
  return whole(text, 1, max_extent);
}

/// `scale` is that of another flag.
Epilogue parse_epilogue(const std::string& text, float scale) {
  Epilogue epilogue{.scale = scale};
  for (const std::string& part : split(text, ',')) {
    if (part == "bias") {
      epilogue.bias = true;
    } else if (epilogue.activation == Activation::none) {
      epilogue.activation = parse_activation(part);
    } else {
      throw InvalidArgument(fmt::format("'{}' has more than one activation", text));
    }
  }
  return epilogue;
}

template <class T>
T choose(const std::string& text, std::initializer_list<std::pair<const char*, T>> known) {
  std::string names;
  for (const auto& [name, value] : known) {
    if (text == name) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  throw InvalidArgument(fmt::format("'{}' is none of {}", text, names));
}

std::vector<Mechanism> parse_mechanisms(const std::string& text) {
  std::vector<Mechanism> mechanisms;
  if (text == "auto") return mechanisms;
  if (text == "all") {
    for (const PlannerEntry& entry : planners()) mechanisms.push_back(entry.mechanism);
  } else if (text != "best") {
    for (const std::string& part : split(text, ','))
      mechanisms.push_back(mechanism_named(part, "or all, best or auto, which stand alone"));
  }
  return mechanisms;
}

/// A number of this type.
template <class T>
T parse_number(const std::string& text) {
  T number{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || rest != end) throw InvalidArgument(fmt::format("'{}' is not a number", text));
  return number;
}

}  // namespace

CLI::Option* add(CLI::App& app, const std::string& flag, const std::string& type, const std::string& help,
                 std::function<void(const std::string&)> store) {
  const std::string name = flag.substr(flag.find("--"));
  const auto checked = [shown = name.substr(0, name.find(',')),
                        store = std::move(store)](const std::string& text) {
    try {
      store(text);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("{}: {}", shown, error.what()));
    }
  };
  return app.add_option_function<std::string>(flag, checked, help)->type_name(type);
}

int WorldFlags::ranks(const ProcessLaunch& launch) const {
  if (world > 0) return world;
  const std::string_view used = options(launch).backend;
  return used != "host" && launch.processes() ? launch.size : find_backend(used).ranks();
}

WorldOptions WorldFlags::options(const ProcessLaunch& launch) const {
  const std::string_view implied = launch.mpi ? "mpi" : "host";
  return {.backend = backend.empty() ? implied : backend,
          .link = link,
          .engine = engine,
          .workers_per_rank = workers,
          .timeout_us = timeout_us.value_or(default_timeout_us)};
}

void exclude(CLI::App& app, CLI::Option* option, const std::vector<std::string>& groups,
             const std::vector<std::string>& but) {
  const auto in = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (CLI::Option* other : app.get_options())
    if (other != option && in(groups, other->get_group()) && !in(but, other->get_name()))
      option->excludes(other);
}

void add_problem_flags(CLI::App& app, ProblemFlags& flags) {
  const auto in_model = [](CLI::Option* option) { option->group(group::model); };
  const auto in_attention = [](CLI::Option* option) { option->group(group::attention); };
  const auto grouped = [](CLI::Option* option) { option->group(group::problem); };
  CLI::Option* model =
      app.add_option("--model", flags.model, "Model: llama-3-8b, or its Hugging Face config.json")
          ->type_name("MODEL");
  in_model(model);
  in_model(add(app, "--tokens", "N", "Tokens of the batch", [&](auto& t) {
             flags.tokens = extent(t);
           })->needs(model));
  in_model(add(app, "--layer-ops", "[NAME,…]", "Operators of a layer: all, or the named ones",
               [&](auto& t) {
                 flags.layer_ops = true;
                 if (!t.empty()) flags.op_names = split(t, ',');
               })
               ->expected(0, 1)
               ->default_str("")
               ->needs(model));
  in_model(
      app.add_flag("--mlp", flags.mlp, "A feed-forward as one operator (mlp, moe) instead of its up and down")
          ->needs(model));
  in_model(add(app, "--ep", "RANKS",
               "Expert-parallel ranks: as many as --tp (the default), or 1: each has a part of every expert",
               [&](auto& t) { flags.ep = static_cast<int>(extent(t)); })
               ->needs(model));
  grouped(add(app, "--op", "OP", "One of " + op_list(), [&](auto& t) { flags.op = parse_op(t); }));
  grouped(add(app, "--m", "M",
              "Rows of one rank's GEMM, of a collective's whole matrix, or tokens of a rank (replicated: "
              "all): 4096, 8K or 128M",
              [&](auto& t) { flags.m = extent(t); }));
  grouped(add(app, "--n", "N", "Columns of one rank's GEMM, or of a collective's matrix",
              [&](auto& t) { flags.n = extent(t); }));
  grouped(add(app, "--k", "K", "Inner dimension of one rank's GEMM", [&](auto& t) { flags.k = extent(t); }));
  grouped(add(app, "--inner", "I", "Two products: columns of one rank's activated first product",
              [&](auto& t) { flags.inner = extent(t); }));
  Attention& attention = flags.attention;
  in_attention(
      add(app, "--heads", "H", "Query heads of all ranks", [&](auto& t) { attention.heads = extent(t); }));
  in_attention(add(app, "--kv-heads", "G", "Heads of K and V of all ranks, a divisor of H (default: H)",
                   [&](auto& t) { attention.kv_heads = extent(t); }));
  in_attention(
      add(app, "--head-dim", "D", "Columns of a head", [&](auto& t) { attention.head_dim = extent(t); }));
  in_attention(app.add_flag("--causal", attention.causal, "Causal mask"));
  in_attention(add(app, "--seq-lens", "LIST",
                   "Tokens of each sequence, such as 512,300 (default: one sequence of M)", [&](auto& t) {
                     attention.lengths.clear();
                     for (const std::string& part : split(t, ',')) attention.lengths.push_back(extent(part));
                   }));
  in_attention(app.add_flag("--returns-lse", attention.returns_lse,
                            "allgather+attention: the log-sum-exp of the scores is an output too"));
  add(app, "--experts", "E",
      "Experts of all ranks; each rank has some of them, or with tensor-parallel experts a slice of each",
      [&](auto& t) { flags.experts.count = static_cast<std::int32_t>(extent(t)); })
      ->group(group::experts);
  add(app, "--topk", "K", "Experts of a token (default: 1)", [&](auto& t) {
    flags.experts.topk = static_cast<std::int32_t>(extent(t));
  })->group(group::experts);
  add(app, "--capacity", "ROWS",
      "The device routes: rows that an expert takes of a rank's tokens (replicated: of all), at most",
      [&](auto& t) { flags.experts.capacity = static_cast<std::int32_t>(extent(t)); })
      ->group(group::experts);
  grouped(add(app, "--dtype", "TYPE", "f32, bf16 or f16 (default: f32; with --model bf16)",
              [&](auto& t) { flags.dtype = parse_dtype(t); }));
  grouped(app.add_flag("--transpose-a", flags.transpose_a, "A is stored K×M (the weight gradient)"));
  grouped(app.add_flag("--transpose-b", flags.transpose_b, "B is stored N×K (a Linear layer's weight)"));
  grouped(add(app, "--epilogue", "LIST", "bias, or one of relu, gelu, silu, swiglu, or both: bias,silu",
              [&](auto& t) { flags.epilogue = parse_epilogue(t, flags.epilogue.scale); }));
  grouped(add(app, "--activation", "NAME", "Activation alone; with two products, the one between them",
              [&](auto& t) {
                if (flags.epilogue.activation != Activation::none)
                  throw InvalidArgument("--epilogue has an activation already");
                flags.epilogue.activation = parse_activation(t);
              }));
  grouped(add(app, "--scale", "X", "reducescatter, allreduce: factor of the sum, such as 0.25",
              [&](auto& t) { flags.epilogue.scale = parse_number<float>(t); }));
  grouped(app.add_flag("--f32-sums", flags.f32_sums, "reducescatter, allreduce: the output is f32"));
  grouped(app.add_flag("--norm", flags.norm, "RMSNorm of the result"));
  grouped(app.add_flag("--residual", flags.residual, "Residual that is added before the norm"));
  grouped(
      app.add_option("--routing", flags.routing,
                     "All-to-all, experts: random, balanced, skewed, all-to-one, empty-rank, or a JSON file")
          ->type_name("ROUTING"));
  grouped(add(app, "--row-order", "ORDER",
              "Rows of a shard: contiguous (the default), block-cyclic or zigzag", [&](auto& t) {
                flags.row_order = choose<RowOrder>(t, {{"contiguous", RowOrder::contiguous},
                                                       {"block-cyclic", RowOrder::block_cyclic},
                                                       {"block_cyclic", RowOrder::block_cyclic},
                                                       {"zigzag", RowOrder::zigzag}});
              }));
  grouped(add(app, "--row-block", "ROWS", "Rows of a block with block-cyclic",
              [&](auto& t) { flags.row_block = extent(t); }));
  grouped(add(app, "--seed", "N", "Seed of the random inputs and routings",
              [&](auto& t) { flags.seed = parse_number<std::uint64_t>(t); }));
  exclude(app, model, {group::problem, group::attention, group::experts}, {"--dtype", "--seed"});
}

void add_matrix_flags(CLI::App& app, MatrixFlags& flags) {
  const auto file = [&](const char* name, std::string& path, const char* help) {
    app.add_option(name, path, help)->type_name("FILE.npy")->group(group::matrices);
  };
  file("--a", flags.a, "The whole A (M×K), split over the ranks by the operator");
  file("--b", flags.b, "The whole B (K×N)");
  file("--out", flags.out, "File for the assembled result, written if it passes its check");
}

const std::vector<std::string>& group::plans() {
  static const std::vector<std::string> headings = [] {
    std::vector<std::string> all{std::string(mechanism_heading)};
    for (const PlannerEntry& planner : planners()) all.emplace_back(name(planner.mechanism));
    all.emplace_back(tiles_heading);
    return all;
  }();
  return headings;
}

namespace {

/// "sequential, chunked, …"
std::string mechanism_list() {
  std::string list;
  for (const PlannerEntry& planner : planners())
    list += fmt::format("{}{}", list.empty() ? "" : ", ", name(planner.mechanism));
  return list;
}

/// A param as a flag. Mechanisms that take it may describe it differently.
struct ParamFlag {
  ParamInfo info;
  std::vector<std::pair<Mechanism, std::string_view>> takers;  // with the help of each

  std::string group() const {
    return std::string(info.group.empty() ? name(takers.front().first) : info.group);
  }
  std::string help() const {
    const auto differs = [&](const auto& taker) { return taker.second != info.help; };
    if (std::ranges::none_of(takers, differs)) return std::string(info.help);
    std::string text;
    for (const auto& [mechanism, help] : takers)
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name(mechanism), help);
    return text;
  }
};

/// The params of all mechanisms that are flags of planning commands, in the order of their headings.
std::vector<ParamFlag> param_flags() {
  std::vector<ParamFlag> flags;
  for (const PlannerEntry& planner : planners())
    for (const ParamInfo& info : param_infos(planner.mechanism)) {
      if (info.help.empty()) continue;
      auto at = std::ranges::find(flags, info.name, [](const ParamFlag& flag) { return flag.info.name; });
      if (at == flags.end()) at = flags.insert(flags.end(), {info, {}});
      at->takers.emplace_back(planner.mechanism, info.help);
    }
  std::ranges::stable_sort(flags, {}, [](const ParamFlag& flag) {
    return std::ranges::find(group::plans(), flag.group()) - group::plans().begin();
  });
  return flags;
}

/// Sets a param, and checks its value.
void set_param(ParamList& params, const ParamFlag& flag, const std::string& value) {
  const std::string name(flag.info.name);
  parse_params(flag.takers.front().first, {{name, value}});
  std::erase_if(params, [&](const Param& param) { return param.name == name; });
  params.push_back({name, value});
}

}  // namespace

void add_plan_flags(CLI::App& app, PlanFlags& flags) {
  add(app, "--mechanism", "NAME",
      mechanism_list() +
          ", a list of these, all, best (the default), or auto: the one predicted to be fastest",
      [&](auto& t) {
        flags.mechanisms = parse_mechanisms(t);
        flags.automatic = t == "auto";
        flags.asked = true;
      })
      ->group(std::string(mechanism_heading));
  for (const ParamFlag& flag : param_flags()) {
    const std::string option = fmt::format("--{}", flag.info.name);
    const auto set = [&params = flags.params, flag](const std::string& value) {
      set_param(params, flag, value);
    };
    CLI::Option* added = flag.info.type.empty()
                             ? app.add_flag_callback(
                                   option, [set] { set(""); }, flag.help())
                             : app.add_option_function<std::string>(option, set, flag.help())
                                   ->type_name(std::string(flag.info.type));
    added->group(flag.group());
  }
}

Mechanism mechanism_named(const std::string& text, const std::string& others) {
  for (const PlannerEntry& entry : planners())
    if (text == name(entry.mechanism)) return entry.mechanism;
  throw InvalidArgument(
      fmt::format("unknown mechanism '{}' (one of {}, {})", text, mechanism_list(), others));
}

PlanFlags parse_plan_flags(std::vector<std::string> arguments) {
  CLI::App app;
  PlanFlags flags;
  add_plan_flags(app, flags);
  std::ranges::reverse(arguments);  // CLI11 takes them from the end
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    throw InvalidArgument(error.what());
  }
  return flags;
}

void add_symmetric_flag(CLI::App& app, PlanFlags& flags) {
  app.add_flag_callback(
         "--symmetric", [&flags] { flags.params.push_back({"symmetric", ""}); },
         fmt::format("Plan some ranks that stand for all (always above {} ranks)", max_world))
      ->group(std::string(mechanism_heading));
}

void add_world_flags(CLI::App& app, WorldFlags& flags, int most) {
  const auto grouped = [&](CLI::Option* option) { option->group(group::world); };
  grouped(add(app, "--world,--tp", "RANKS",
              "Ranks (default: 4, or all GPUs; under a launcher as many as it started)",
              [&flags, most](auto& t) {
                flags.world = static_cast<int>(whole(t, 1, max_planned_world));
                if (flags.world > most)
                  throw InvalidArgument(fmt::format(
                      "{} ranks, but at most {} run or are proven: simulate takes more", flags.world, most));
              }));
  grouped(add(app, "--backend", "NAME",
              "host (threads), mpi (processes; the default under mpirun) or cuda (GPUs)", [&](auto& t) {
                find_backend(t);
                flags.backend = t;
              }));
  grouped(add(app, "--link", "LINK", "Pace transfers as a link would: 8GB/s,10us",
              [&](auto& t) { flags.link = parse_link(t); }));
  grouped(
      add(app, "--engine", "PHASES",
          "Pace copy engines: control=1us,schedule=2us,copy=3us,sync=2us,rate=60GB/s; also fetch, queued, "
          "poll, broadcast, swap",
          [&](auto& t) { flags.engine = parse_engine(t); }));
  grouped(add(app, "--workers", "N",
              "Threads of a rank that compute tiles (default: the cores, shared among the ranks)",
              [&](auto& t) { flags.workers = static_cast<int>(whole(t, 1, 1024)); }));
  grouped(add(app, "--timeout", "TIME",
              "Deadline of every wait (default: 30s; more where one GEMM may take that long)", [&](auto& t) {
                flags.timeout_us = parse_time_us(t);
                if (*flags.timeout_us <= 0) throw InvalidArgument("a deadline must be above zero");
              }));
}

std::function<std::string(const std::string&)> number_between(double least, double most) {
  return [least, most](const std::string& text) -> std::string {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == '\0' && value >= least && value <= most) return {};
    return fmt::format("'{}' is not a number from {} to {}", text, least, most);
  };
}

void add_format_flag(CLI::App& app, Format& format, const std::string& text_name) {
  add(app, "--format", "FORMAT", fmt::format("{} (default) or json", text_name),
      [&format, text_name](auto& t) {
        format = choose<Format>(t, {{text_name.c_str(), Format::text}, {"json", Format::json}});
      });
}

void require_text(const std::string& flag, bool given, Format format) {
  if (given && format != Format::text)
    throw InvalidArgument(fmt::format("{} is of the text: leave out --format json", flag));
}

namespace {

/// Returns the file, whatever its name is; empty if it is not a regular one, such as /dev/stdout.
std::filesystem::path regular_file(std::string_view flag, const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw InvalidArgument(fmt::format("{}: {} is a folder", flag, path));
  if (!std::filesystem::is_directory(folder.empty() ? "." : folder, error))
    throw InvalidArgument(fmt::format("{}: there is no folder {}", flag, folder.string()));
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) return {};
  if (access(folder.empty() ? "." : folder.c_str(), W_OK) != 0)
    throw InvalidArgument(fmt::format("{}: {} cannot be written to", flag, folder.string()));
  return std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
}

}  // namespace

void require_writable(std::initializer_list<OutputFile> files) {
  std::map<std::filesystem::path, std::string_view> flags;
  for (const auto& [flag, path] : files) {
    if (path.empty()) continue;
    const std::filesystem::path file = regular_file(flag, path);
    if (file.empty()) continue;
    if (const auto [other, first] = flags.try_emplace(file, flag); !first)
      throw InvalidArgument(fmt::format("{} and {} both write {}", other->second, flag, path));
  }
}

}  // namespace shingle::cli
