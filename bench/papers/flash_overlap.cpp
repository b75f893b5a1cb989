// Flash-Overlap (tail-free, peer-to-peer; arXiv 2604.24013): an MLP of 32 sequences of 4096 tokens, and
// attention, d_model 4096, on four ranks.
//
// Input: the sizes. The paper names no accelerator. Fitted: compute and link to the vanilla rows, the number
// of slices to the communication that data slicing leaves, and attention's compute to query-split's row.
// Predicted: the rest. Attention in slices, which `chunked` does not plan, is a product of as many
// multiply-adds.
#include "figures.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"

using namespace shingle;

namespace {

constexpr std::int64_t d_model = 4096;

/// The row-parallel product and its reduce-scatter; the ffn has 4 · d_model columns, a quarter on each rank.
const Problem mlp{.op = Op::gemm_reducescatter,
                  .world = 4,
                  .m = 32 * 4096,
                  .n = d_model,
                  .k = d_model,
                  .dtype = DType::bf16};

/// Sequences of some tokens: attention with 32 heads, a quarter on each rank, its product and its
/// reduce-scatter.
Problem attention(std::int64_t sequences, std::int64_t length) {
  Problem p{.op = Op::attention_reducescatter,
            .world = 4,
            .m = sequences * length,
            .n = d_model,
            .k = d_model / 4,
            .dtype = DType::bf16};
  p.attention = {.heads = 32, .kv_heads = 32, .head_dim = 128};
  p.attention.lengths.assign(static_cast<std::size_t>(sequences), length);
  return p;
}

/// Multiply-adds of a rank.
double multiply_adds(const Problem& p) {
  double sum = static_cast<double>(p.m * p.n * p.k);
  for (const std::int64_t length : p.attention.lengths) sum += 2 * static_cast<double>(length * length * p.k);
  return sum;
}

/// One worker, whose rate makes a problem take `compute_ms`, and links that make its reduce-scatter take
/// `exposed_ms`.
Machine fitted(const Problem& p, double compute_ms, double exposed_ms) {
  Machine machine;
  machine.name = "fitted";
  machine.tile_rows = machine.tile_cols = 1024;
  machine.tiles = {{1024, 1024, 0, compute_ms * 1e3 / multiply_adds(p) * 1024 * 1024}};
  machine.memory_gbps = 1e5;    // the passes that sum are not the paper's subject
  machine.whole_tiles = false;  // a slice takes its part of the time
  const double wire = wire_factor(Traffic::reducescatter, 4) * 2 * static_cast<double>(p.m * p.n);
  machine.link = {wire / (exposed_ms * 1e3) * 1e-3, 0};
  return machine;
}

double ms(const Result<Plan>& plan, const Machine& machine) {
  return simulate(plan.value(), machine).makespan_us / 1e3;
}

constexpr double communication_ms = 43.8, sliced_exposed_ms = 7.1;  // of the MLP
/// Data slicing leaves the last slice's communication: 43.8 ms / n is nearest to 7.1 ms with six.
const auto slices = static_cast<std::int32_t>(std::lround(communication_ms / sliced_exposed_ms));

void compare_mlp(papers::Figures& figures) {
  constexpr double vanilla_ms = 122.3, compute_ms = vanilla_ms - communication_ms;
  const Machine machine = fitted(mlp, compute_ms, communication_ms);
  const double vanilla = ms(plan_sequential(mlp, machine), machine);
  const double sliced = ms(plan_chunked(mlp, machine, {.chunks = slices}), machine);
  const double flash = ms(plan_ring(mlp, machine, {.slices = 1}), machine);
  const auto hidden = [&](double us) { return 100 * (1 - (us - compute_ms) / communication_ms); };
  figures.at("Table 1", "simulated, fitted machine");
  figures.fitted("vanilla", vanilla_ms, vanilla, " ms");
  figures.fitted("vanilla, exposed", communication_ms, vanilla - compute_ms, " ms");
  figures.near("data slicing", 83.9, sliced, " ms");
  figures.fitted("data slicing, exposed", sliced_exposed_ms, sliced - compute_ms, " ms");
  figures.near("Flash-RS", 77.1, flash, " ms");
  figures.holds("Flash-RS, exposed", "0.1 ms", papers::number(flash - compute_ms, " ms"),
                flash - compute_ms <= 0.1);
  figures.near("Flash-RS, gain over data slicing", 8.1, 100 * (1 - flash / sliced), "%");
  // As many tokens in all: for the product, sequences of 1K to 16K are one problem.
  const auto within = [&](const char* what, papers::Band paper, double ours) {
    figures.within(what, paper, {ours, ours}, "%");
  };
  figures.at("Table 3, 1K to 16K tokens", "simulated, fitted machine");
  within("communication hidden by data slicing", {77.9, 85.2}, hidden(sliced));
  within("communication hidden by Flash-RS", {99.7, 99.8}, hidden(flash));
  within("end to end gained by data slicing", {29.5, 35.0}, 100 * (1 - sliced / vanilla));
  within("end to end gained by Flash-RS", {35.0, 40.2}, 100 * (1 - flash / vanilla));
}

void compare_attention(papers::Figures& figures) {
  constexpr double vanilla_ms = 270.1, query_split_ms = 215.8;
  const Problem known = attention(16, 4096), longer = attention(4, 8192);
  const Machine machine = fitted(known, query_split_ms, vanilla_ms - query_split_ms);
  const auto vanilla = [&](const Problem& p) { return ms(plan_sequential(p, machine), machine); };
  const auto split = [&](const Problem& p) { return ms(plan_ring(p, machine, {.slices = 1}), machine); };
  const auto sliced = [&](const Problem& p) {
    Problem product = mlp;
    product.m = p.m;
    product.k = std::llround(multiply_adds(p) / static_cast<double>(p.m * p.n));
    return ms(plan_chunked(product, machine, {.chunks = slices}), machine);
  };
  figures.at("Table 4", "simulated, fitted machine");
  figures.fitted("vanilla, 16 x 4096", vanilla_ms, vanilla(known), " ms");
  figures.fitted("query-split, 16 x 4096", query_split_ms, split(known), " ms");
  figures.near("row-parallel, 16 x 4096", 230.9,
               ms(plan_ring(known, machine, {.slices = 1, .row_parallel = true}), machine), " ms");
  figures.near("vanilla, 4 x 8192", 195.6, vanilla(longer), " ms");
  figures.near("query-split, 4 x 8192", 145.1, split(longer), " ms");
  figures.at("Table 4", "simulated, fitted machine, a product of as many multiply-adds");
  figures.near("data slicing, 16 x 4096", 246.1, sliced(known), " ms");
  figures.near("data slicing, 4 x 8192, slower than vanilla", 279.7, sliced(longer), " ms");
}

}  // namespace

int main(int argc, char** argv) {
  papers::Figures figures("Flash-Overlap, TP 4", argc, argv);
  compare_mlp(figures);
  compare_attention(figures);
  figures.absent("Tables 2 and 4, other rows", "further sizes", "-", "not in the text at hand");
  figures.diagrams("Figs. 1 to 8", "collectives and schedules");
  return figures.finish();
}
