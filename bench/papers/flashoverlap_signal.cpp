// FlashOverlap (signalling and reordering; arXiv 2504.19519) on RTX 4090 and A800: `signal` in the simulator,
// with groups of waves by Alg. 1, on the sizes of Table 3.
//
// Input: profiles by data sheet and assumption. Fitted: the 4090s' curve, to 13% of the bandwidth at 192 KB.
// Predicted: the rest. The yardstick of a search is every partition, simulated. Above nine waves these are
// too many: there it is the best of 256, from which single cuts are moved while that is faster. Where speeds
// are compared, Alg. 1 also chooses the SMs of collectives, which the paper leaves to NCCL. Overheads of
// hooks were measured on H200.
#include <chrono>

#include "api/choose.hpp"
#include "figures.hpp"
#include "layers.hpp"
#include "tune/predict.hpp"
#include "tune/search.hpp"
#include "tune/searched.hpp"

using namespace shingle;
using papers::Band;

namespace {

constexpr std::int64_t mi = 1 << 20;

/// M·N in Mi elements and K of Table 3, for one kind of GPU.
struct Sizes {
  std::vector<std::int64_t> mn, mn_alltoall, k, k_alltoall;
};
const Sizes of_4090{{16, 24, 32, 48, 64}, {4, 16, 32, 68}, {8192, 12288, 16384}, {8192, 16384}};
const Sizes of_a800{{64, 128, 256}, {16, 64, 400}, {2048, 4096, 8192}, {4096, 8192}};

Problem problem_of(Op op, int world, std::int64_t elements, std::int64_t k) {
  Problem p{.op = op, .world = world, .m = elements / 8192, .n = 8192, .k = k, .dtype = DType::f16};
  if (!p.traits().routes()) return p;
  std::vector<std::int32_t> dest;
  for (std::int64_t row = 0; row < p.m; ++row) dest.push_back(static_cast<std::int32_t>(row % world));
  p.routing = std::make_shared<const Routing>(std::vector(static_cast<std::size_t>(world), dest));
  return p;
}

std::vector<Problem> problems(Op op, int world, const Sizes& sizes) {
  const bool routes = op == Op::gemm_alltoall;
  std::vector<Problem> all;
  for (const std::int64_t mn : routes ? sizes.mn_alltoall : sizes.mn)
    for (const std::int64_t k : routes ? sizes.k_alltoall : sizes.k)
      all.push_back(problem_of(op, world, mn * mi, k));
  return all;
}

double us(const Problem& problem, const Machine& machine, const std::vector<std::int64_t>& groups) {
  return simulate(plan_signal(problem, machine, {.group_waves = groups}).value(), machine).makespan_us;
}
double sequential(const Problem& problem, const Machine& machine) {
  return simulate(plan_sequential(problem, machine).value(), machine).makespan_us;
}
/// As `signal` is by default: groups, and workers for their collectives, by Alg. 1.
Plan searched_plan(const Problem& problem, const Machine& machine) {
  return plan_signal(problem, machine, searched_groups(problem, machine, {}).value()).value();
}
double searched(const Problem& problem, const Machine& machine) {
  return simulate(searched_plan(problem, machine), machine).makespan_us;
}

/// Speed over no overlap, and the share of perfect overlap's that it reaches (§6.4).
void compare_speed(papers::Figures& figures, const Machine& machine, const Sizes& sizes, const Band& paper) {
  Band speed, share;
  int above = 0, all = 0;
  for (int world = 2; world <= machine.ranks; world *= 2)
    for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::gemm_alltoall}) {
      double sum = 0;
      const std::vector<Problem> shapes = problems(op, world, sizes);
      for (const Problem& problem : shapes) {
        const double base = sequential(problem, machine), ours = searched(problem, machine);
        const WaveModel lone = lone_wave_model(problem, machine).value();
        share.take(100 * (base / ours) / (sequential_us(lone) / bound_us(lone)));
        above += base / ours > 0.8 * sequential_us(lone) / bound_us(lone), ++all;
        sum += base / ours;
      }
      speed.take(sum / static_cast<double>(shapes.size()));
    }
  figures.at("Fig. 10, §6.2", "simulated, " + machine.name);
  figures.within("average speed over no overlap, by collective and ranks", paper, speed, "x");
  figures.at("Fig. 13d, §6.4", "simulated, " + machine.name);
  figures.within("speed-up, of perfect overlap's", {69, 98}, share, "%");
  figures.holds("shapes above 80% of it", "most", fmt::format("{} of {}", above, all), 2 * above > all);
}

