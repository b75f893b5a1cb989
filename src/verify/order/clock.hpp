// Vector clocks that share equal parts. A clock consists of the roots of two trees of fan-out 16, and clocks
// share nodes of these trees. A copy is free; a join costs the nodes in which two clocks differ.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "verify/budget.hpp"

namespace shingle {

/// Nodes of all clocks of one pass, freed together.
class ClockNodes {
 public:
  using Index = std::uint32_t;  ///< 0: a tree of zeros of any height

  /// For clocks with `lines` lines and bits for `segments` single segments.
  ClockNodes(std::size_t lines, std::size_t segments, Budget& budget);
  ~ClockNodes() { budget_.release(Budget::clocks, held_bytes()); }
  ClockNodes(const ClockNodes&) = delete;
  ClockNodes& operator=(const ClockNodes&) = delete;

  std::uint32_t line(Index root, std::size_t line) const { return word(root, line_height_, line); }
  Index with_line(Index root, std::size_t line, std::uint32_t value) {
    return with(root, line_height_, line, value);
  }
  bool has(Index root, std::size_t segment) const {
    return word(root, run_height_, segment / 32) >> segment % 32 & 1;
  }
  Index with(Index root, std::size_t segment) {
    const std::uint32_t old = word(root, run_height_, segment / 32);
    return with(root, run_height_, segment / 32, old | std::uint32_t{1} << segment % 32);
  }
  Index join_lines(Index a, Index b) { return join<false>(a, b, line_height_); }
  Index join_runs(Index a, Index b) { return join<true>(a, b, run_height_); }

  /// Index of the next node that will be made.
  Index end() const { return next_; }
  /// Call this before nodes below `end` become shared. No node made so far is changed in place afterwards.
  void seal(Index end) {
    if (end > sealed_) sealed_ = next_;
  }

 private:
  static constexpr std::size_t fan = 16, chunk = 1024;
  struct alignas(64) Node {
    std::array<std::uint32_t, fan> words;  ///< children; in a leaf: the values
  };

  Node& at(Index i) { return (*chunks_[i / chunk])[i % chunk]; }
  const Node& at(Index i) const { return (*chunks_[i / chunk])[i % chunk]; }
  std::int64_t held_bytes() const { return static_cast<std::int64_t>(chunks_.size() * chunk * sizeof(Node)); }
  std::uint32_t word(Index node, int height, std::size_t i) const;
  Index with(Index node, int height, std::size_t i, std::uint32_t value);
  template <bool bits>
  Index join(Index a, Index b, int height);
  Index make(const Node& node);

  Budget& budget_;
  int line_height_, run_height_;  ///< number of levels of inner nodes
  std::vector<std::unique_ptr<std::array<Node, chunk>>> chunks_;
  Index next_ = 0, sealed_ = 0;
  std::vector<std::uint64_t> holds_;  ///< hash table of pairs (a, b) of nodes where a already contains b
};

/// Steps and segments that finished before a segment starts, in every interleaving.
///
/// For each line these are all steps up to a number. A number cannot express segments of unfinished tiled
/// steps or commands of copy lanes; the clock lists them singly.
class Clock {
 public:
  Clock() = default;
  explicit Clock(std::shared_ptr<ClockNodes> nodes) : nodes_(std::move(nodes)) {}
  Clock(const Clock& other)
      : nodes_(other.nodes_), lines_(other.lines_), runs_(other.runs_), end_(other.end_) {
    if (nodes_) nodes_->seal(end_);
  }
  Clock& operator=(const Clock& other) { return *this = Clock(other); }
  Clock(Clock&&) noexcept = default;
  Clock& operator=(Clock&&) noexcept = default;

  /// True if the clock was made by default and has no lines.
  bool empty() const { return nodes_ == nullptr; }
  std::uint32_t line(std::int32_t line) const { return nodes_->line(lines_, static_cast<std::size_t>(line)); }
  /// `number` must not be below the previous one.
  void set_line(std::int32_t line, std::uint32_t number) {
    lines_ = nodes_->with_line(lines_, static_cast<std::size_t>(line), number);
    end_ = nodes_->end();
  }
  bool has(std::int32_t segment) const { return nodes_->has(runs_, static_cast<std::size_t>(segment)); }
  void add(std::int32_t segment) {
    runs_ = nodes_->with(runs_, static_cast<std::size_t>(segment));
    end_ = nodes_->end();
  }
  /// Adds everything that `other` knows.
  void join(const Clock& other) {
    nodes_->seal(other.end_);
    lines_ = nodes_->join_lines(lines_, other.lines_);
    runs_ = nodes_->join_runs(runs_, other.runs_);
    end_ = nodes_->end();
  }

 private:
  std::shared_ptr<ClockNodes> nodes_;
  ClockNodes::Index lines_ = 0, runs_ = 0;
  ClockNodes::Index end_ = 0;  ///< all nodes of the clock have lower indices
};

}  // namespace shingle
