// A transformer's layer under tensor parallelism, in the simulator: its products with their collectives, by a
// mechanism each, and its attention. Norms, embeddings and other devices than its tensor-parallel ranks are
// left out.
#pragma once

#include <utility>
#include <vector>

#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/metrics.hpp"
#include "shingle/workload/model.hpp"

namespace shingle::papers {

struct Layer {
  std::vector<Problem> products;
  double attention_flops = 0;  ///< of a rank
};

/// The forward pass of `sequences` sequences of `length` tokens.
struct LayerShape {
  const char* model;
  int tp;
  std::int64_t sequences, length;
  bool sequence_parallel = true;
  bool causal = true;
};

inline Layer forward_of(const LayerShape& shape) {
  const ModelConfig model = model_from_spec(shape.model);
  Layer layer;
  for (const LayerOp& op : layer_operators(model, {.tp = shape.tp,
                                                   .tokens = shape.sequences * shape.length,
                                                   .sequence_parallel = shape.sequence_parallel}))
    layer.products.push_back(op.problem);
  const auto length = static_cast<double>(shape.length);
  layer.attention_flops = (shape.causal ? 2 : 4) * static_cast<double>(shape.sequences) * length * length *
                          static_cast<double>(model.heads / shape.tp * model.head_dim);
  return layer;
}

/// The forward pass and the backward pass behind it. The gradient of an input is a product of as many
/// multiply-adds with the opposite collective, that of a weight one without. Attention's takes 2.5 times as
/// long as attention.
inline Layer training_of(const LayerShape& shape) {
  Layer layer = forward_of(shape);
  for (const Problem& forward : std::vector(layer.products)) {
    Problem input = forward;
    input.op = forward.op == Op::allgather_gemm ? Op::gemm_reducescatter : Op::allgather_gemm;
    std::swap(input.n, input.k);
    input.epilogue = {};
    layer.products.push_back(input);
    Problem weight = forward;
    weight.op = Op::gemm, weight.world = 1, weight.epilogue = {};
    std::swap(weight.m, weight.k);
    layer.products.push_back(weight);
  }
  layer.attention_flops *= 3.5;
  return layer;
}

inline double attention_us(const Layer& layer, const Machine& machine) {
  const Plan plan = plan_sequential(layer.products.front(), machine).value();
  return layer.attention_flops / measure(plan, machine).value().peak_tflops * 1e-6;
}

/// Time of the layer. `plan` returns the plan of a product that has a collective.
template <class PlanOf>
double layer_us(const Layer& layer, const Machine& machine, PlanOf&& plan) {
  double us = attention_us(layer, machine);
  for (const Problem& product : layer.products) {
    const bool alone = product.op == Op::gemm;
    us += simulate(alone ? plan_sequential(product, machine).value() : plan(product), machine).makespan_us;
  }
  return us;
}

}  // namespace shingle::papers
