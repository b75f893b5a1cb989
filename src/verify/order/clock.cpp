#include "clock.hpp"

#include <algorithm>

namespace shingle {
namespace {

/// Number of levels of inner nodes above leaves of `fan` words.
int height_of(std::size_t words, std::size_t fan) {
  int height = 0;
  for (std::size_t reach = fan; reach < words; reach *= fan) ++height;
  return height;
}

}  // namespace

ClockNodes::ClockNodes(std::size_t lines, std::size_t segments, Budget& budget)
    : budget_(budget),
      line_height_(height_of(lines, fan)),
      run_height_(height_of((segments + 31) / 32, fan)),
      holds_(1 << 14) {
  make({});  // reserves index 0, which stands for a tree of zeros
}

ClockNodes::Index ClockNodes::make(const Node& node) {
  if (next_ == chunks_.size() * chunk) {
    budget_.keep(Budget::clocks, static_cast<std::int64_t>(chunk * sizeof(Node)));
    chunks_.push_back(std::make_unique<std::array<Node, chunk>>());
  }
  at(next_) = node;
  return next_++;
}

std::uint32_t ClockNodes::word(Index node, int height, std::size_t i) const {
  for (; node != 0 && height > 0; --height) node = at(node).words[i >> 4 * height & (fan - 1)];
  return node == 0 ? 0 : at(node).words[i & (fan - 1)];
}

ClockNodes::Index ClockNodes::with(Index node, int height, std::size_t i, std::uint32_t value) {
  budget_.spend(Budget::visited, 1);
  const std::size_t slot = i >> 4 * height & (fan - 1);
  const std::uint32_t old = node == 0 ? 0 : at(node).words[slot];
  const std::uint32_t changed = height == 0 ? value : with(old, height - 1, i, value);
  if (changed == old && node != 0) return node;
  if (node < sealed_ || node == 0) node = make(node == 0 ? Node{} : at(node));
  at(node).words[slot] = changed;
  return node;
}

template <bool bits>
ClockNodes::Index ClockNodes::join(Index a, Index b, int height) {
  if (a == b || b == 0) return a;
  if (a == 0) return b;
  // Nodes change in place only by growing, so a node that once contained another still does.
  const std::uint64_t pair = std::uint64_t{a} << 32 | b;
  std::uint64_t& known = holds_[pair * 0x9e3779b97f4a7c15u >> 50];
  if (known == pair) return a;
  budget_.spend(Budget::visited, 1);
  const Node x = at(a), y = at(b);
  Node joined;
  for (std::size_t i = 0; i < fan; ++i)
    joined.words[i] = height > 0 ? join<bits>(x.words[i], y.words[i], height - 1)
                      : bits     ? x.words[i] | y.words[i]
                                 : std::max(x.words[i], y.words[i]);
  if (joined.words == x.words) {
    known = pair;
    return a;
  }
  if (joined.words == y.words) return b;
  if (a < sealed_) return make(joined);
  at(a) = joined;
  return a;
}

template ClockNodes::Index ClockNodes::join<false>(Index a, Index b, int height);
template ClockNodes::Index ClockNodes::join<true>(Index a, Index b, int height);

}  // namespace shingle
