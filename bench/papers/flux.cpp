// FLUX (arXiv 2406.06858): overlap efficiency of GPT-3's products under tensor parallelism of 8, M of 1024 to
// 8192, on the three clusters of the paper.
//
// Input: profiles by data sheet and assumption. Nothing is fitted to the paper. TransformerEngine splits the
// product into one for each rank and sends slices point to point (§2): `ring`. FLUX is `fused`, tuned.
#include "api/choose.hpp"
#include "figures.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/metrics.hpp"

using namespace shingle;

namespace {

double percent(const Plan& plan, const Machine& machine) {
  return 100 * measure(plan, machine).value().overlap_efficiency();
}

std::vector<Problem> products() {
  std::vector<Problem> all;
  for (const std::int64_t m : {1024, 2048, 4096, 8192}) {
    constexpr std::int64_t hidden = 12288, shard = 4 * hidden / 8;
    Problem up{.op = Op::allgather_gemm, .world = 8, .m = m, .n = shard, .k = hidden, .dtype = DType::bf16};
    Problem down = up;
    down.op = Op::gemm_reducescatter, down.n = hidden, down.k = shard;
    all.insert(all.end(), {up, down});
  }
  return all;
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
    for (const Problem& problem : products()) {
      const double flux = percent(tune(problem, machine, Mechanism::fused).value().plan, machine);
      const double engine =
          percent(plan_ring(problem, machine, {.engines = 1, .slices = 1}).value(), machine);
      fused.take(flux), ring.take(engine);
      above = above && flux > engine;
    }
    figures.at("Overlap efficiency", fmt::format("simulated, {}", cluster.machine));
    figures.within("FLUX", cluster.flux, fused, "%");
    figures.within("TransformerEngine", cluster.engine, ring, "%");
    figures.holds("FLUX above TransformerEngine", above);
  }
  const char* const whole = "needs whole models on these GPUs";
  figures.absent("Model level", "GPT-3 training over no overlap: A100 PCIe, H800", "1.37x, 1.14x", whole);
  figures.absent("Model level", "GPT-3 prefill over no overlap: A100 PCIe, H800", "2.06x, 1.41x", whole);
  figures.absent("Model level", "Llama-2 70B decode over no overlap: H800", "1.26x", whole);
  figures.absent("Model level", "the same over TransformerEngine", "1.04x to 1.38x", whole);
  return figures.finish();
}
