// FLUX (arXiv 2406.06858): GPT-3's products under tensor parallelism of 8, M of 1024 to 8192, on the three
// clusters of the paper (profiles by datasheet and assumption). What must hold is the order: fused above
// chunked, which is the paper's TransformerEngine, everywhere; and chunked below zero where its GEMMs become
// too small. Bands of overlap efficiency are printed beside the paper's.
#include <algorithm>

#include "api/choose.hpp"
#include "comparison.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/sim/metrics.hpp"

using namespace shingle;

namespace {

struct Band {
  double least = 1e9, most = -1e9;
  void take(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  std::string text() const { return fmt::format("{:.0f}-{:.0f}%", 100 * least, 100 * most); }
};

double fused_efficiency(const Problem& problem, const Machine& machine) {
  const Tuned tuned = tune(problem, machine, Mechanism::fused).value();
  return measure(tuned.plan, machine).value().overlap_efficiency();
}

}  // namespace

int main() {
  struct Cluster {
    const char *machine, *flux, *engine;
  };
  const Cluster clusters[] = {{"a100x8-pcie", "41-57%", "-125-36%"},
                              {"a100x8-nvlink", "36-96%", "-99-74%"},
                              {"h800x8", "37-93%", "-40-80%"}};
  bool any_negative = false;
  papers::Comparison table("FLUX: GPT-3, TP 8, M = 1024 ... 8192, overlap efficiency");
  for (const Cluster& cluster : clusters) {
    const Machine machine = machine_from_spec(cluster.machine);
    Band fused, chunked;
    bool ordered = true;
    for (const std::int64_t m : {1024, 2048, 4096, 8192})
      for (const Op op : {Op::allgather_gemm, Op::gemm_reducescatter}) {
        const bool gathers = op == Op::allgather_gemm;
        const Problem problem{.op = op,
                              .world = 8,
                              .m = m,
                              .n = gathers ? 49152 / 8 : 12288,
                              .k = gathers ? 12288 : 49152 / 8,
                              .dtype = DType::bf16};
        const double f = fused_efficiency(problem, machine);
        // As TransformerEngine has it: a slice for each rank.
        const double c =
            measure(plan_chunked(problem, machine, {.chunks = 8}).value(), machine)->overlap_efficiency();
        fused.take(f), chunked.take(c);
        ordered = ordered && f > c;
      }
    any_negative = any_negative || chunked.least < 0;
    table.note(fmt::format("{}: fused", cluster.machine), cluster.flux, fused.text());
    table.note(fmt::format("{}: chunked, 8 slices", cluster.machine), cluster.engine, chunked.text());
    table.holds(fmt::format("{}: fused above chunked everywhere", cluster.machine), "yes", ordered);
  }
  table.holds("chunked below zero where GEMMs become too small", "yes", any_negative);
  return table.exit_code();
}
