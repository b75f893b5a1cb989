// The climb of one collective over the grid of a space.
#pragma once

#include <optional>
#include <vector>

#include "space.hpp"

namespace shingle::cotune {

/// A step on each axis.
using Move = Point;

/// More channels and larger chunks: first both at once, as in Lagom's Alg. 2, then either.
std::vector<Move> upward();
/// Neighbouring points: first fewer resources, last more of one resource for less of the other.
std::vector<Move> around();
/// Each of the other subspaces. To copy engines also with workers spared, which their sums need at once.
std::vector<Move> other_subspaces(const Space& space);
/// More or fewer workers spared, and a later or earlier begin.
std::vector<Move> other_neighbours(const Space& space);
std::vector<Move> other_threads(const Space& space);

/// Tries moves in turn. A move that helps is repeated, with longer strides while it helps much; this replaces
/// Alg. 2's learning rate. A move that does not help is tried with half the stride, and dropped at a stride
/// of one.
class Climb {
 public:
  /// `again`: starts over with the first move until no move helps.
  Climb(std::vector<Move> moves, bool again) : moves_(std::move(moves)), again_(again) {}

  /// The next point to try from `from`, of those that `may` returns true for; nothing if no move is left.
  template <class May>
  std::optional<Point> propose(const Space& space, const Point& from, May may) {
    for (;; ++move_, stride_ = 1, shortened_ = false) {
      if (move_ == moves_.size()) {
        if (!again_ || !helped_) return std::nullopt;
        move_ = 0;
        helped_ = false;
      }
      const Point to = moved(space, from);
      if (to != from && may(to)) return to;
    }
  }
  /// `helped`: the last proposal is kept. `gain`: its share of the time to be reduced.
  void judge(bool helped, double gain);
  /// True if the last proposal uses fewer resources.
  bool saves() const;

 private:
  Point moved(const Space& space, Point at) const;

  std::vector<Move> moves_;
  bool again_;
  std::size_t move_ = 0;
  std::int32_t stride_ = 1;
  bool shortened_ = false, helped_ = false;
};

}  // namespace shingle::cotune
