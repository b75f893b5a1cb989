// The subcommands. Each takes parsed flags and returns the exit code: 0, or 1 after a failure. For usage
// errors they throw InvalidArgument, IoError or Unsupported before any work. add_<command>() adds the flags
// of one: in <command>/flags.cpp or command_flags.cpp.
#pragma once

#include "shingle/bench/contenders.hpp"
#include "shingle/bench/shape.hpp"
#include "shingle/common/flags.hpp"
#include "shingle/common/target.hpp"
#include "workload/overlap_patterns.hpp"

namespace shingle::cli {

struct RunFlags {
  std::string file;  ///< a plan as JSON; empty: the problem flags apply
  ProblemFlags what;
  MatrixFlags own;
  PlanFlags how;
  WorldFlags where;
  int repeat = 0;
  Format format = Format::text;
  std::string trace, svg, html;
  std::string machine;  ///< for --mechanism auto: a profile of this machine
  bool timeline = false;
};
int run(const RunFlags& flags, const ProcessLaunch& launch);
void add_run(CLI::App& app, RunFlags& flags);

struct PlanCommandFlags {
  std::string file;  ///< a plan as JSON; empty: the problem flags apply
  ProblemFlags what;
  PlanFlags how;
  WorldFlags where;
  std::string machine;   ///< to plan for, read by machine_from_spec(); empty: this machine
  bool lowered = false;  ///< print the plans' launches instead of their steps
  bool steps = false;    ///< print steps, also for another machine; default: predicted times
  int rank = -1;
  Format format = Format::text;
  std::string out, trace, svg;
};
int plan(const PlanCommandFlags& flags, const ProcessLaunch& launch);
void add_plan(CLI::App& app, PlanCommandFlags& flags);

struct VerifyFlags {
  std::string file;  ///< a plan as JSON; empty: the problem flags apply
  ProblemFlags what;
  PlanFlags how;
  WorldFlags where;
  std::string machine;
  bool in_context = false;  ///< prove that calls of other plans may come before and after
  Format format = Format::text;
};
int verify(const VerifyFlags& flags, const ProcessLaunch& launch);
void add_verify(CLI::App& app, VerifyFlags& flags);

struct SimulateFlags {
  std::string file;  ///< a plan as JSON; empty: the problem flags apply
  ProblemFlags what;
  PlanFlags how;
  WorldFlags where;
  std::string machine;
  std::vector<std::string> sweeps;  ///< such as "k=1K,2K"; one problem per combination
  SimOptions options;
  Format format = Format::text;
  std::string trace, svg, html;
  bool timeline = false, critical_path = false;
};
int simulate(const SimulateFlags& flags, const ProcessLaunch& launch);
void add_simulate(CLI::App& app, SimulateFlags& flags);

struct CompareFlags {
  std::string a, b;                 ///< files of rows, as JSON
  std::optional<double> threshold;  ///< max. percent by which b may be slower
  Format format = Format::text;
  std::string html;
};
int compare(const CompareFlags& flags, const ProcessLaunch& launch);
void add_compare(CLI::App& app, CompareFlags& flags);

struct TuneFlags {
  ProblemFlags what;
  PlanFlags how;
  WorldFlags where;
  std::string machine, cache;
  double margin = 0.05;
  int confirm = 0;  ///< number of mechanisms to measure; 0: none
  bool nearest = false;
  std::string nccl_table;             ///< if set, only prints the environment to use this table
  std::string nccl_version = "2.28";  ///< of the program that uses it
  Format format = Format::text;
};
int tune(const TuneFlags& flags, const ProcessLaunch& launch);
void add_tune(CLI::App& app, TuneFlags& flags);

struct CotuneFlags {
  std::string model, overlap, trace;   ///< files, at most one of which is given
  std::optional<Parallelism> pattern;  ///< used with a model, as are the next two fields
  std::int64_t tokens = 0, sequence = 0;
  int step = -1;               ///< with a trace: n of "ProfilerStep#n"; negative: the last step
  std::optional<DType> dtype;  ///< empty: the trace's, else bf16
  WorldFlags where;
  std::string machine;  ///< read by machine_from_spec(); empty: measures on that world
  bool exhaustive = false;
  int repeat = 3;                 ///< measurements of each configuration
  int most = 0;                   ///< configurations to measure, by each method; 0: no limit
  std::string plan, table, list;  ///< output files
  Format format = Format::text;
};
int cotune(const CotuneFlags& flags, const ProcessLaunch& launch);
void add_cotune(CLI::App& app, CotuneFlags& flags);

struct ProfileFlags {
  WorldFlags where;
  std::string name;            ///< empty: the base's name
  std::optional<DType> dtype;  ///< empty: the backend's preferred type
  int repeat = 5;
  std::string base;  ///< read by machine_from_spec(); empty: the backend's figures
  double budget_s = 120;
  bool contention = false;              ///< measure contention only
  std::int64_t chunk_bytes = 0;         ///< chunk size for that; 0: NCCL's choice
  double most_spread = default_spread;  ///< max. relative spread of the measurements; 0: no limit
  bool keep = false;                    ///< keep as this machine's own profile
  std::string out;
};
int profile(const ProfileFlags& flags, const ProcessLaunch& launch);
void add_profile(CLI::App& app, ProfileFlags& flags);

struct BenchFlags {
  ProblemFlags what;
  WorldFlags where;
  bool suite = false;               ///< measure the shapes of a suite
  std::string suite_file;           ///< file of the suite; empty: the shipped one
  std::int64_t begin = 0, end = 0;  ///< range of M, or of a model's tokens; 0: the problem flags, or all
  std::int64_t factor = 2;
  std::string only;  ///< regular expression that shapes must match
  std::vector<Contender> contenders = parse_contenders("auto,chunked,signal");
  std::vector<std::int32_t> comm_workers;  ///< each contender runs once with each; empty: unchanged
  int confirm = 0;                         ///< mechanisms of `auto` to measure before its timing; 0: none
  int iters = 20, warmup = 2;
  Checked checked = Checked::sampled;
  std::optional<double> idle_us;  ///< before each timed run; empty: by backend
  bool sustained = false;
  double budget_us = 0;  ///< no shape begins after it; 0: no limit
  std::string machine, cache;
  Format format = Format::text;
  std::string out, html;
  std::string command;  ///< the command line, for the record
};
int bench(const BenchFlags& flags, const ProcessLaunch& launch);
void add_bench(CLI::App& app, BenchFlags& flags);

int info(Format format, const WorldFlags& where, const ProcessLaunch& launch);

}  // namespace shingle::cli
