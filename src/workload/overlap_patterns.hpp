// The overlaps of a training iteration, from a model's sizes.
#pragma once

#include <string>
#include <vector>

#include "shingle/plan/problem.hpp"
#include "shingle/workload/model.hpp"

namespace shingle {

enum class Parallelism : std::uint8_t {
  fsdp,  ///< all-gather of the next layer's weights, reduce-scatter of the last one's gradients
  tp,    ///< tensor parallel, two half-batches (Domino): the all-reduce of one beside the other's products
  ep,    ///< expert parallel, two batches: the all-to-alls of one beside the other's products
};
/// "fsdp", "tp", "ep".
std::string_view name(Parallelism parallelism);
/// Throws InvalidArgument.
Parallelism parse_parallelism(std::string_view text);

struct PatternOptions {
  Parallelism parallelism = Parallelism::fsdp;
  int ranks = 8;
  std::int64_t tokens = 0;    ///< of a rank's micro-batch; with `tp` of all ranks'
  std::int64_t sequence = 0;  ///< tokens that attend to each other; 0: all of them
  DType dtype = DType::bf16;
};

/// What a part of an iteration repeats, in its steady state.
struct OverlapPattern {
  std::string name;
  Problem problem;         ///< of the operator `overlap`
  std::int64_t times = 1;  ///< in an iteration
};

/// The overlaps of forward and backward pass, layer by layer (the steady state of one layer stands for all
/// that are alike). The backward pass multiplies for the gradients of inputs and of weights. Attention is a
/// product with as many multiply-adds as causal attention has; norms, activations, embeddings and the
/// optimizer are left out. With `tp` a layer has four all-reduces each way, with `ep` four all-to-alls, each
/// beside the other half's block; with `fsdp` one all-gather, and on the way back a reduce-scatter too. Of a
/// mixture of experts that `ep` distributes each rank has its even share of the rows, and layers without
/// experts are left out. Throws InvalidArgument that names what does not divide, is missing or is out of
/// range.
std::vector<OverlapPattern> overlap_patterns(const ModelConfig& model, const PatternOptions& options);

}  // namespace shingle
