// The oracle on a sample of rows: its cost does not grow with the matrix, and its reference is computed once
// for any number of results.
//
// Of every `apart` consecutive rows of the operator's global matrix one is drawn at random and compared in
// all of its columns, with the bounds of check/oracle.hpp in pieces of 64 elements. All rows are taken of up
// to 128 of them; beyond, one of at most 128, so that every tile of 128 rows or more, every chunk and every
// group of them is looked at, in every column. What is wrong in a part of a tile's rows is found with the
// odds of that part.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "oracle.hpp"

namespace shingle {

class RowSample {
 public:
  /// Whether there is one product, whose rows can be had one by one. Other operators have check() alone.
  static bool serves(const Problem& problem);

  /// Computes the reference of the sampled rows that `ranks` hold, on all cores that this process may use.
  /// Throws Unsupported where serves() is false. `inputs` must outlive it.
  RowSample(const Inputs& inputs, std::span<const int> ranks, std::uint64_t seed = 0);
  RowSample(RowSample&&) noexcept;
  RowSample& operator=(RowSample&&) noexcept;
  ~RowSample();

  /// One row of so many is compared.
  std::int64_t apart() const;
  /// The rows of a rank's outputs that are compared, ascending.
  std::span<const std::int64_t> rows(int rank) const;

  /// Compares outputs of these ranks; of each `memory` holds the rows of rows(rank) alone, one behind the
  /// other.
  Check check(std::span<const Output> outputs) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shingle
