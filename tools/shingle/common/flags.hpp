// Flags shared by the subcommands: what to run, how to plan it, and on which world.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shingle/common/process_launch.hpp"
#include "shingle/shingle.hpp"

namespace CLI {  // CLI11 is slow to compile: only sources that add flags include it
class App;
class Option;
}  // namespace CLI

namespace shingle::cli {

/// Which operators to run.
struct ProblemFlags {
  std::string model;  ///< a config.json
  std::int64_t tokens = 0;
  bool layer_ops = false;             ///< all operators of a layer
  std::vector<std::string> op_names;  ///< operators of a layer with these names
  bool mlp = false;                   ///< each feed-forward of the layer as one operator
  int ep = 0;                         ///< expert-parallel ranks; 0: all
  std::optional<Op> op;
  std::int64_t m = 0, n = 0, k = 0, inner = 0;
  std::optional<DType> dtype;
  bool transpose_a = false, transpose_b = false;
  Attention attention;
  Experts experts;
  Epilogue epilogue;
  bool f32_sums = false;
  bool norm = false, residual = false;
  std::string routing;  ///< a pattern or a file; empty: random
  RowOrder row_order = RowOrder::contiguous;
  std::int64_t row_block = 0;
  std::uint64_t seed = 0;
};

/// The user's own matrices.
struct MatrixFlags {
  std::string a, b, out;
};

/// How to plan.
struct PlanFlags {
  std::vector<Mechanism> mechanisms;  ///< empty: the finest that serves each problem
  bool automatic = false;             ///< the mechanism predicted to be fastest, with searched params
  bool asked = false;                 ///< the user named a mechanism; the command's default does not apply
  ParamList params;                   ///< as given; each mechanism takes its own
  std::function<std::string(const Plan&)> refuses{};  ///< for `automatic` (TuneOptions)
};

inline constexpr double default_timeout_us = 30e6;

/// Where to run.
struct WorldFlags {
  int world = 0;  ///< 0: the launcher's number of processes, else the backend's number
  std::string backend;
  Link link;
  EnginePhases engine;
  int workers = 0;                   ///< of each rank; 0: the cores shared among the ranks
  std::optional<double> timeout_us;  ///< empty: 30 s, and more for runs that may take long

  int ranks(const ProcessLaunch& launch) const;
  /// Options of the world, with the backend that `launch` implies.
  WorldOptions options(const ProcessLaunch& launch) const;
};

/// Headings of flags in `--help`. Those of params are in shingle/planner/params.hpp; a mechanism's own params
/// have its name as heading.
namespace group {
inline constexpr const char *problem = "Operator", *attention = "Attention", *experts = "Experts",
                            *model = "Operators of a model", *matrices = "Your own matrices",
                            *world = "Ranks and machine";
/// Headings of the flags that define operators, and of those that plan them.
inline const std::vector<std::string> problems{problem, attention, experts, model};
const std::vector<std::string>& plans();
}  // namespace group

/// Adds an option whose text goes through `store`. If `store` throws InvalidArgument, the message gets the
/// flag's name.
CLI::Option* add(CLI::App& app, const std::string& flag, const std::string& type, const std::string& help,
                 std::function<void(const std::string&)> store);

/// Each function adds its flags to a subcommand. A value that does not parse throws InvalidArgument with the
/// flag's name.
void add_problem_flags(CLI::App& app, ProblemFlags& flags);
void add_matrix_flags(CLI::App& app, MatrixFlags& flags);
void add_plan_flags(CLI::App& app, PlanFlags& flags);
/// For commands that only plan: whether some ranks stand for all.
void add_symmetric_flag(CLI::App& app, PlanFlags& flags);
/// `most`: max. ranks of the command.
void add_world_flags(CLI::App& app, WorldFlags& flags, int most = max_world);

/// Mechanism with the given name. Throws InvalidArgument with all names. `others`: further values of the
/// flag.
Mechanism mechanism_named(const std::string& text, const std::string& others);

/// Parses planning flags such as "--chunks=4". Throws InvalidArgument.
PlanFlags parse_plan_flags(std::vector<std::string> arguments);

/// Refuses an option together with other options of `groups`, except `but`, because those would have no
/// effect.
void exclude(CLI::App& app, CLI::Option* option, const std::vector<std::string>& groups,
             const std::vector<std::string>& but = {});

enum class Format : std::uint8_t { text, json };
/// Checks a flag's number. Unlike CLI::Range, it refuses "nan", which is neither below nor above a bound.
std::function<std::string(const std::string&)> number_between(double least, double most);
void add_format_flag(CLI::App& app, Format& format, const std::string& text_name);
/// Throws InvalidArgument if a flag was given that has no effect on JSON output.
void require_text(const std::string& flag, bool given, Format format);

/// A flag that names a file to write, and the file. Empty: no file is wanted.
using OutputFile = std::pair<std::string_view, const std::string&>;
/// Throws InvalidArgument, before any work, if a file cannot be created, or if two flags name the same one.
void require_writable(std::initializer_list<OutputFile> files);

}  // namespace shingle::cli
