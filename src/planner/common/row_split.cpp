#include "row_split.hpp"

namespace shingle::planner {

std::int64_t chunk_begin(std::int64_t rows, std::int64_t count, std::int64_t i, std::int64_t unit) {
  return smaller(ceil_div(rows, unit) * i / count * unit, rows);
}

std::int64_t rows_of_shard(const Problem& problem, int shard) {
  return larger(smaller(problem.m - shard * problem.shard_rows(), problem.shard_rows()), 0);
}

std::int64_t rows_in_slice(const Problem& problem, std::int64_t first, std::int64_t len) {
  const int world = problem.world;
  if (problem.row_order == RowOrder::block_cyclic)
    return larger(smaller(problem.m - world * first, world * len), 0);
  std::int64_t rows = 0;
  for (int r = 0; r < world; ++r) rows += larger(smaller(rows_of_shard(problem, r) - first, len), 0);
  return rows;
}

std::int64_t dealt_before(const Problem& problem, int rank, std::int64_t row) {
  const std::int64_t turn = problem.world * problem.row_block, blocks = row / turn;
  const std::int64_t first = blocks * problem.row_block;
  const std::int64_t block = larger(smaller(problem.row_block, problem.shard_rows() - first), 0);
  return first + larger(smaller(row - blocks * turn - rank * block, block), 0);
}

RowMap sharded_rows(const Problem& problem, std::int64_t len, std::int64_t base) {
  const std::int64_t block = problem.row_order == RowOrder::block_cyclic ? problem.row_block : larger(len, 1);
  return {problem.world, block, len, len, base, base + problem.world * len};
}

}  // namespace shingle::planner
