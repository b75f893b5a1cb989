// Compares results with the reference, tile by tile.
#pragma once

#include <string>

#include "oracle.hpp"
#include "reference.hpp"

namespace shingle {

/// Side in elements of the tiles in which errors are measured.
inline constexpr std::int64_t judged_tile = 64;

/// Consecutive rows of a rank's output, written by a plan.
struct GotRows {
  int rank = 0;
  Role role = Role::out;
  std::int64_t row = 0;            ///< the first row, in the rank's matrix
  std::int64_t rows = 0;           ///< at most judged_tile
  const void* elements = nullptr;  ///< dense, of dtype_of() the role
};

/// True if a result of this role passes a function that rounds, so that exact inputs do not give an exact
/// result.
bool rounds(const Problem& problem, Role role);

/// True of counts, which are compared with their exact values.
bool is_number(Role role);
/// Compares counts of a rank, all of them.
void compare_numbers(const Inputs& inputs, const Output& output, Check& check);

/// Compares rows with the reference, and keeps the worst tile. Not thread-safe.
class Judge {
 public:
  explicit Judge(const Inputs& inputs) : inputs_(inputs) {}

  /// `x`: the product of these rows, `of.rows` × n. `scale`: its size with random signs.
  void compare(const GotRows& of, Finish& finish, const double* x, double scale);

  /// Compares rows with what they should be, `of.rows` × the columns of the role. `scale`: their usual size.
  void compare(const GotRows& of, const double* wanted, double scale);

  void merge_into(Check& check) const;

 private:
  struct Squares;
  void judge(const GotRows& of, std::int64_t col, std::int64_t cols, const Squares& sums, double least);

  const Inputs& inputs_;
  bool passed_ = true;
  double worst_ = 0;
  std::string where_;
};

}  // namespace shingle
