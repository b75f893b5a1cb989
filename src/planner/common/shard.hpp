// The part of a rank in an all-gather.
#pragma once

#include "builder.hpp"

namespace shingle::planner {

/// A rank's shard in an all-gather by a collective. NCCL and MPI need equal parts, so it has the length of a
/// full shard. It is the user's A, or a padded copy of A if M leaves a short last shard. For
/// gemm+allgather+gemm it is the first product. The compute lane makes it slice by slice.
class Shard {
 public:
  Shard(Builder& build, std::int64_t slices);

  /// Makes rows [first, first + rows); the communicate lane waits for them.
  void make(Builder& build, int rank, std::int64_t slice, std::int64_t first, std::int64_t rows) const;
  /// The slice that holds these rows.
  Slice rows(const Builder& build, int rank, std::int64_t first, std::int64_t rows) const {
    return build.rows(buffer_, rank, first, rows);
  }

 private:
  std::int32_t buffer_, made_ = -1;  // made_: counter, by slice; -1: nothing to make
};

}  // namespace shingle::planner
