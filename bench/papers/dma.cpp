// DMA collectives: all-gather and all-to-all by copy engines between eight MI300X, every variant plain and
// prelaunched, 1 KB to 4 GB. The planner's plans run in the simulator, on the profile mi300x8 as it ships.
// Times are the host thread's, as the paper takes them: from its first write to its sight of the last report.
//
// Input: the links' rate (§2.4). Fitted, all at once: phases and rate of an engine, to §3.3, Tables 1 and 2
// and seven speedups of §5.3; latency and peak of RCCL's curves to its times beside parallel copies.
// Predicted: the other speedups, RCCL beside all other variants, and a GEMM in front of an all-gather.
//
// Prelaunch of parallel copies ends at 512 MB in Table 1 and at 1 GB in Table 2, but the plans take equally
// long: one of the two cannot be met. b2b is too fast from 1 to 4 MB: with slower engines bcst and swap would
// gain there as in the paper, but parallel copies would be best from 1 MB in Table 2.
#include <map>
#include <utility>

#include "figures.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"

using namespace shingle;

namespace {

constexpr int world = 8;
constexpr double kib = 1024, mib = 1024 * kib, gib = 1024 * mib;
constexpr double least = kib, most = 4 * gib;

struct Choice {
  CopyVariant variant = CopyVariant::pcpy;
  bool prelaunch = false;
  auto operator<=>(const Choice&) const = default;
};
constexpr Choice b2b{CopyVariant::b2b}, bcst{CopyVariant::bcst}, swap{CopyVariant::swap},
    pcpy{CopyVariant::pcpy};
constexpr Choice prelaunched(Choice choice) {
  return {choice.variant, true};
}

struct Row {
  double rccl_us = 0;
  double best_us = 1e300;  ///< of all choices
  std::map<Choice, double> us{};
};
using Times = std::map<double, Row>;  // by size in bytes

/// Size is what a rank has in the end, as rccl-tests count it: a rank sends an eighth to each other.
Problem problem_of(Op op, double bytes) {
  Problem problem{.op = op, .world = world, .m = world};
  problem.n = problem.k = static_cast<std::int64_t>(bytes / world / sizeof(float));
  if (problem.traits().routes()) {
    std::vector<std::int32_t> dest;
    for (int rank = 0; rank < world; ++rank) dest.push_back(rank);
    problem.routing = std::make_shared<const Routing>(std::vector(world, dest));
  }
  return problem;
}

/// When the last span ends of those that `wanted` names by lane and step.
template <class Wanted>
double last_end_us(const Plan& plan, const Simulated& run, Wanted&& wanted) {
  double end = 0;
  for (const Span& span : run.spans) {
    const Lane& lane =
        plan.ranks[static_cast<std::size_t>(span.rank)].lanes[static_cast<std::size_t>(span.lane)];
    if (wanted(lane, lane.steps[static_cast<std::size_t>(span.step)])) end = std::max(end, span.end_us);
  }
  return end;
}

/// Until host threads have seen what they await from the counter.
double host_us(const Plan& plan, const Simulated& run, const char* counter) {
  return last_end_us(plan, run, [&](const Lane& lane, const Step& step) {
    const auto* wait = std::get_if<Await>(&step);
    return lane.kind == LaneKind::host && wait &&
           plan.counters[static_cast<std::size_t>(wait->counter.counter)].name == counter;
  });
}

Plan plan_of(const Problem& problem, const Machine& machine, Choice choice) {
  return plan_copy_engine(problem, machine, {.variant = choice.variant, .prelaunch = choice.prelaunch})
      .value();
}

/// From the host's first write to its sight of the last engine's report.
double engines_us(const Plan& plan, const Machine& machine) {
  const Simulated run = simulate(plan, machine);
  return host_us(plan, run, "done") - host_us(plan, run, "computed");
}

Times times_of(Op op, const Machine& machine) {
  Times times;
  for (double bytes = least; bytes <= most; bytes *= 2) {
    const Problem problem = problem_of(op, bytes);
    Row row{.rccl_us = simulate(plan_sequential(problem, machine).value(), machine).makespan_us};
    for (const Choice& plain : {b2b, op == Op::allgather ? bcst : swap, pcpy})
      for (const Choice& choice : {plain, prelaunched(plain)}) {
        row.us[choice] = engines_us(plan_of(problem, machine, choice), machine);
        row.best_us = std::min(row.best_us, row.us[choice]);
      }
    times[bytes] = std::move(row);
  }
  return times;
}

/// Geometric mean of a ratio over the sizes of [from, to].
template <class Ratio>
double mean(const Times& times, double from, double to, Ratio&& ratio) {
  double logs = 0;
  int sizes = 0;
  for (const auto& [bytes, row] : times)
    if (bytes >= from && bytes <= to) logs += std::log(ratio(row)), ++sizes;
  return std::exp(logs / sizes);
}

/// How many times as fast as the fastest of `than` a choice is.
double speedup(const Times& times, Choice of, const std::vector<Choice>& than, double from = least,
               double to = most) {
  return mean(times, from, to, [&](const Row& row) {
    double us = row.us.at(than.front());
    for (const Choice& other : than) us = std::min(us, row.us.at(other));
    return us / row.us.at(of);
  });
}

std::string text(Choice choice) {
  return fmt::format("{}{}", name(choice.variant), choice.prelaunch ? ", prelaunch" : "");
}

/// The paper's best up to a size, exclusive.
struct Range {
  double end;
  Choice best;
};

/// Our best is the fastest; plain where that takes at most 2% longer.
void compare_best(papers::Figures& figures, const Times& times, const std::vector<Range>& ranges) {
  int alike = 0;
  for (const auto& [bytes, row] : times) {
    const auto holds = [&](const Range& range) { return bytes < range.end; };
    const Choice paper = std::ranges::find_if(ranges, holds)->best;
    Choice ours = std::ranges::min_element(row.us, {}, [](const auto& at) { return at.second; })->first;
    if (row.us.at({ours.variant}) <= 1.02 * row.best_us) ours.prelaunch = false;
    alike += paper == ours;
    if (paper == ours) continue;
    figures.holds(fmt::format("best at {}; the paper's is slower by {:.1f}%", format_bytes(bytes),
                              100 * (row.us.at(paper) / row.us.at(ours) - 1)),
                  text(paper), text(ours), false);
  }
  figures.fitted("sizes whose best variant is the paper's", static_cast<double>(times.size()), alike);
}

void compare_phases(papers::Figures& figures, const Machine& machine) {
  const EnginePhases& e = machine.engine;
  const Link& link = machine.topology.pair;
  const double schedule = e.schedule_us + e.fetch_us, copy = e.copy_us + link.latency_us;
  const double sync = e.sync_us + machine.signal_us;  // the report, and the host's sight of it
  const double beside = e.control_us + schedule + sync;
  const auto share = [&](double bytes) { return 100 * beside / (beside + copy + bytes / (link.gbps * 1e3)); };
  figures.fitted("control, schedule and sync, of a copy of 4 KB", 60, share(4 * kib), "%");
  figures.fitted("the same of 1 MB", 20, share(mib), "%");
  figures.holds("copy > schedule ~ sync >> control", copy > schedule && copy > sync &&
                                                         std::abs(schedule / sync - 1) < 0.2 &&
                                                         e.control_us < sync / 4);
}

/// Figure 16: a GEMM whose output is gathered, from its begin to the host's sight of the last report. RCCL's
/// ends with its kernel. The output of N x N elements makes an all-gather of 16 N^2 bytes.
void compare_behind_gemm(papers::Figures& figures, const Machine& machine) {
  papers::Band speed;
  for (std::int64_t size = 1024; size <= 8192; size *= 2) {
    const Problem problem{.op = Op::gemm_allgather_gemm,
                          .world = world,
                          .m = world * size,
                          .n = 64,
                          .k = size,
                          .inner = size,
                          .dtype = DType::bf16};
    const Plan rccl = plan_sequential(problem, machine).value();
    const double rccl_us = last_end_us(rccl, simulate(rccl, machine), [](const Lane&, const Step& step) {
      return std::holds_alternative<Collective>(step);
    });
    double best_us = 1e300;
    for (const Choice& choice : {b2b, bcst, pcpy, prelaunched(b2b), prelaunched(bcst), prelaunched(pcpy)}) {
      const Plan plan = plan_of(problem, machine, choice);
      best_us = std::min(best_us, host_us(plan, simulate(plan, machine), "done"));
    }
    speed.take(rccl_us / best_us);
  }
  figures.holds("GEMM and allgather, speed over RCCL's, 16 MB to 1 GB", "similar or better",
                papers::text(speed, "x"), speed.least > 1 - papers::Figures::tolerance);
}

void compare_variants(papers::Figures& figures, const Times& gather, const Times& exchange) {
  const auto fitted = [&](const std::string& what, double paper, double ours) {
    figures.fitted(what, paper, ours, "x");
  };
  const auto gain = [](const Times& times, Choice plain) {
    return speedup(times, prelaunched(plain), {plain});
  };
  fitted("bcst over pcpy, up to 4 MB", 1.7, speedup(gather, bcst, {pcpy}, least, 4 * mib));
  fitted("b2b over pcpy, allgather below 1 MB", 2.7, speedup(gather, b2b, {pcpy}, least, mib / 2));
  fitted("b2b over pcpy, alltoall below 1 MB", 2.5, speedup(exchange, b2b, {pcpy}, least, mib / 2));
  fitted("prelaunch of pcpy", 1.9, gain(gather, pcpy));
  fitted("prelaunch of bcst", 1.5, gain(gather, bcst));
  fitted("prelaunch of swap", 1.5, gain(exchange, swap));
  fitted("prelaunch of b2b", 1.2, gain(gather, b2b));
  const Choice soonest = prelaunched(pcpy);
  figures.near("swap over pcpy, up to 4 MB", 1.7, speedup(exchange, swap, {pcpy}, least, 4 * mib), "x");
  figures.near("b2b over bcst, below 1 MB", 1.5, speedup(gather, b2b, {bcst}, least, mib / 2), "x");
  figures.near("b2b over swap, below 1 MB", 1.4, speedup(exchange, b2b, {swap}, least, mib / 2), "x");
  figures.near("prelaunched pcpy over all plain, allgather, 1 to 256 MB", 1.5,
               speedup(gather, soonest, {pcpy, bcst}, mib, 256 * mib), "x");
  figures.near("prelaunched pcpy over all plain, alltoall, 4 to 512 MB", 1.3,
               speedup(exchange, soonest, {pcpy, swap}, 4 * mib, 512 * mib), "x");
  figures.near("bcst over b2b, 1 to 4 MB", 1.4, speedup(gather, bcst, {b2b}, mib, 4 * mib), "x");
  figures.near("swap over b2b, 1 to 4 MB", 1.7, speedup(exchange, swap, {b2b}, mib, 4 * mib), "x");
}

/// What the paper has of a collective beside RCCL.
struct BesideRccl {
  const char* op;
  Choice middle;       ///< the variant between parallel copies and b2b
  double plain;        ///< time of parallel copies below 32 MB, over RCCL's
  double with_middle;  ///< of the best of these and `middle`
  double with_b2b;     ///< of the best of all three
  double best;         ///< of the best of all, prelaunched ones too
  double plain_above;  ///< speed of parallel copies above 32 MB, over RCCL's
};

void compare_rccl(papers::Figures& figures, const Times& times, const BesideRccl& paper) {
  const auto below = [&](const char* which, auto&& us) {
    return std::pair(fmt::format("{}, {} over RCCL's time, below 32 MB", paper.op, which),
                     mean(times, least, 16 * mib, [&](const Row& row) { return us(row) / row.rccl_us; }));
  };
  const auto best_of = [](std::vector<Choice> choices) {
    return [choices](const Row& row) {
      double us = 1e300;
      for (const Choice& choice : choices) us = std::min(us, row.us.at(choice));
      return us;
    };
  };
  const auto near = [&](double figure, const std::pair<std::string, double>& ours) {
    figures.near(ours.first, figure, ours.second, "x");
  };
  const auto [what, plain] = below("pcpy", best_of({pcpy}));
  figures.fitted(what, paper.plain, plain, "x");
  figures.fitted(fmt::format("{}, speed of pcpy over RCCL's, above 32 MB", paper.op), paper.plain_above,
                 mean(times, 64 * mib, most, [](const Row& row) { return row.rccl_us / row.us.at(pcpy); }),
                 "x");
  const std::string middle{name(paper.middle.variant)};
  near(paper.with_middle, below(("pcpy or " + middle).c_str(), best_of({pcpy, paper.middle})));
  near(paper.with_b2b, below(("pcpy, " + middle + " or b2b").c_str(), best_of({pcpy, paper.middle, b2b})));
  near(paper.best, below("the best", [](const Row& row) { return row.best_us; }));
  near(1.2, {fmt::format("{}, speed of the best over RCCL's, 32 MB to 1 GB", paper.op),
             mean(times, 32 * mib, gib, [](const Row& row) { return row.rccl_us / row.best_us; })});
}

/// What all variants together gain, and what engines cost beside the copies.
void compare_in_all(papers::Figures& figures, const Machine& machine, const Times& gather,
                    const Times& exchange) {
  const auto gain = [&](double from, double to) {
    const auto of = [&](const Times& times) {
      return mean(times, from, to, [](const Row& row) { return row.us.at(pcpy) / row.best_us; });
    };
    return std::sqrt(of(gather) * of(exchange));
  };
  figures.near("both, the best over pcpy, below 32 MB", 3.2, gain(least, 16 * mib), "x");
  figures.near("both, the best over pcpy, 32 MB to 1 GB", 1.07, gain(32 * mib, gib), "x");
  double slowest = 0;
  for (const Times* times : {&gather, &exchange})
    for (const auto& [bytes, row] : *times)
      if (bytes < 32 * mib) slowest = std::max(slowest, row.us.at(pcpy) / row.rccl_us);
  figures.near("pcpy over RCCL's time, at most", 7, slowest, "x");
  // Of the fewest bytes only the copies' fixed time is left.
  const double copy_us = machine.engine.copy_us + machine.topology.pair.latency_us;
  const auto beside = [&](Choice choice) { return gather.at(least).us.at(choice) - copy_us; };
  figures.near("pcpy, time beside copies over b2b's", 7, beside(pcpy) / beside(b2b), "x");
  figures.near("bcst, time beside copies over b2b's", 4, beside(bcst) / beside(b2b), "x");
}

}  // namespace

