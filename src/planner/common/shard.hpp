// What a rank gives to an all-gather.
#pragma once

#include "builder.hpp"

namespace shingle::planner {

/// A rank's shard of the rows that are gathered by a collective library, as long as a full one, which is what
/// libraries want. It is the user's A, a padded copy of it where M leaves a short last shard, or what a first
/// product makes of it (gemm+allgather+gemm). The compute lane makes it slice by slice.
class Shard {
 public:
  Shard(Builder& build, std::int64_t slices);

  /// Makes rows [first, first + rows), and has the communication lane wait for them.
  void make(Builder& build, int rank, std::int64_t slice, std::int64_t first, std::int64_t rows) const;
  /// Where these are.
  Slice rows(const Builder& build, int rank, std::int64_t first, std::int64_t rows) const {
    return build.rows(buffer_, rank, first, rows);
  }

 private:
  std::int32_t buffer_, made_ = -1;  // made_: counter by slice; -1: nothing to make
};

}  // namespace shingle::planner
