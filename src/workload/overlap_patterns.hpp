// Overlaps of a training iteration, from a model's sizes.
#pragma once

#include <string>
#include <vector>

#include "shingle/plan/workload.hpp"
#include "shingle/workload/model.hpp"

namespace shingle {

enum class Parallelism : std::uint8_t {
  fsdp,  ///< all-gather of the next layer's weights, reduce-scatter of the previous layer's gradients
  tp,    ///< tensor parallel with two half-batches (Domino): the all-reduce of one beside the GEMMs of the
         ///< other
  ep,    ///< expert parallel with two batches: the all-to-alls of one beside the GEMMs of the other
};
/// "fsdp", "tp", "ep".
std::string_view name(Parallelism parallelism);
/// Throws InvalidArgument.
Parallelism parse_parallelism(std::string_view text);

struct PatternOptions {
  Parallelism parallelism = Parallelism::fsdp;
  int ranks = 8;
  std::int64_t tokens = 0;    ///< tokens of a rank's micro-batch; `tp`: of all ranks
  std::int64_t sequence = 0;  ///< number of tokens that attend to each other; 0: all
  DType dtype = DType::bf16;
};

/// A part of an iteration that repeats, in its steady state.
struct OverlapPattern {
  std::string name;
  Workload workload;
  std::int64_t times = 1;  ///< number of repetitions in an iteration
};

/// Overlaps of the forward and backward pass by layer; one layer in steady state stands for all of the same
/// kind.
///
/// The backward pass computes gradients of inputs and of weights. Attention is causal. Norms, with their
/// residuals, and activations are passes. Embeddings, rotary positions, routing and the optimizer are left
/// out.
///
/// `tp`: a layer has four all-reduces in each pass, each beside the other half's block. `ep`: it has four
/// all-to-alls in each pass instead. Layers without experts are left out. `fsdp`: a layer has one all-gather
/// in each pass, and a reduce-scatter in the backward pass.
///
/// Routed experts are grouped products, with one weight an expert. `ep`: a rank has an even part of the
/// experts; `fsdp`: all of them. Tokens choose experts evenly, so with few tokens some experts have no rows.
///
/// Throws InvalidArgument that names the field that does not divide, is missing, or is out of range.
std::vector<OverlapPattern> overlap_patterns(const ModelConfig& model, const PatternOptions& options);

}  // namespace shingle