int main(int argc, char** argv) {
  const Machine machine = machine_from_spec("mi300x8");
  const std::string how = "simulated, mi300x8";
  papers::Figures figures("DMA collectives, on eight MI300X", argc, argv);
  const Times gather = times_of(Op::allgather, machine), exchange = times_of(Op::alltoall, machine);
  figures.at("Fig. 6, §3.3", how);
  compare_phases(figures, machine);
  const Choice b = prelaunched(b2b), p = prelaunched(pcpy);
  figures.at("Table 1", how);
  compare_best(figures, gather, {{256 * kib, b}, {mib, prelaunched(bcst)}, {512 * mib, p}, {2 * most, pcpy}});
  figures.at("Table 2", how);
  compare_best(figures, exchange, {{64 * kib, b}, {4 * mib, prelaunched(swap)}, {gib, p}, {2 * most, pcpy}});
  figures.at("Figs. 13 and 14, §5.3", how);
  compare_variants(figures, gather, exchange);
  figures.at("Figs. 1, 13 and 14, §5.3", how);
  compare_rccl(figures, gather,
               {.op = "allgather",
                .middle = bcst,
                .plain = 4.5,
                .with_middle = 3,
                .with_b2b = 2.3,
                .best = 1.3,
                .plain_above = 1.14});
  compare_rccl(figures, exchange,
               {.op = "alltoall",
                .middle = swap,
                .plain = 2.5,
                .with_middle = 1.6,
                .with_b2b = 1.3,
                .best = 1 / 1.2,
                .plain_above = 1.18});
  figures.at("Abstract, §2.5 and §5.3.4", how);
  compare_in_all(figures, machine, gather, exchange);
  const char* const power = "the simulator has no power";
  figures.absent("Fig. 15, §5.4", "power of DMA collectives below RCCL's, from 64 MB", "32%", power);
  figures.absent("Fig. 15, §5.4", "power of b2b below pcpy's, prelaunched, 16 to 64 KB", "3% to 4%", power);
  figures.absent("Fig. 15, §5.4", "power of bcst below pcpy's, prelaunched, above 1 MB", "5% to 10%", power);
  figures.at("Fig. 16, §5.5", how);
  compare_behind_gemm(figures, machine);
  figures.diagrams("Figs. 2 to 5, 7 to 12", "collectives and commands");
  return figures.finish();
}
