#include "climb.hpp"

#include <algorithm>

namespace shingle::cotune {
namespace {

/// A step with at least this gain is followed by one twice as long: after so large a gain, much is left.
constexpr double much = 0.25;

constexpr auto subspace_axis = static_cast<int>(Axis::subspace);

}  // namespace

std::vector<Move> upward() {
  return {{1, 1}, {1, 0}, {0, 1}};
}

std::vector<Move> around() {
  return {{-1, 0}, {0, -1}, {1, 0}, {0, 1}, {-1, 1}, {1, -1}};
}

std::vector<Move> other_subspaces(const Space& space) {
  std::vector<Move> moves;
  const std::int32_t count = space.size(Axis::subspace);
  const auto found = std::ranges::find(space.subspaces, Transport::engines, &Subspace::transport);
  const auto engines = static_cast<std::int32_t>(found - space.subspaces.begin());
  for (std::int32_t spared = 1; engines < count && spared < space.size(Axis::spared); ++spared)
    moves.push_back({0, 0, engines, 0, spared});  // first: steps are relative to the first subspace
  for (std::int32_t i = 1; i < count; ++i) moves.push_back({0, 0, i});
  return moves;
}

std::vector<Move> other_neighbours(const Space& space) {
  std::vector<Move> moves;
  if (space.size(Axis::spared) > 1) moves.insert(moves.end(), {{0, 0, 0, 0, 1}, {0, 0, 0, 0, -1}});
  if (space.size(Axis::delay) > 1) moves.insert(moves.end(), {{0, 0, 0, 0, 0, 1}, {0, 0, 0, 0, 0, -1}});
  return moves;
}

std::vector<Move> other_threads(const Space& space) {
  if (space.size(Axis::threads) < 2) return {};
  return {{0, 0, 0, 1}, {0, 0, 0, -1}};
}

Point Climb::moved(const Space& space, Point at) const {
  for (int axis = 0; axis < axes; ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    const std::int32_t size = space.size(static_cast<Axis>(axis)), to = at[i] + stride_ * moves_[move_][i];
    // Subspaces have no order: they wrap around.
    at[i] = axis == subspace_axis ? to % size : std::clamp(to, 0, size - 1);
  }
  return at;
}

void Climb::judge(bool helped, double gain) {
  if (helped) {
    helped_ = true;
    stride_ = shortened_ || gain < much ? 1 : 2 * stride_;
  } else if (stride_ > 1) {
    stride_ /= 2;
    shortened_ = true;
  } else {
    ++move_;
    shortened_ = false;
  }
}

bool Climb::saves() const {
  const Move& move = moves_[move_];
  return std::ranges::all_of(move, [](std::int32_t step) { return step <= 0; });
}

}  // namespace shingle::cotune
