// The suites of `bench`: the GEMMs of transformer layers that communicate, under tensor parallelism, or
// shapes.
#pragma once

#include <string>
#include <vector>

#include "shingle/common/problems.hpp"

namespace shingle::cli {

/// The suite of a file, {"models": [config.json, …], "tokens": [16, …]}, where models are found from the
/// file's folder: of each model and number of tokens the products of an attention layer and a dense
/// feed-forward as layer_operators() has them for `world` ranks, those that sum also with an all-reduce.
/// And, or instead, {"shapes": [{"op": "gemm+alltoall", "m": [4096, …], "n": […], "k": […], "routing":
/// ["random", …]}, …]}: every combination of these; what is routed goes by the name of how. Products are
/// plain, without epilogue and norm, and B is stored N×K. Throws IoError, InvalidArgument with the file's
/// name.
std::vector<NamedProblem> read_suite(const std::string& path, int world, DType dtype);

/// The suite that ships with Shingle. Throws InvalidArgument where it cannot be found.
std::string shipped_suite();

}  // namespace shingle::cli
