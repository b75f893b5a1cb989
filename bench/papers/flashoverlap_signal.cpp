// FlashOverlap (signalling and reordering; arXiv 2504.19519) on RTX 4090 and A800: `signal` in the simulator,
// on the sizes of Table 3, and what hooks cost.
//
// Input: profiles by data sheet and assumption. Fitted: the 4090s' curve, as flashoverlap_search.cpp says.
// Predicted: all speeds. Alg. 1 also chooses the SMs of collectives, which the paper leaves to NCCL. Assumed:
// the layers of Table 4's models have one sequence. Overheads of hooks were measured on H200.
#include "api/choose.hpp"
#include "figures.hpp"
#include "flashoverlap.hpp"
#include "layers.hpp"
#include "tune/predict.hpp"

using namespace shingle;
using namespace shingle::papers;

namespace {

/// Speed over no overlap, and the share of perfect overlap's that it reaches (§6.4).
void compare_speed(papers::Figures& figures, const Machine& machine, const Sizes& sizes, const Band& paper,
                   const std::string& share_place) {
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
  figures.at(share_place, "simulated, " + machine.name);
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

/// Shapes whose product and collective take more nearly as long gain more (§6.4): halves by that.
void compare_balance(papers::Figures& figures, const Machine& machine) {
  std::vector<std::pair<double, double>> shapes;  // how far apart the two times are, speed
  for (const Problem& problem : problems(Op::gemm_reducescatter, 2, of_4090)) {
    const Metrics alone = measure(searched_plan(problem, machine), machine).value();
    const double communicates = alone.sequential_us - alone.compute_us;
    shapes.emplace_back(std::abs(std::log(communicates / alone.compute_us)), alone.speedup());
  }
  std::ranges::sort(shapes);
  double near = 0, far = 0;
  const std::size_t half = shapes.size() / 2;
  for (std::size_t i = 0; i < half; ++i)
    near += shapes[i].second, far += shapes[shapes.size() - 1 - i].second;
  figures.at("Fig. 13a, §6.4", "simulated, " + machine.name);
  const auto mean = [&](double sum) { return sum / static_cast<double>(half); };
  figures.holds("two 4090, average speed where both take nearly as long, and elsewhere", "more there",
                fmt::format("{:.3f}x, {:.3f}x", mean(near), mean(far)), near > far);
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

/// Completion times of one GEMM's tiles, by wave. The paper says "typically within 5% of a wave duration".
void compare_waves(papers::Figures& figures) {
  std::vector<double> shares;
  std::string shape;
  double last_us = 0;
  bool distinct = true;
  for (const bench::RecordRow& row :
       bench::read_record(SHINGLE_TEST_SOURCE_DIR "/bench/results/h200x2/waves.csv")) {
    const std::string now = row.text("m") + "x" + row.text("n") + "x" + row.text("k");
    distinct = distinct && (now != shape || row.number("first_us") > last_us);
    shape = now, last_us = row.number("last_us");
    shares.push_back(100 * row.number("within_5_percent"));
  }
  std::ranges::sort(shares);
  const double typical = shares.at(shares.size() / 2);
  figures.at("Fig. 3, §2.1.1", "measured, H200");
  figures.holds("no tile is complete before the last one of the wave before", distinct);
  figures.holds("tiles within 5% of their wave's time, median of the waves", "> 50%",
                papers::number(typical, "%"), typical > 50);
}

}  // namespace

int main(int argc, char** argv) {
  const Machine rtx = machine_from_spec("rtx4090x4-pcie"), a800 = machine_from_spec("a800x8");
  papers::Figures figures("FlashOverlap, on RTX 4090 and A800", argc, argv);
  compare_speed(figures, rtx, of_4090, {1.02, 1.65}, "Fig. 13c, §6.4");
  compare_speed(figures, a800, of_a800, {1, 1.30}, "Fig. 13d, §6.4");
  compare_balance(figures, rtx);
  compare_depth(figures, a800);
  compare_decomposition(figures, rtx);
  compare_peers(figures, a800);
  compare_layers(figures, a800);
  compare_overheads(figures);
  compare_waves(figures);
  figures.absent("Fig. 4, §2.3.2", "GEMM and reduce-scatter, of the time of training Llama 2 7B", "30%",
                 "the paper gives neither ranks nor tokens");
  figures.absent("Figs. 4 and 12, §2.3.3", "GEMM and all-to-all, of the time of training Mixtral", "> 40%",
                 "no layer of two kinds of parallelism");
  figures.diagrams("Tables 1 to 4, Figs. 1, 2, 5 to 7, 9", "methods, notation, settings, schedules");
  return figures.finish();
}
