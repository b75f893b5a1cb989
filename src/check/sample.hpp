// The oracle on a sample of rows. Of a large matrix it multiplies few rows, and its reference is computed
// once for any number of results.
//
// Of every `apart` consecutive rows of the operator's global matrix one is drawn at random; of rows by
// expert, from each expert's rows; of rows that are routed otherwise, from those that a rank gets. All of its
// columns are compared, with the bounds of check/oracle.hpp in pieces of 64 elements.
//
// If there are fewer than 256 rows, or tokens of a rank, all are compared; otherwise at least one of
// every 64. So every tile of 128 rows or more, every chunk and every group is sampled in every column. An
// error in part of a tile's rows is found with a probability equal to that part.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "oracle.hpp"

namespace shingle {

class RowSample {
 public:
  /// False for collectives, which compute no rows.
  static bool serves(const Problem& problem);

  /// Computes the reference of the sampled rows that `ranks` hold, on all cores that this process may use.
  /// Throws Unsupported if serves() is false. `inputs` must outlive it.
  RowSample(const Inputs& inputs, std::span<const int> ranks, std::uint64_t seed = 0);
  RowSample(RowSample&&) noexcept;
  RowSample& operator=(RowSample&&) noexcept;
  ~RowSample();

  /// Distance of sampled rows: one of every apart() rows is compared.
  std::int64_t apart() const;
  /// The compared rows of a rank's outputs, ascending.
  std::span<const std::int64_t> rows(int rank) const;

  /// Compares outputs of these ranks. Each `memory` holds only the rows of rows(rank), stacked; of counts,
  /// all.
  Check check(std::span<const Output> outputs) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shingle
