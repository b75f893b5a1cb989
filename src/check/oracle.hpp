// Oracle: every operator once more on the host in fp64, to compare a result with.
//
// The inputs come from their formula (check/inputs.hpp), products from dgemm; the reference exists only a
// panel of rows at a time. A result passes if in every tile of 64×64 the error, relative in the Frobenius
// norm, is at most
//
//     (2 · eps_out + world · eps_staging) + c · sqrt(K) · 2^-24
//
// The first part is rounding: a partial product of each rank and the result, all in the problem's dtype. The
// second is fp32 accumulation: rounding errors of K random terms add up like a random walk, to about 0.4 ·
// sqrt(K) · 2^-24 of the result; c = 4 leaves ten times that, and swiglu's product of two sums its factor
// two. One wrong tile fails, however large the matrix. Where a small tile happens to cancel to almost
// nothing, its error is taken relative to what products of these sizes amount to with random signs: a single
// element near zero proves nothing. Inputs whose sums are exact have to give the exact result, where the
// operator has no function that rounds.
//
// An mlp is bounded by (3 + world) · eps + c · (sqrt(K) + sqrt(inner)) · 2^-24. The reference does not round
// the first product H; a plan rounds it once, each element by at most eps/2 of itself, at random. In the sum
// over the inner columns these errors grow as the sum itself does with random signs: to at most eps/2 of it,
// for which one eps is allowed. What accumulating H over K loses, c · sqrt(K) · 2^-24 of A·B, passes the
// activation, whose slope is at most 1.13 where H is of the size of A·B (swiglu: of two sums, the factor two
// of above); the second product loses the same with inner for K. With integers, without activation or with
// relu, H is exact and small enough for its sums to be exact as well.
#pragma once

#include <span>
#include <string>

#include "inputs.hpp"

namespace shingle {

/// A matrix that a plan has written: a local rank's `out` or `sum`, shaped as shape_of() says.
struct Output {
  int rank = 0;
  Role role = Role::out;
  const void* memory = nullptr;
};

struct Check {
  bool passed = true;
  double max_error = 0;  ///< the largest relative error of a tile; infinite where an element is not finite
  double tolerance = 0;  ///< 0 where all has to be exact
  std::string worst;     ///< "out of rank 1, rows 64..127, columns 0..63"; empty where there is no error
};

/// The bound above, for inputs that are not exact.
double tolerance(const Problem& problem);

/// Compares outputs of any of the ranks with the reference, on all cores that this process may use.
Check check(const Inputs& inputs, std::span<const Output> outputs);

/// The library that computes it, and for which processor.
std::string oracle_library();

/// Memory that check() takes, at most, in bytes.
std::int64_t check_bytes(const Problem& problem);

}  // namespace shingle
