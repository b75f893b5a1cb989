// One collective's way over the grid of a space.
#pragma once

#include <optional>
#include <vector>

#include "space.hpp"

namespace shingle::cotune {

/// A step on each axis.
using Move = Point;

/// To more channels and larger chunks: both at once first, as Lagom's Alg. 2 has it, then either.
std::vector<Move> upward();
/// To the places beside: fewer resources first, and at last more of one for less of the other.
std::vector<Move> around();
/// To each of the other subspaces.
std::vector<Move> other_subspaces(const Space& space);
std::vector<Move> other_threads(const Space& space);

/// Tries moves in turn. One that helps is repeated, with longer strides while it helps much: what Alg. 2's
/// learning rate is for. One that does not is tried with half the stride, and at a stride of one given up.
class Climb {
 public:
  /// `again`: from the first move once more, until none of them helps.
  Climb(std::vector<Move> moves, bool again) : moves_(std::move(moves)), again_(again) {}

  /// The next place to try from this one; nothing: no move is left.
  std::optional<Point> propose(const Space& space, const Point& from);
  /// Whether that helped, and by which part of the time that it was to reduce.
  void judge(bool helped, double gain);
  /// Of what was proposed last: whether it takes fewer resources.
  bool saves() const;

 private:
  std::vector<Move> moves_;
  bool again_;
  std::size_t move_ = 0;
  std::int32_t stride_ = 1;
  bool shortened_ = false, helped_ = false;
};

}  // namespace shingle::cotune
