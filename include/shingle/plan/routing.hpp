// Routing: which rank every row goes to, for all-to-all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shingle {

/// For every source rank, the destination rank of each of its rows. Ranks may hold different numbers of rows,
/// also none. Rows that a destination receives are ordered by source rank, then by row at the source.
class Routing {
 public:
  /// `dest[s][i]` is the destination of row i of rank s. Throws InvalidArgument where a destination is no
  /// rank.
  explicit Routing(std::vector<std::vector<std::int32_t>> dest);

  int world() const { return static_cast<int>(dest_.size()); }
  std::int64_t rows(int source) const { return static_cast<std::int64_t>(dest_[source].size()); }
  std::int32_t dest(int source, std::int64_t row) const { return dest_[source][row]; }
  const std::vector<std::vector<std::int32_t>>& table() const { return dest_; }

  /// Rows of `source` before `row` that go to `dest`; with row = rows(source), all of them.
  std::int64_t count_before(int source, int dest, std::int64_t row) const {
    const std::int64_t block = row / block_rows;
    std::int64_t count = prefix_[source][static_cast<std::size_t>(block) * world() + dest];
    const std::int32_t* const to = dest_[source].data();
    for (std::int64_t i = block * block_rows; i < row; ++i) count += to[i] == dest;
    return count;
  }
  std::int64_t count(int source, int dest) const { return count_before(source, dest, rows(source)); }

  /// Rows that `dest` receives from ranks below `source`: where the rows of `source` start in its output.
  std::int64_t receive_base(int dest, int source) const;
  /// All rows that `dest` receives.
  std::int64_t received(int dest) const { return receive_base(dest, world()); }
  /// Rows of all ranks below `source`: the global index of its row 0.
  std::int64_t global_base(int source) const { return bases_[static_cast<std::size_t>(source)]; }

  bool operator==(const Routing& other) const { return dest_ == other.dest_; }

 private:
  static constexpr std::int64_t block_rows = 16;  // counted one by one: a count for each row would be large

  std::vector<std::vector<std::int32_t>> dest_;
  std::vector<std::vector<std::int32_t>> prefix_;  // [source][block · world + dest]: before a block of rows
  std::vector<std::int64_t> bases_;                // by source, and of all
};

}  // namespace shingle
