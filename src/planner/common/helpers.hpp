// Helpers: workers that move or sum rows beside a product.
#pragma once

#include <optional>

#include "builder.hpp"

namespace shingle::planner {

/// Number of helpers if the params ask for none in particular (0): a few. They keep up with arriving data,
/// and on a GPU they do not change the number of waves (docs/mechanisms/fused.md).
inline std::int32_t helpers_of(const Machine& machine, std::int32_t asked, std::int32_t one_in = 32) {
  return asked != 0 ? asked : machine.workers / one_in;
}

/// Why so many helpers cannot be had; nothing if they can. `workers`: those that the product and its helpers
/// share.
std::optional<Reason> wrong_helpers(std::int32_t asked, std::int32_t workers);

/// Number of workers that move rows of experts beside the products: as many as take as long as a product
/// does, if the machine gives both times. In expert parallelism they push tokens to their experts. In tensor
/// parallelism they sort tokens before a product, and sum choices behind one.
std::int32_t helpers_of_experts(const Problem& p, const Machine& machine, const TileParams& tile,
                                std::int32_t asked);

/// Workers that would sum the choices of all tokens in the time of the product whose rows they sum. 0: the
/// machine gives no such times.
double workers_to_sum(const Problem& p, const Machine& machine, const TileParams& tile);

/// True if all workers should sort tensor-parallel tokens before the product, rather than helpers beside it.
/// Either tiles have rows of all sources, or all tokens arrive soon.
bool sorts_before_product(const Problem& p, const Machine& machine, const TileParams& tile);

/// Appends a gated pass with a work queue, shared by `some` workers in `lane` beside the GEMM and `rest`
/// workers after it; with none of the former, it needs neither gate nor queue. The helpers start only when
/// there are items to do. Earlier they would delay a GEMM that takes all of its workers at once.
void share(Builder& build, int rank, Elementwise pass, std::int32_t lane, std::int32_t some,
           std::int32_t rest);

}  // namespace shingle::planner
