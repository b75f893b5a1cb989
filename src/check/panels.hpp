// Which products the reference computes: panels of rows, and the terms of each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inputs.hpp"

namespace shingle {

/// Consecutive rows of one rank's op(A).
struct ARows {
  int owner = 0;
  std::int64_t row = 0;
  std::int64_t rows = 0;
};

std::int64_t count_rows(const std::vector<ARows>& sources);

/// Rows of the operator's global matrix with a common reference: the sum over `ranks` of op(A) · op(B of the
/// rank). For an mlp, each is a chain of two products. The A of a rank is its own rows, or `gathered` from
/// their owners.
struct Panel {
  std::int64_t row = 0;  ///< global
  std::int64_t rows = 0;
  std::vector<int> ranks;
  std::vector<ARows> gathered;
  int weight = 0;            ///< which of the weights that B stacks
  std::vector<int> readers;  ///< ranks with outputs that hold some of these rows
};

/// The panels, each of at most `most_rows` rows, that `ranks` need for their outputs.
std::vector<Panel> make_panels(const Problem& problem, std::span<const int> ranks, std::int64_t most_rows);
/// As above, without rows of slots that have no token: these hold nothing.
std::vector<Panel> make_panels(const Inputs& inputs, std::span<const int> ranks, std::int64_t most_rows);

/// A product that a panel sums: rows of op(A), or of what its rank attends to, times a weight of the rank.
struct Term {
  /// The row of the panel that a row of the product is added to, times a factor.
  struct To {
    std::int64_t row = 0;
    double factor = 1;
  };
  int rank = 0;
  int weight = 0;  ///< which of the weights that B stacks
  std::vector<ARows> sources{};
  std::vector<To> to{};  ///< of each row; empty: row i to row i
};
/// The products of a panel: one for each of its `ranks`. Of tokens that take their choices back, one for each
/// expert and rank that has a part of it, each times the weights of the choices.
std::vector<Term> terms_of(const Inputs& inputs, const Panel& panel);

}  // namespace shingle
