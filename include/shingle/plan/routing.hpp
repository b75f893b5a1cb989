// Routing: the destination of every row of an all-to-all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace shingle {

/// How ranks share the experts of a mixture of experts.
enum class ExpertSplit : std::uint8_t {
  by_expert,  ///< rank r has the r-th part of the experts (expert parallelism)
  by_slice,   ///< each rank has a slice of every expert, and receives all rows (tensor parallelism)
};

/// Holds, for every source rank, the destination of each of its rows. Ranks may hold different numbers of
/// rows, or none.
///
/// A destination is a rank, or an expert of a mixture of experts. A rank orders the rows that it receives by
/// destination, then by source rank, then by row at the source.
class Routing {
 public:
  /// `dest[s][i]` is the rank that row i of rank s goes to. Throws InvalidArgument if it is none.
  explicit Routing(std::vector<std::vector<std::int32_t>> dest);
  /// The same with experts for ranks. Throws InvalidArgument if there is no such expert, or if the number of
  /// ranks does not divide that of experts which are split by expert.
  static Routing to_experts(std::vector<std::vector<std::int32_t>> dest, int experts,
                            ExpertSplit split = ExpertSplit::by_expert);
  /// Every rank has `capacity` rows for each expert: rows e · capacity and those behind it go to expert e. A
  /// closed form without a table. Throws InvalidArgument as to_experts(), or if a rank has no or too many
  /// rows.
  static Routing slots(int world, int experts, std::int64_t capacity,
                       ExpertSplit split = ExpertSplit::by_expert);

  int world() const { return static_cast<int>(bases_.size()) - 1; }
  ExpertSplit split() const { return split_; }
  /// Number of destinations.
  int experts() const { return experts_; }
  /// Destinations of a rank: so many from first_expert() on.
  int experts_per_rank() const { return per_rank_; }
  int first_expert(int rank) const { return split_ == ExpertSplit::by_slice ? 0 : rank * per_rank_; }
  /// True if the rank receives the rows to a destination.
  bool receives(int rank, int dest) const {
    return dest >= first_expert(rank) && dest < first_expert(rank) + per_rank_;
  }
  /// Which of its rank's destinations it is: the number of an expert's weight there.
  int weight_of(int dest) const { return dest % per_rank_; }
  /// The only rank that receives the rows to a destination; not for experts that are split by slice.
  int rank_of(int dest) const { return dest / per_rank_; }

  /// Rows that each rank has for each expert, if they are slots(); else 0.
  std::int64_t capacity() const { return capacity_; }

  std::int64_t rows(int source) const { return bases_[source + 1] - bases_[source]; }
  std::int32_t dest(int source, std::int64_t row) const {
    return capacity_ > 0 ? static_cast<std::int32_t>(row / capacity_) : dest_[source][row];
  }
  /// `table()[s][i]` is the destination of row i of rank s. Empty if the rows are slots().
  const std::vector<std::vector<std::int32_t>>& table() const { return dest_; }

  /// Number of rows of `source` before `row` that go to `dest`. row = rows(source) counts all of them.
  std::int64_t count_before(int source, int dest, std::int64_t row) const {
    if (capacity_ > 0) return std::clamp<std::int64_t>(row - dest * capacity_, 0, capacity_);
    const std::int64_t block = row / block_rows;
    std::int64_t count = prefix_[source][static_cast<std::size_t>(block) * experts_ + dest];
    const std::int32_t* const to = dest_[source].data();
    for (std::int64_t i = block * block_rows; i < row; ++i) count += to[i] == dest;
    return count;
  }
  std::int64_t count(int source, int dest) const { return count_before(source, dest, rows(source)); }
  /// Number of rows that `source` sends to a rank.
  std::int64_t count_to_rank(int source, int rank) const;

  /// First row of those from `source` to `dest` among the rows that a rank of `dest` receives.
  /// source = world(): their end.
  std::int64_t receive_base(int dest, int source) const {
    return received_[static_cast<std::size_t>(dest) * bases_.size() + static_cast<std::size_t>(source)];
  }
  /// Number of rows that a rank receives.
  std::int64_t received(int rank) const { return receive_base(first_expert(rank) + per_rank_ - 1, world()); }
  /// Row `row` of rank `source`.
  struct Row {
    std::int32_t source = 0;
    std::int64_t row = 0;
  };
  /// Row `index` of those that a rank receives.
  Row received_row(int rank, std::int64_t index) const;
  /// The rows that a rank receives, in their order.
  std::vector<Row> received_rows(int rank) const;
  /// Number of rows of all ranks below `source`: the global index of its row 0.
  std::int64_t global_base(int source) const { return bases_[static_cast<std::size_t>(source)]; }

  bool operator==(const Routing& other) const {
    return experts_ == other.experts_ && split_ == other.split_ && capacity_ == other.capacity_ &&
           bases_ == other.bases_ && dest_ == other.dest_;
  }

 private:
  /// A prefix is stored for each block, not for each row: that would take too much memory. Rows of a block
  /// are counted one by one.
  static constexpr std::int64_t block_rows = 16;

  /// Number of destinations (0: that of the ranks), and what one is called in messages. Without a default, so
  /// that `{}` is none.
  struct Destinations {
    Destinations(int count, std::string_view name, ExpertSplit split)
        : count(count), name(name), split(split) {}
    int count;
    std::string_view name;
    ExpertSplit split;
  };
  Routing(std::vector<std::vector<std::int32_t>> dest, const Destinations& all);
  /// Sets received_.
  void order_received();

  std::vector<std::vector<std::int32_t>> dest_;
  int experts_, per_rank_;
  ExpertSplit split_;
  std::int64_t capacity_ = 0;                      // of slots
  std::vector<std::vector<std::int32_t>> prefix_;  // [source][block · experts + dest]: count before the block
  std::vector<std::int64_t> bases_{0};             // by source; the last entry is the total
  std::vector<std::int64_t> received_;             // [dest · (world + 1) + source]: see receive_base()
};

}  // namespace shingle
