// The suites of `bench`: shapes, or the GEMMs of transformer layers that communicate under tensor
// parallelism.
#pragma once

#include <string>
#include <vector>

#include "shingle/common/problems.hpp"

namespace shingle::cli {

/// Reads a suite from a file of one or both of these forms.
///
/// {"models": [config.json, …], "tokens": [16, …]}: for each model and number of tokens, the products of an
/// attention layer and a dense feed-forward. They are those of layer_operators() for `world` ranks; reducing
/// ones also appear with an all-reduce. Model paths are relative to the file's folder.
///
/// {"shapes": [{"op": "gemm+alltoall", "m": [4096, …], "n": […], "k": […], "routing": ["random", …]}, …]}:
/// every combination of these. Routed problems are named after their routing. An operator that attends has
/// "attention": {"heads": 64, "kv_heads": 8, "head_dim": 128, "causal": true} instead of k, and no n unless
/// it multiplies. One with experts has "experts": {"count": 8, "topk": 2, "capacity": 512}, of which only
/// `count` is needed, and may have an "activation"; one with two products has "inner": [sizes].
///
/// Other products have no epilogue; none has a norm. B is stored N×K. Throws IoError, or InvalidArgument with
/// the file's name.
std::vector<NamedProblem> read_suite(const std::string& path, int world, DType dtype);

/// Path of the suite that ships with Shingle. Throws InvalidArgument if it cannot be found.
std::string shipped_suite();

}  // namespace shingle::cli