/// Mean speed of searched groups over other plans of the same problems.
template <class Us>
double mean_speed(Op op, int world, const Machine& machine, const Sizes& sizes, Us&& other_us) {
  double sum = 0;
  const std::vector<Problem> shapes = problems(op, world, sizes);
  for (const Problem& problem : shapes) sum += other_us(problem) / searched(problem, machine);
  return sum / static_cast<double>(shapes.size());
}

double tuned(const Problem& problem, const Machine& machine, Mechanism mechanism) {
  return simulate(tune(problem, machine, mechanism).value().plan, machine).makespan_us;
}

/// Beside GEMM and collective in slices, which is `chunked` with the number of slices that is fastest (§6.2).
void compare_decomposition(papers::Figures& figures, const Machine& machine) {
  Band speed;
  for (const int world : {2, 4})
    for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::gemm_alltoall})
      speed.take(mean_speed(op, world, machine, of_4090, [&](const Problem& problem) {
        return tuned(problem, machine, Mechanism::chunked);
      }));
  figures.at("§6.2", "simulated, " + machine.name);
  figures.within("average speed over decomposition, by collective and ranks", {0.98, 1.46}, speed, "x");
}

/// Beside FLUX (`fused`, tuned) and PyTorch's Async-TP (`ring` by copy engines).
void compare_peers(papers::Figures& figures, const Machine& machine) {
  Band flux, async;
  for (const int world : {2, 4, 8}) {
    const auto speed = [&](auto&& other_us) {
      return mean_speed(Op::gemm_reducescatter, world, machine, of_a800, other_us);
    };
    flux.take(speed([&](const Problem& problem) { return tuned(problem, machine, Mechanism::fused); }));
    async.take(speed([&](const Problem& problem) {
      return simulate(plan_ring(problem, machine, {.engines = 1, .slices = 1}).value(), machine).makespan_us;
    }));
  }
  figures.at("Figs. 10b and 11, §6.2", "simulated, " + machine.name);
  figures.holds("reduce-scatter, average speed over FLUX, by ranks", "> 1x", papers::text(flux, "x"),
                flux.least > 1);
  figures.holds("reduce-scatter, average speed over Async-TP, by ranks", "> 1x", papers::text(async, "x"),
                async.least > 1);
}

/// Whole models of Table 4, of which a layer is simulated: what GEMM and collective take of it (Fig. 4), and
/// what overlap gains (Fig. 12). Mixtral's two kinds of parallelism have no layer here.
void compare_layers(papers::Figures& figures, const Machine& machine) {
  struct Case {
    papers::LayerShape shape;
    bool trains, infers;
  };
  const Case cases[] = {
      {{"llama-3-70b", 8, 1, 16384, false}, false, true},
      {{"step-video-t2v", 4, 1, 33792, false, false}, false, true},
      {{"llama-3-70b", 8, 1, 16384}, true, false},
  };
  Band share, speed;
  for (const auto& [shape, trains, infers] : cases) {
    const papers::Layer layer = trains ? papers::training_of(shape) : papers::forward_of(shape);
    double together = 0;
    const double base = papers::layer_us(layer, machine, [&](const Problem& problem) {
      together += problem.op == Op::allgather_gemm ? 0 : sequential(problem, machine);
      return plan_sequential(problem, machine).value();
    });
    const double ours = papers::layer_us(layer, machine, [&](const Problem& problem) {
      return problem.op == Op::allgather_gemm ? plan_sequential(problem, machine).value()
                                              : searched_plan(problem, machine);
    });
    if (infers) share.take(100 * together / base);
    speed.take(base / ours);
  }
  figures.at("Fig. 4, §2.3.1", "a layer simulated, " + machine.name);
  figures.within("GEMM and all-reduce, of the time of inference and video", {31.6, 42.2}, share, "%");
  figures.at("Fig. 12, §6.3", "a layer simulated, " + machine.name);
  figures.within("end to end over no overlap, three models", {1.05, 1.13}, speed, "x");
}

