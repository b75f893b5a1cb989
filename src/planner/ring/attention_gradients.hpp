// attention-backward around a ring: the gradients of one rank's queries, keys and values, part by part.
#pragma once

#include <vector>

#include "gradient_transport.hpp"
#include "planner/common/gradient_sums.hpp"

namespace shingle::planner {

/// Parts of the gradient of each run of own queries that a rank holds until it adds them to a running sum.
inline constexpr std::int64_t most_gradient_parts = 4;

/// Buffers of the parts, the same on all ranks; -1: not needed.
struct GradientBuffers {
  std::int32_t q_parts = -1, q_sums = -1;         ///< of up to most_gradient_parts parts, a shard each; f32
  std::int32_t own_keys = -1, own_values = -1;    ///< by own queries: two parts, a shard each
  std::int32_t run_keys = -1, run_values = -1;    ///< of a piece, by each of two runs of own queries
  std::int32_t keys_sums = -1, values_sums = -1;  ///< f32
};

class RankGradients {
 public:
  RankGradients(RingBuilder& build, const Timetable& timetable, int rank);

  /// What the rank needs of the buffers.
  std::int64_t most_q_parts() const;
  bool adds_own_keys() const;
  bool adds_runs() const { return adds_runs_; }
  std::int64_t arrivals() const { return arrivals_; }

  /// Sets the buffers, before any step is appended.
  void use(const GradientBuffers& buffers);
  /// Appends the backward of own queries to own keys: the first part of it, or the rest, which hides the last
  /// message.
  void attend_own(bool first);
  /// Appends the backward of own queries to a piece of keys. The parts of the gradients of keys and values
  /// are stored at `to_keys` and `to_values`.
  void attend(const TokenRange& tokens, const Slice& keys, const Slice& values, const Slice& to_keys,
              const Slice& to_values);
  /// Takes the parts that another rank has computed for own keys.
  void take(int from, const TokenRange& tokens, const Slice& keys, const Slice& values);
  /// Appends the sum of all parts of the gradients of keys and values so far.
  void fold_keys();
  void finish_queries();
  void finish_keys();

 private:
  /// A run of own tokens, and the sums of its gradients.
  struct Run {
    GlobalRun run;
    std::int64_t q_parts = 0;         ///< number of parts
    std::int64_t key_parts = 0;       ///< number of parts; those that arrive in a turn count as one
    bool q_direct = true;             ///< each query has one part, which is the result
    std::vector<GradientSum> sums{};  ///< of Q, K and V

    bool keys_direct() const { return key_parts == 1; }
    TokenRange tokens() const { return {run.global_row, run.global_row + run.rows}; }
  };
  /// Own queries of a block of queries, and the keys of a run that they see.
  struct OwnPair {
    std::size_t block = 0, query_run = 0, key_run = 0;
    Pair pair{};
  };

  void find_own_pairs();
  void append(Run& queries, const Pair& pair, const Slice& keys, const Slice& values, const Slice& to_keys,
              const Slice& to_values);
  Slice place_of_queries(Run& queries, const GlobalRun& rows);
  Run& run_of(const TokenRange& tokens);

  RingBuilder& build_;
  int rank_;
  std::int64_t arrivals_ = 0;  ///< number of pieces whose gradients other ranks compute
  std::int64_t longest_;       ///< rows of the longest piece
  bool adds_runs_ = false;     ///< more than one run of own queries sees a piece
  std::vector<Run> runs_;
  std::vector<OwnPair> own_;   ///< in the order in which they are computed
  std::size_t own_first_ = 0;  ///< number of pairs that are computed first
  GradientBuffers buffers_{};
};

/// Declares the buffers that the ranks' parts need.
GradientBuffers make_gradient_buffers(RingBuilder& build, const Timetable& timetable,
                                      const std::vector<RankGradients>& ranks);

}  // namespace shingle::planner
