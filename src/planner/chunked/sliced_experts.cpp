// Tensor-parallel experts in chunks: a chunk has the tokens of one rank, or of several. While one chunk is
// multiplied, the tokens of the next arrive, and sums of the one before return to their ranks.
#include <algorithm>
#include <utility>

#include "chunked.hpp"
#include "planner/common/sliced_chunks.hpp"

namespace shingle::planner {
namespace {

/// Shares of chunks that have the tokens of one rank, or of several. The first has own tokens only, unless it
/// is the only one.
std::vector<std::int64_t> ranks_of_chunks(int world, int chunks) {
  if (chunks == 1) return {world};
  std::vector<std::int64_t> ranks{1};
  for (int chunk = 0; chunk + 1 < chunks; ++chunk)
    ranks.push_back(chunk_begin(world - 1, chunks - 1, chunk + 1) -
                    chunk_begin(world - 1, chunks - 1, chunk));
  return ranks;
}

void multiply(Builder& build, TurnProduct product) {
  const int rank = product.gemm.a.rank;
  if (!product.turns.empty()) build.step(rank, compute_lane, std::move(product.gemm));
}

/// Sorts the tokens of a chunk when they have arrived, and multiplies its tiles.
void take_chunk(Builder& build, const SlicedChunks& experts, int rank, int chunk) {
  if (experts.travels(chunk)) build.await(rank, compute_lane, experts.arrived, chunk);
  for (const SlicedChunks::Piece& piece : experts.pieces(rank, chunk))
    for (Elementwise& pass : experts.sort(rank, piece)) build.step(rank, compute_lane, std::move(pass));
  multiply(build, experts.first_product(rank, chunk, chunk + 1));
}

/// Multiplies the tiles of a chunk, sums the choices of its tokens, and returns the sums to their ranks.
/// Chunks come in descending order.
void give_chunk(Builder& build, const SlicedChunks& experts, int rank, int chunk) {
  const auto await_weights = [&](bool before_product) {
    if (chunk == experts.chunks() - 1 && experts.slots_with_weights() == before_product)
      build.await(rank, compute_lane, experts.weights_arrived, 0);
  };
  await_weights(true);
  multiply(build, experts.last_product(rank, chunk, chunk + 1));
  await_weights(false);
  for (const SlicedChunks::Piece& piece : experts.pieces(rank, chunk))
    build.step(rank, compute_lane, experts.combine(rank, piece));
  if (!experts.travels(chunk)) return;
  build.notify(rank, compute_lane, experts.combined, chunk);
  build.await(rank, communicate_lane, experts.combined, chunk);
  experts.give_back(rank, chunk);
}

}  // namespace

std::int32_t chunks_of_slices(const Problem& problem, const Machine& machine, std::int32_t most) {
  const std::int64_t unit = problem.experts.count * unit_rows(machine, {}, problem.epilogue);
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(problem.expected_received(0) / unit, 1, most));
}

void sliced_experts_in_chunks(ChunkedBuilder& build, const Machine& machine) {
  const OperatorTraits& traits = build.problem().traits();
  const int chunks = smaller(build.params().chunks, build.world());
  const SlicedChunks experts(build, machine, {}, ranks_of_chunks(build.world(), chunks));
  for (int r = 0; r < build.world(); ++r) {
    experts.begin(r);
    experts.gather(r);
    for (int chunk = 0; traits.before && chunk < chunks; ++chunk) take_chunk(build, experts, r, chunk);
    experts.return_counts(r);
    if (!traits.after) continue;
    for (int chunk = chunks - 1; chunk >= 0; --chunk) give_chunk(build, experts, r, chunk);
    experts.sum(r);
  }
}

}  // namespace shingle::planner
