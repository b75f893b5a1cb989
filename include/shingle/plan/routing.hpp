// Routing: the destination rank of every row of an all-to-all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shingle {

/// Holds, for every source rank, the destination rank of each of its rows. Ranks may hold different numbers
/// of rows, or none. A destination orders the rows that it receives by source rank, then by row at the
/// source.
class Routing {
 public:
  /// `dest[s][i]` is the destination of row i of rank s. Throws InvalidArgument if a destination is no rank.
  explicit Routing(std::vector<std::vector<std::int32_t>> dest);

  int world() const { return static_cast<int>(dest_.size()); }
  std::int64_t rows(int source) const { return static_cast<std::int64_t>(dest_[source].size()); }
  std::int32_t dest(int source, std::int64_t row) const { return dest_[source][row]; }
  const std::vector<std::vector<std::int32_t>>& table() const { return dest_; }

  /// Number of rows of `source` before `row` that go to `dest`. row = rows(source) counts all of them.
  std::int64_t count_before(int source, int dest, std::int64_t row) const {
    const std::int64_t block = row / block_rows;
    std::int64_t count = prefix_[source][static_cast<std::size_t>(block) * world() + dest];
    const std::int32_t* const to = dest_[source].data();
    for (std::int64_t i = block * block_rows; i < row; ++i) count += to[i] == dest;
    return count;
  }
  std::int64_t count(int source, int dest) const { return count_before(source, dest, rows(source)); }

  /// Number of rows that `dest` receives from ranks below `source`: the first row of `source` in the output
  /// of `dest`.
  std::int64_t receive_base(int dest, int source) const;
  /// Number of rows that `dest` receives.
  std::int64_t received(int dest) const { return receive_base(dest, world()); }
  /// Number of rows of all ranks below `source`: the global index of its row 0.
  std::int64_t global_base(int source) const { return bases_[static_cast<std::size_t>(source)]; }

  bool operator==(const Routing& other) const { return dest_ == other.dest_; }

 private:
  /// A prefix is stored for each block, not for each row: that would take too much memory. Rows of a block
  /// are counted one by one.
  static constexpr std::int64_t block_rows = 16;

  std::vector<std::vector<std::int32_t>> dest_;
  std::vector<std::vector<std::int32_t>> prefix_;  // [source][block · world + dest]: count before the block
  std::vector<std::int64_t> bases_;                // by source; the last entry is the total
};

}  // namespace shingle
