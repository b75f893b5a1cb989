// Vector clocks that share what they have in common: a clock is two roots of trees of fan-out 16 whose nodes
// other clocks use as well. A copy costs nothing, and joining two costs the nodes in which they differ.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "verify/budget.hpp"

namespace shingle {

/// The nodes of all clocks of a pass; they go together.
class ClockNodes {
 public:
  using Index = std::uint32_t;  ///< 0: a tree of zeros, whatever its height

  /// Clocks of so many lines and single segments.
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

  /// Nodes from here on are yet to be made.
  Index end() const { return next_; }
  /// Nodes before `end` are about to be shared: nobody changes any that has been made so far.
  void seal(Index end) {
    if (end > sealed_) sealed_ = next_;
  }

 private:
  static constexpr std::size_t fan = 16, chunk = 1024;
  struct alignas(64) Node {
    std::array<std::uint32_t, fan> words;  ///< children, or of a leaf the values
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
  int line_height_, run_height_;  ///< levels of inner nodes
  std::vector<std::unique_ptr<std::array<Node, chunk>>> chunks_;
  Index next_ = 0, sealed_ = 0;
  std::vector<std::uint64_t> holds_;  ///< by hash: a node, and another that has nothing which it has not
};

/// What a segment can rely on having happened: all steps of a line up to a number, and besides these single
/// segments of which this is not so: of tiled steps that have not finished, and of copy lanes.
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

  /// Whether it is of no lines, as one by default.
  bool empty() const { return nodes_ == nullptr; }
  std::uint32_t line(std::int32_t line) const { return nodes_->line(lines_, static_cast<std::size_t>(line)); }
  /// `number`: not below the one before.
  void set_line(std::int32_t line, std::uint32_t number) {
    lines_ = nodes_->with_line(lines_, static_cast<std::size_t>(line), number);
    end_ = nodes_->end();
  }
  bool has(std::int32_t segment) const { return nodes_->has(runs_, static_cast<std::size_t>(segment)); }
  void add(std::int32_t segment) {
    runs_ = nodes_->with(runs_, static_cast<std::size_t>(segment));
    end_ = nodes_->end();
  }
  /// Adds what `other` knows.
  void join(const Clock& other) {
    nodes_->seal(other.end_);
    lines_ = nodes_->join_lines(lines_, other.lines_);
    runs_ = nodes_->join_runs(runs_, other.runs_);
    end_ = nodes_->end();
  }

 private:
  std::shared_ptr<ClockNodes> nodes_;
  ClockNodes::Index lines_ = 0, runs_ = 0;
  ClockNodes::Index end_ = 0;  ///< its nodes come before this one
};

}  // namespace shingle