/// Above this, cuts do not fit into a word: larger shapes are left out of the search's test.
constexpr std::int64_t most_waves = 60;

/// A partition by its cuts: bit w is set if a group ends after wave w.
std::vector<std::int64_t> groups_of(std::uint64_t cuts, std::int64_t waves) {
  std::vector<std::int64_t> groups{1};
  for (std::int64_t wave = 1; wave < waves; ++wave) {
    if (cuts >> (wave - 1) & 1) groups.push_back(0);
    ++groups.back();
  }
  return groups;
}
std::uint64_t cuts_of(const std::vector<std::int64_t>& groups) {
  std::uint64_t cuts = 0;
  std::int64_t wave = 0;
  for (std::size_t i = 0; i + 1 < groups.size(); ++i) cuts |= 1ull << ((wave += groups[i]) - 1);
  return cuts;
}

/// Partitions that stand beside the searched one: all, or 256 spread evenly over them.
std::vector<std::uint64_t> yardsticks(std::int64_t waves) {
  const int bits = static_cast<int>(waves - 1);
  std::vector<std::uint64_t> all;
  for (std::uint64_t i = 0; i < 1ull << std::min(bits, 8); ++i)
    all.push_back(bits <= 8 ? i : i * 0x9E3779B97F4A7C15 >> (64 - bits));
  return all;
}

/// The fastest partition that simulation finds: of the yardsticks, or from `start` on by single cuts.
double best_us(const Problem& problem, const Machine& machine, std::int64_t waves, std::uint64_t start) {
  const auto time = [&](std::uint64_t cuts) { return us(problem, machine, groups_of(cuts, waves)); };
  double best = time(start);
  for (const std::uint64_t cuts : yardsticks(waves))
    if (const double at = time(cuts); at < best) best = at, start = cuts;
  for (bool better = waves > 9; better;) {
    better = false;
    for (std::int64_t bit = 0; bit + 1 < waves; ++bit)
      if (const double at = time(start ^ (1ull << bit)); at < best * 0.9999)
        best = at, start ^= 1ull << bit, better = true;
  }
  return best;
}

/// Searched groups beside the best (§4.1.1, §6.5).
void compare_search(papers::Figures& figures, const Machine& machine, Op op, int world, const Sizes& sizes,
                    double paper_error) {
  Band share;
  int shapes = 0, single_best = 0, plans = 0;
  double single_loss = 0, error = 0;
  for (const Problem& problem : problems(op, world, sizes)) {
    const WaveModel model = wave_model(problem, machine).value();
    const std::int64_t waves = model.waves();
    if (waves > most_waves) continue;
    // Restoring the order and launches are no part of Alg. 1: errors are of what the partition changes.
    const double beside = us(problem, machine, {waves}) - predict_us(model, {waves});
    for (const std::uint64_t cuts : yardsticks(waves)) {
      const std::vector<std::int64_t> groups = groups_of(cuts, waves);
      error += std::abs((predict_us(model, groups) + beside) / us(problem, machine, groups) - 1), ++plans;
    }
    const std::vector<std::int64_t> found = search(model).group_waves;
    const double best = best_us(problem, machine, waves, cuts_of(found));
    const double single = us(problem, machine, equal_groups(waves, 1));
    single_best += single <= best * 1.0001, single_loss += single / best - 1, ++shapes;
    share.take(100 * best / us(problem, machine, found));
  }
  figures.at("§4.1.1, §6.5, Fig. 15, E2",
             fmt::format("simulated, {}, {}, {} ranks, {} shapes", machine.name, name(op), world, shapes));
  if (op == Op::gemm_allreduce) {
    figures.near("shapes for which groups of one wave are best", 4, 100. * single_best / shapes, "%");
    figures.near("what groups of one wave lose on average", 17.34, 100 * single_loss / shapes, "%");
  }
  figures.holds("least speed of the searched partition, of the best", "> 99%",
                papers::number(share.least, "%"), share.least > 99);
  figures.holds("average error of Alg. 1's prediction, below 5%", papers::number(paper_error, "%"),
                papers::number(100 * error / plans, "%"), 100 * error / plans < 5);
}

