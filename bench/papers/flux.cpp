// FLUX (arXiv 2406.06858): overlap efficiency of GPT-3's products under tensor parallelism of 8, M of 1024 to
// 8192, on the three clusters of the paper, and what a layer gains.
//
// Input: profiles by data sheet and assumption. Nothing is fitted to the paper. TransformerEngine splits the
// product into one for each rank and sends slices point to point (§2): `ring`. FLUX is `fused`, tuned.
// Assumed: GPT-3 has two sequences of 2048 tokens. Layers of Llama 2 70B are those of Llama 3 70B.
#include "api/choose.hpp"
#include "figures.hpp"
#include "layers.hpp"

using namespace shingle;

namespace {

Plan flux_plan(const Problem& problem, const Machine& machine) {
  return tune(problem, machine, Mechanism::fused).value().plan;
}
Plan engine_plan(const Problem& problem, const Machine& machine) {
  return plan_ring(problem, machine, {.engines = 1, .slices = 1}).value();
}

double percent(const Plan& plan, const Machine& machine) {
  return 100 * measure(plan, machine).value().overlap_efficiency();
}

std::vector<Problem> products(const std::vector<std::int64_t>& rows) {
  std::vector<Problem> all;
  for (const std::int64_t m : rows) {
    constexpr std::int64_t hidden = 12288, shard = 4 * hidden / 8;
    Problem up{.op = Op::allgather_gemm, .world = 8, .m = m, .n = shard, .k = hidden, .dtype = DType::bf16};
    Problem down = up;
    down.op = Op::gemm_reducescatter, down.n = hidden, down.k = shard;
    all.insert(all.end(), {up, down});
  }
  return all;
}

/// With few rows a tile has little to overlap with.
void compare_few_rows(papers::Figures& figures) {
  const Machine machine = machine_from_spec("h800x8");
  double least = 1e300;
  for (const Problem& problem : products({64}))
    least = std::min(least, simulate(engine_plan(problem, machine), machine).makespan_us /
                                simulate(flux_plan(problem, machine), machine).makespan_us);
  figures.at("Limitations", "simulated, h800x8");
  figures.near("M = 64, speed over TransformerEngine, least", 0.95, least, "x");
}

/// What the paper has of a whole model, beside one of its layers.
void compare_layers(papers::Figures& figures) {
  struct Case {
    const char* what;
    const char* machine;
    papers::LayerShape shape;
    bool trains;
    double over_none, over_engine;
  };
  const papers::LayerShape gpt{"gpt-3-175b", 8, 2, 2048}, llama{"llama-3-70b", 8, 512, 1};
  const Case cases[] = {
      {"GPT-3 training", "a100x8-pcie", gpt, true, 1.37, 1.24},
      {"GPT-3 prefill", "a100x8-pcie", gpt, false, 2.06, 1.38},
      {"GPT-3 training", "h800x8", gpt, true, 1.14, 1.10},
      {"GPT-3 prefill", "h800x8", gpt, false, 1.41, 1.26},
      {"Llama 2 70B decode of 512", "h800x8", llama, false, 1.26, 1.04},
  };
  for (const Case& at : cases) {
    const Machine machine = machine_from_spec(at.machine);
    const papers::Layer layer = at.trains ? papers::training_of(at.shape) : papers::forward_of(at.shape);
    const auto us = [&](auto&& plan) {
      return papers::layer_us(layer, machine, [&](const Problem& problem) { return plan(problem, machine); });
    };
    const double flux = us(flux_plan);
    const double none =
        us([](const Problem& problem, const Machine& on) { return plan_sequential(problem, on).value(); });
    figures.at("Model level", fmt::format("a layer simulated, {}", at.machine));
    figures.near(fmt::format("{}, over no overlap", at.what), at.over_none, none / flux, "x");
    figures.near(fmt::format("{}, over TransformerEngine", at.what), at.over_engine, us(engine_plan) / flux,
                 "x");
  }
}

}  // namespace

int main(int argc, char** argv) {
  struct Cluster {
    const char* machine;
    papers::Band flux, engine;
  };
  const Cluster clusters[] = {{"a100x8-pcie", {41, 57}, {-125, 36}},
                              {"a100x8-nvlink", {36, 96}, {-99, 74}},
                              {"h800x8", {37, 93}, {-40, 80}}};
  papers::Figures figures("FLUX, on eight A100 and H800", argc, argv);
  for (const Cluster& cluster : clusters) {
    const Machine machine = machine_from_spec(cluster.machine);
    papers::Band fused, ring;
    bool above = true;
    for (const Problem& problem : products({1024, 2048, 4096, 8192})) {
      const double flux = percent(flux_plan(problem, machine), machine);
      const double engine = percent(engine_plan(problem, machine), machine);
      fused.take(flux), ring.take(engine);
      above = above && flux > engine;
    }
    figures.at("Overlap efficiency", fmt::format("simulated, {}", cluster.machine));
    figures.within("FLUX", cluster.flux, fused, "%");
    figures.within("TransformerEngine", cluster.engine, ring, "%");
    figures.holds("FLUX above TransformerEngine", above);
  }
  compare_few_rows(figures);
  compare_layers(figures);
  return figures.finish();
}
