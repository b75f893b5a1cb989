// The subcommands. Each takes its flags parsed and returns the exit code: 0, or 1 where something failed.
// They throw InvalidArgument, IoError or Unsupported for what the user asked wrongly, before any work.
#pragma once

#include "shingle/bench/contenders.hpp"
#include "shingle/bench/shape.hpp"
#include "shingle/common/flags.hpp"
#include "shingle/common/target.hpp"
#include "workload/overlap_patterns.hpp"

namespace shingle::cli {

struct RunFlags {
  std::string file;  ///< of a plan, as JSON; empty: the problem flags say what to plan
  ProblemFlags what;
  MatrixFlags own;
  PlanFlags how;
  WorldFlags where;
  int repeat = 0;
  Format format = Format::text;
  std::string trace, svg, html;
  std::string machine;  ///< of --mechanism auto: this machine's profile
  bool timeline = false;
};
int run(const RunFlags& flags, const Launch& launch);

struct PlanCommandFlags {
  ProblemFlags what;
  PlanFlags how;
  WorldFlags where;
  std::string machine;  ///< to plan for instead of this one: as machine_from_spec() reads it
  bool steps = false;   ///< of its plans, instead of how long they take there
  int rank = -1;
  Format format = Format::text;
  std::string out, trace, svg;
};
int plan(const PlanCommandFlags& flags, const Launch& launch);

struct VerifyFlags {
  std::string file;  ///< of a plan, as JSON; empty: the problem flags say what to plan
  ProblemFlags what;
  PlanFlags how;
  WorldFlags where;
  std::string machine;
};
int verify(const VerifyFlags& flags, const Launch& launch);

struct SimulateFlags {
  std::string file;  ///< of a plan, as JSON; empty: the problem flags say what to plan
  ProblemFlags what;
  PlanFlags how;
  WorldFlags where;
  std::string machine;
  std::vector<std::string> sweeps;  ///< "k=1K,2K": the problem once for each
  SimOptions options;
  Format format = Format::text;
  std::string trace, svg, html;
  bool timeline = false, critical_path = false;
};
int simulate(const SimulateFlags& flags, const Launch& launch);

struct CompareFlags {
  std::string a, b;                 ///< files of rows, as JSON
  std::optional<double> threshold;  ///< percent that b may be slower
  Format format = Format::text;
  std::string html;
};
int compare(const CompareFlags& flags, const Launch& launch);

struct TuneFlags {
  ProblemFlags what;
  PlanFlags how;
  WorldFlags where;
  std::string machine, cache;
  double margin = 0.05;
  int confirm = 0;  ///< mechanisms to measure; 0: none
  bool nearest = false;
  std::string nccl_table;  ///< print its environment instead
  Format format = Format::text;
};
int tune(const TuneFlags& flags, const Launch& launch);

struct CotuneFlags {
  std::string model, overlap, trace;   ///< files: of one of these
  std::optional<Parallelism> pattern;  ///< this and the next two with a model
  std::int64_t tokens = 0, sequence = 0;
  int step = -1;               ///< with a trace: of "ProfilerStep#n"; negative: the last one
  std::optional<DType> dtype;  ///< empty: the trace's, else bf16
  WorldFlags where;
  std::string machine;  ///< as machine_from_spec() reads it; empty: measured on that world
  bool exhaustive = false;
  int repeat = 3;                 ///< measurements of each configuration
  std::string plan, table, list;  ///< files to write
  Format format = Format::text;
};
int cotune(const CotuneFlags& flags, const Launch& launch);
/// Its flags (cotune_flags.cpp).
void add_cotune(CLI::App& app, CotuneFlags& flags);

struct ProfileFlags {
  WorldFlags where;
  std::string name;            ///< empty: the base's
  std::optional<DType> dtype;  ///< empty: the backend's own
  int repeat = 5;
  std::string base;  ///< as machine_from_spec() reads it; empty: what the backend knows
  double budget_s = 120;
  bool contention = false;              ///< that alone
  std::int64_t chunk_bytes = 0;         ///< with which it is measured; 0: as NCCL likes
  double most_spread = default_spread;  ///< of what is measured, relative; 0: any
  bool keep = false;                    ///< as this machine's own
  std::string out;
};
int profile(const ProfileFlags& flags, const Launch& launch);

struct BenchFlags {
  ProblemFlags what;
  WorldFlags where;
  bool suite = false;               ///< the shapes of a suite …
  std::string suite_file;           ///< … of this file; empty: of the one that ships
  std::int64_t begin = 0, end = 0;  ///< M, or tokens of a model; 0: as the problem flags say, or all
  std::int64_t factor = 2;
  std::string only;  ///< a regular expression that shapes have to match
  std::vector<Contender> contenders = parse_contenders("auto,chunked,signal");
  std::vector<std::int32_t> comm_workers;  ///< each contender once with each; empty: as it is
  int confirm = 0;                         ///< mechanisms of `auto` to measure before it is timed; 0: none
  int iters = 20, warmup = 2;
  Checked checked = Checked::sampled;
  std::optional<double> idle_us;  ///< before each timed run; empty: by backend
  bool sustained = false;
  double budget_us = 0;  ///< after which no further shape begins; 0: no end
  std::string machine, cache;
  Format format = Format::text;
  std::string out, html;
  std::string command;  ///< as it was typed, for the record
};
int bench(const BenchFlags& flags, const Launch& launch);
/// Its flags (bench_flags.cpp).
void add_bench(CLI::App& app, BenchFlags& flags);

int info(Format format, const WorldFlags& where, const Launch& launch);

}  // namespace shingle::cli
