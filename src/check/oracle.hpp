// Oracle: recomputes every operator on the host in fp64, and compares results with it.
//
// Inputs come from their formula (check/inputs.hpp), products from dgemm. The reference exists only for one
// panel of rows at a time. A result passes if the error of every tile of 64×64, relative in the Frobenius
// norm, is at most
//
//     (2 · eps_out + world · eps_staging) + c · sqrt(K) · 2^-24
//
// The first part is rounding: a partial product of each rank and the result, all in the problem's dtype. The
// second part is fp32 accumulation. Rounding errors of K random terms add up like a random walk, to about 0.4
// · sqrt(K) · 2^-24 of the result. c = 4 leaves ten times that, and so covers the factor two of swiglu's
// product of two sums.
//
// One wrong tile fails in a matrix of any size. If the elements of a small tile nearly cancel, a single
// element near zero proves nothing. Then the error is taken relative to the size of such products with random
// signs. Inputs with exact sums must give the exact result, if the operator has no function that rounds.
//
// An mlp is bounded by (3 + world) · eps + c · (sqrt(K) + sqrt(inner)) · 2^-24. The reference does not round
// the first product H. A plan rounds it once, each element by at most eps/2 of itself, at random. In the sum
// over the inner columns these errors grow as the sum itself does with random signs. So they reach at most
// eps/2 of it; one eps is allowed.
//
// Accumulating H over K loses c · sqrt(K) · 2^-24 of A·B. This error passes the activation. The slope of the
// activation is at most 1.13 if H is of the size of A·B. For swiglu, a product of two sums, the factor two
// above applies. The second product loses the same with inner instead of K.
//
// Gradients of attention are bounded by 5 · eps + 2 · c · (sqrt(m) + 16) · 2^-24, relative to the size of the
// gradients of the tokens beside where a tile nearly cancels. An element sums parts that are each rounded
// once; their errors add up at random, as the parts do.
//
// The log-sum-exp of an attention is bounded by 2 · c · (sqrt(m) + 16) · 2^-24, relative to 1 where it is
// smaller: an error of it is a relative error of all weights of its query. Its errors count by the ratio of
// the bound above to this one, so that one bound serves all outputs.
//
// With integers, and no activation or relu, H is exact. It is also small enough for its sums to be exact.
#pragma once

#include <span>
#include <string>

#include "inputs.hpp"

namespace shingle {

/// A matrix that a plan has written: an output of a local rank, with the shape of shape_of().
struct Output {
  int rank = 0;
  Role role = Role::out;
  const void* memory = nullptr;
};

struct Check {
  bool passed = true;
  double max_error = 0;  ///< largest relative error of a tile; infinite if an element is not finite
  double tolerance = 0;  ///< 0: the result must be exact
  std::string worst;     ///< "out of rank 1, rows 64..127, columns 0..63"; empty: no error
};

/// The bound above, for inputs that are not exact.
double tolerance(const Problem& problem);
double lse_tolerance(const Problem& problem);

/// Compares outputs of any of the ranks with the reference, on all cores that this process may use.
Check check(const Inputs& inputs, std::span<const Output> outputs);

/// The BLAS library in use, and the processor that it was built for.
std::string oracle_library();

/// Upper bound of the memory that check() uses, in bytes.
std::int64_t check_bytes(const Problem& problem);

}  // namespace shingle