/// The product of each rank.
std::vector<Gemm*> gemms_of(Plan& plan) {
  std::vector<Gemm*> found;
  for (RankPlan& rank : plan.ranks)
    for (Lane& lane : rank.lanes)
      for (Step& step : lane.steps)
        if (Gemm* gemm = std::get_if<Gemm>(&step)) found.push_back(gemm);
  return found;
}

/// The groups that are searched for waves of 20 tiles more than are in flight. Only groups are wrong: the
/// product has as many workers as in the right plan.
double misfit_us(const Problem& problem, const Machine& machine) {
  Machine wrong = machine;
  wrong.workers += 20;
  const Partition misfit = search(wave_model(problem, wrong).value());
  Plan plan = plan_signal(problem, wrong, {.group_waves = misfit.group_waves}).value();
  Plan right = plan_signal(problem, machine).value();
  const std::vector<Gemm*> gemms = gemms_of(plan), as_right = gemms_of(right);
  for (std::size_t i = 0; i < gemms.size(); ++i) gemms[i]->resources = as_right[i]->resources;
  plan.workers = machine.workers;
  return simulate(plan, machine).makespan_us;
}

/// Groups of equal size and wrong waves beside the searched groups (§6.5, Fig. 14).
void compare_groups(papers::Figures& figures, const Machine& machine, Op op, int world, const Sizes& sizes,
                    bool ones_are_best) {
  bool beaten = false;
  int ones = 0, shapes = 0;
  double equal_loss = 0, misfit_loss = 0;
  for (const Problem& problem : problems(op, world, sizes)) {
    const WaveModel model = wave_model(problem, machine).value();
    const double found = us(problem, machine, search(model).group_waves);
    double best = 1e300;
    std::int64_t best_size = 0;
    for (const std::int64_t size : {1, 2, 4, 8})
      if (const double at = us(problem, machine, equal_groups(model.waves(), size)); at < best)
        best = at, best_size = size;
    ones += best_size == 1, ++shapes;
    beaten = beaten || best < found * 0.9999;
    equal_loss += best / found - 1;
    misfit_loss += misfit_us(problem, machine) / found - 1;
  }
  figures.at("Fig. 14, §6.5", fmt::format("simulated, {}, {}, {} ranks", machine.name, name(op), world));
  figures.holds("searched groups beat all equal ones", !beaten);
  figures.holds("loss of the best equal groups", "> 0", papers::number(100 * equal_loss / shapes, "%"),
                equal_loss > 0);
  figures.holds("loss with waves 20 tiles too large", "> 0", papers::number(100 * misfit_loss / shapes, "%"),
                misfit_loss > 0);
  figures.holds("best equal groups", ones_are_best ? "1 wave" : "more waves",
                fmt::format("1 wave for {} of {}", ones, shapes), ones_are_best == (2 * ones > shapes));
}

/// On A800 less K gains more: links are fast, so that the product takes longer (§6.4).
void compare_depth(papers::Figures& figures, const Machine& machine) {
  bool holds = true;
  for (const std::int64_t mn : of_a800.mn) {
    const auto speed = [&](std::int64_t k) {
      const Problem problem = problem_of(Op::gemm_allreduce, 4, mn * mi, k);
      return sequential(problem, machine) / searched(problem, machine);
    };
    holds = holds && speed(2048) > speed(8192);
  }
  figures.at("Fig. 13b, §6.4", "simulated, " + machine.name);
  figures.holds("four A800 gain more with less K", holds);
}

