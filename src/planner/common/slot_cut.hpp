// Cuts the slots of experts with a capacity into chunks. All ranks cut alike.
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/plan/routing.hpp"

namespace shingle::planner {

/// A rank's experts have a run of `capacity` slots for each source. Runs go to chunks whole, because the
/// slots that have a token are the first ones: the ends of runs are often empty. Expert follows expert; in
/// each, own slots come first, because they need no link.
///
/// A rank holds rows for its own slots, in their order, then for those of each other source to its experts.
/// So a chunk is at most one message between two ranks, there and back.
class SlotCut {
 public:
  /// Slots of one expert and source.
  struct Run {
    int source = 0;
    int weight = 0;        ///< which of the rank's experts
    std::int64_t row = 0;  ///< first of the rows that the rank holds for it
  };
  /// Rows that a rank holds for consecutive slots, which it sends to a peer or receives.
  struct Part {
    int peer = 0;
    std::int64_t row = 0;
    std::int64_t rows = 0;
  };

  /// There is a chunk for each share of the runs, and at most one for each run.
  SlotCut(const Routing& routing, std::vector<std::int64_t> shares);

  std::int64_t chunks() const { return static_cast<std::int64_t>(ends_.size()); }
  std::int64_t held_rows() const;

  /// Runs that a rank multiplies.
  std::vector<Run> runs(int rank, std::int64_t chunk) const;
  /// Slots of a rank that go to others, and those that come from others. Empty parts are left out.
  std::vector<Part> sent(int rank, std::int64_t chunk) const;
  std::vector<Part> received(int rank, std::int64_t chunk) const;

 private:
  std::int64_t first_run(std::int64_t chunk) const {
    return chunk == 0 ? 0 : ends_[static_cast<std::size_t>(chunk - 1)];
  }
  /// Experts of `holder` whose runs from a source are in a chunk: from `first` on, `count` of them.
  struct Weights {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  Weights weights(int holder, int source, std::int64_t chunk) const;
  std::int64_t row(int holder, int source, std::int64_t weight) const;

  int world_;
  std::int64_t per_rank_, capacity_;
  std::vector<std::int64_t> ends_;  // of chunks, in runs
};

}  // namespace shingle::planner
