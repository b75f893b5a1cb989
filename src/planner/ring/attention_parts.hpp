// allgather+attention around a ring: attention of own queries to one piece of keys after the other.
#pragma once

#include <vector>

#include "attention_cut.hpp"

namespace shingle::planner {

/// Parts of the attention of each run of own queries that a rank holds until it merges them.
inline constexpr std::int64_t most_parts = 4;

/// Buffers of the parts, the same on all ranks; -1: not needed.
struct PartBuffers {
  std::int32_t value = -1, lse = -1;          ///< of up to most_parts parts, one shard each
  std::int32_t merged = -1, merged_lse = -1;  ///< f32: earlier parts that were merged
};

/// The attention of one rank's queries. If a run of queries has one part, that is its result. Else the parts
/// are merged, most_parts of them at a time, so that their memory does not grow with the world.
class PartialAttention {
 public:
  /// Counts the parts of the rank's runs.
  PartialAttention(RingBuilder& build, const Timetable& timetable, int rank);

  /// The most parts of a run.
  std::int64_t most_of_a_run() const;
  /// Appends the attention to own keys and values.
  void attend_own(const PartBuffers& buffers);
  /// Appends the attention to keys and values of some tokens, a row each.
  void attend(const PartBuffers& buffers, const TokenRange& tokens, const Slice& keys, const Slice& values);
  /// Appends the last merges.
  void finish(const PartBuffers& buffers);

 private:
  /// A run of own queries, and its parts that are not merged yet.
  struct Queries {
    GlobalRun run;
    std::int64_t expected = 0;  ///< number of parts
    std::vector<Merge::Part> parts{};
    bool merged = false;  ///< the first of the parts is a merge of earlier ones

    TokenRange tokens() const { return {run.global_row, run.global_row + run.rows}; }
  };
  void count(const TokenRange& keys);
  void merge(const PartBuffers& buffers, Queries& queries, bool last);

  RingBuilder& build_;
  int rank_;
  std::vector<Queries> runs_;
};

/// Declares the buffers that the ranks' parts need.
PartBuffers make_part_buffers(RingBuilder& build, const std::vector<PartialAttention>& ranks);

}  // namespace shingle::planner