void compare_cost(papers::Figures& figures, const Machine& machine) {
  Problem problem{.op = Op::gemm_allreduce, .world = 4, .m = 8 * machine.tile_rows, .k = 8192};
  problem.n = static_cast<std::int64_t>(machine.tile_cols) * (machine.workers - machine.collective_workers);
  problem.dtype = DType::f16;
  double fastest_ms = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    search(wave_model(problem, machine).value());
    fastest_ms =
        std::min(fastest_ms,
                 std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  figures.at("§4.1.2", "timed, this host");
  figures.holds("search of 8 waves, 128 partitions", "real time",
                fastest_ms < 1 ? "below 1 ms" : "above 1 ms", fastest_ms < 1);
}

/// Mean excess of the rows `with` over the rows `without` of a record, which come in the same order.
double excess(const std::string& record, const std::string& with, const std::string& without,
              const std::string& granularity = "") {
  std::vector<double> a, b;
  for (const bench::RecordRow& row :
       bench::read_record(SHINGLE_TEST_SOURCE_DIR "/bench/results/h200x1/" + record)) {
    if (!granularity.empty() && row.text("granularity") != granularity) continue;
    if (row.text("timed") == with) a.push_back(row.number("median_us"));
    if (row.text("timed") == without) b.push_back(row.number("median_us"));
  }
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] / b[i] - 1;
  return 100 * sum / static_cast<double>(a.size());
}

void compare_overheads(papers::Figures& figures) {
  figures.at("Table 5, §6.6, E3", "measured, H200");
  const auto below = [&](const std::string& what, const char* paper, double ours, double most) {
    figures.holds(what, paper, papers::number(ours, "%"), ours < most);
  };
  below("GEMM, tiles, below 1%", "0.07%, 0.35%", excess("gemm_overhead.csv", "tile", "idle"), 1);
  below("GEMM, subtiles, below 1%", "0.67%, 0.68%", excess("gemm_overhead.csv", "subtile", "idle"), 1);
  const auto norm = [](const char* granularity) {
    return excess("rmsnorm_restore.csv", "fused", "plain", granularity);
  };
  below("RMSNorm, tiles, below 10%", "7.46%, 8.80%", norm("tile"), 10);
  below("RMSNorm, subtiles, below 10%", "7.93%, 8.78%", norm("subtile"), 10);
  below("RMSNorm, subtokens, below 10%", "8.45%, 9.63%", norm("subtoken"), 10);
}

}  // namespace

int main(int argc, char** argv) {
  const Machine rtx = machine_from_spec("rtx4090x4-pcie"), a800 = machine_from_spec("a800x8");
  papers::Figures figures("FlashOverlap, on RTX 4090 and A800", argc, argv);
  const auto rate = [&](double bytes) { return bytes / collective_us(rtx, Traffic::allreduce, 4, 0, bytes); };
  figures.at("Fig. 8, §3.2.2", "profile rtx4090x4-pcie");
  figures.fitted("all-reduce of 192 KB on four, of the rate at 1 GB", 13,
                 100 * rate(192 << 10) / rate(1 << 30), "%");
  compare_cost(figures, rtx);
  compare_search(figures, rtx, Op::gemm_allreduce, 4, of_4090, 3.41);
  compare_search(figures, a800, Op::gemm_reducescatter, 4, of_a800, 3.44);
  compare_speed(figures, rtx, of_4090, {1.02, 1.65});
  compare_speed(figures, a800, of_a800, {1, 1.30});
  compare_depth(figures, a800);
  compare_decomposition(figures, rtx);
  compare_peers(figures, a800);
  compare_layers(figures, a800);
  compare_groups(figures, rtx, Op::gemm_allreduce, 2, of_4090, true);
  compare_groups(figures, a800, Op::gemm_reducescatter, 4, of_a800, false);
  compare_overheads(figures);
  figures.absent("Fig. 3, §2.1.1", "tiles of a wave complete within 5% of it", "yes",
                 "needs a GPU: bench_cuda_waves");
  figures.absent("Fig. 4, §2.3.2", "GEMM and reduce-scatter, of the time of training Llama 2 7B", "30%",
                 "the paper gives neither ranks nor tokens");
  figures.absent("Figs. 4 and 12, §2.3.3", "GEMM and all-to-all, of the time of training Mixtral", "> 40%",
                 "no layer of two kinds of parallelism");
  figures.diagrams("Tables 1, 2 and 4, Figs. 1, 2, 5 to 7, 9", "methods, notation, settings, schedules");
  return figures.finish();
}
