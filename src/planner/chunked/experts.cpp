// Experts in chunks: while the tokens of some experts are multiplied, those of the next experts arrive, and
// products of the experts before return.
//
// All tokens are sent before the first products return: the communicate lane then waits for no product while
// tokens are still to be sent.
#include <utility>

#include "chunked.hpp"
#include "planner/common/expert_chunks.hpp"

namespace shingle::planner {

void experts_in_chunks(ChunkedBuilder& build, const Machine& machine) {
  const OperatorTraits& traits = build.problem().traits();
  const std::vector<std::int64_t> equal(static_cast<std::size_t>(build.params().chunks), 1);
  const auto chunks = expert_chunks(build, machine, {}, equal);
  const std::int32_t hidden =
      traits.chains() ? build.buffer("hidden", chunks->most_rows(), build.problem().inner) : -1;
  const std::int32_t arrived = traits.before ? build.counter("arrived", chunks->chunks()) : -1;
  const std::int32_t computed = traits.after ? build.counter("computed", chunks->chunks()) : -1;
  const std::int32_t returned = traits.after ? build.counter("returned", 1) : -1;
  for (int r = 0; r < build.world(); ++r) {
    chunks->begin(r);
    for (std::int64_t chunk = 0; traits.before && chunk < chunks->chunks(); ++chunk) {
      chunks->send(r, chunk);
      build.notify(r, communicate_lane, arrived, chunk);
    }
    for (std::int64_t chunk = 0; chunk < chunks->chunks(); ++chunk) {
      if (traits.before) build.await(r, compute_lane, arrived, chunk);
      for (Gemm& product : expert_products(build, *chunks, machine, {}, r, chunk, chunk + 1, hidden).gemms)
        build.step(r, compute_lane, std::move(product));
      if (!traits.after) continue;
      build.notify(r, compute_lane, computed, chunk);
      build.await(r, communicate_lane, computed, chunk);
      chunks->give_back(r, chunk);
    }
    chunks->finish(r);
    if (!traits.after) continue;
    // Transfers run in order, so a wait for the last covers all.
    hand_over(build, r, returned, communicate_lane, compute_lane);
    build.step(r, compute_lane, chunks->combine(r));
  }
}

}  // namespace shingle::planner
