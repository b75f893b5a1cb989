// The flags that say what to run, how to plan it, and on which world; shared by the subcommands.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shingle/common/launch.hpp"
#include "shingle/shingle.hpp"

namespace CLI {  // CLI11 takes long to compile: only sources that add flags include it
class App;
class Option;
}  // namespace CLI

namespace shingle::cli {

/// Which operators.
struct ProblemFlags {
  std::string model;  ///< a config.json
  std::int64_t tokens = 0;
  bool layer_ops = false;             ///< all operators of a layer …
  std::vector<std::string> op_names;  ///< … or those of these names
  bool mlp = false;                   ///< its feed-forwards as one operator each
  std::optional<Op> op;
  std::int64_t m = 0, n = 0, k = 0, inner = 0;
  std::optional<DType> dtype;
  bool transpose_a = false, transpose_b = false;
  Attention attention;
  Epilogue epilogue;
  bool norm = false, residual = false;
  std::string routing;  ///< a pattern, or a file; empty: random
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
  bool automatic = false;             ///< the one that is predicted to be fastest, with params searched
  bool asked = false;                 ///< for a mechanism, whichever: a command's own default has no say
  Params params;
  std::function<std::string(const Plan&)> refuses{};  ///< of what is automatic (TuneOptions)
};

inline constexpr double default_timeout_us = 30e6;

/// Where to run.
struct WorldFlags {
  int world = 0;  ///< 0: as many as a launcher started, else the backend's number
  std::string backend;
  Link link;
  EnginePhases engine;
  int workers = 0;                   ///< of each rank; 0: the cores shared among the ranks
  std::optional<double> timeout_us;  ///< empty: 30 s, and more for runs that may take long

  int ranks(const Launch& launch) const;
  /// With the backend that `launch` implies.
  WorldOptions options(const Launch& launch) const;
};

/// Headings of flags in `--help`.
namespace group {
inline constexpr const char *problem = "Operator", *attention = "Attention", *model = "Operators of a model",
                            *matrices = "Your own matrices", *mechanism = "Mechanism", *chunked = "chunked",
                            *ring = "ring", *signal = "signal", *fused = "fused",
                            *copy_engine = "copy-engine", *tiles = "Tiles of the GEMM",
                            *world = "Ranks and machine";
/// What the operators are, and how they are planned.
inline const std::vector<std::string> problems{problem, attention, model},
    plans{mechanism, chunked, ring, signal, fused, copy_engine, tiles};
}  // namespace group

/// An option whose text goes through `store`; what that refuses as InvalidArgument is said with the flag's
/// name.
CLI::Option* add(CLI::App& app, const std::string& flag, const std::string& type, const std::string& help,
                 std::function<void(const std::string&)> store);

/// Each adds its flags to a subcommand; a value that does not parse throws InvalidArgument with the flag's
/// name.
void add_problem_flags(CLI::App& app, ProblemFlags& flags);
void add_matrix_flags(CLI::App& app, MatrixFlags& flags);
void add_plan_flags(CLI::App& app, PlanFlags& flags);
/// Of a command that only plans: whether some ranks stand for all.
void add_symmetric_flag(CLI::App& app, PlanFlags& flags);
/// `most`: ranks that the command can do with.
void add_world_flags(CLI::App& app, WorldFlags& flags, int most = max_world);

/// The mechanism of a name. Throws InvalidArgument with all names; `others`: what the flag takes besides.
Mechanism mechanism_named(const std::string& text, const std::string& others);

/// The params that `arguments` have set with the flags of how to plan, such as "--chunks=4". Throws
/// InvalidArgument.
PlanFlags parse_plan_flags(std::vector<std::string> arguments);

/// Refuses an option together with any other of some groups but those named, as these would have no effect.
void exclude(CLI::App& app, CLI::Option* option, const std::vector<std::string>& groups,
             const std::vector<std::string>& but = {});

enum class Format : std::uint8_t { text, json };
/// Checks a flag's number; unlike CLI::Range it refuses "nan", which is neither below nor above a bound.
std::function<std::string(const std::string&)> number_between(double least, double most);
void add_format_flag(CLI::App& app, Format& format, const std::string& text_name);
/// Throws InvalidArgument where a flag was given that JSON does not heed.
void require_text(const std::string& flag, bool given, Format format);

/// Throws InvalidArgument where a file cannot be made at `path` (empty: no file is wanted), before any work
/// is done for it.
void require_writable(const std::string& flag, const std::string& path);

/// The parts of `text` between separators.
std::vector<std::string> split(const std::string& text, char separator);

}  // namespace shingle::cli
