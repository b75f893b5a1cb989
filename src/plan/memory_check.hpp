// Races and content: every access of a schedule, in its order, on memory that knows what it holds and who
// touched it.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "order.hpp"
#include "region_map.hpp"
#include "schedule.hpp"

namespace shingle {

/// What the elements of a rectangle are, in the words of the problem.
struct Content {
  enum class Of : std::uint8_t {
    nothing,
    a,
    b,
    bias,
    residual,
    norm_weight,
    c,
    keys,
    values,
    attended,
    down,
    hidden,
    payload
  };
  Of of = Of::nothing;
  std::uint8_t done = 0;  ///< of c and hidden: bits of `Done`
  std::int32_t epoch = 0;
  std::int64_t row = 0;  ///< row in the problem's matrix = row in the buffer + this
  std::int64_t col = 0;
  std::uint64_t ranks =
      0;  ///< whose products are summed in c; whose operand a and b are; 0: no rank's in particular

  bool operator==(const Content&) const = default;
};

enum Done : std::uint8_t { epilogue_done = 1, residual_done = 2, norm_done = 4 };

/// An access that may still be under way.
struct Touch {
  std::int32_t segment = -1;
  std::int64_t item = -1;  ///< -1: several items of the segment
};

struct CheckFailure {
  std::string rule;
  std::string text;
};

class MemoryCheck {
 public:
  MemoryCheck(const Plan& plan, const Schedule& schedule, const Order& order);

  /// The first failure, or nothing when the plan is free of races and computes its problem.
  std::optional<CheckFailure> run();

  std::int64_t accesses() const { return accesses_; }

 private:
  struct Cell {
    Content content;
    Touch writer;
    Touch reader;                ///< the last since then; most cells have no other
    std::vector<Touch> earlier;  ///< the readers before it
  };
  /// An absolute rectangle of a buffer on a rank, in the copy that an epoch uses.
  struct Place {
    std::int32_t buffer;
    std::int32_t rank;
    std::int32_t copy;
    Rect rect;
  };
  /// Rows [tile_row, tile_row + rows) of a tile and what they are.
  struct TileRows {
    std::int64_t tile_row;
    std::int64_t rows;
    std::int64_t global_row;  ///< of tile_row
    std::uint64_t ranks;
  };

  /// Keys and values that tiles of a run have read: of which head of whose, and of which tokens.
  struct Seen {
    std::int64_t col = 0;
    std::uint64_t ranks = 0;
    TokenRange tokens;
  };

  RegionMap<Cell>& memory(const Place& at);
  Place place(const Slice& slice, std::int32_t epoch) const;
  Place piece_place(const Slice& slice, std::int64_t row, std::int64_t rows, std::int64_t col,
                    std::int64_t cols, std::int32_t epoch) const;

  template <class Visit>
  void read(const Place& at, std::int32_t segment, std::int64_t item, Visit&& visit);
  void write(const Place& at, std::int32_t segment, std::int64_t item, const Content& content);

  void user(const Segment& s, std::int32_t index);
  void check_output(const Segment& s, std::int32_t index, Role role, std::uint8_t done);
  void check_results(const Segment& s, std::int32_t index, const Slice& all);
  void expect(const Place& at, std::int32_t index, const Content& expected);
  void check_listed(const Gemm& step, const Segment& s, std::int64_t k) const;
  void provide_input(const Segment& s, Role role);
  void gemm(const Gemm& step, const Segment& s, std::int32_t index);
  void gemm_tile(const Gemm& step, const Segment& s, std::int32_t index, std::int64_t item);
  void attend_tile(const Attend& step, const Segment& s, std::int32_t index, std::int64_t item);
  TokenRange unread(std::int32_t index, std::int64_t col, const Seen& wanted);
  const std::vector<TileRows>& read_a(const Gemm& step, const Segment& s, std::int32_t index,
                                      const TileRect& rect, Content::Of wanted);
  Content::Of wanted_a(const Gemm& step, const Segment& s, Content::Of b) const;
  Content read_b(const Gemm& step, const Segment& s, std::int32_t index, const TileRect& rect);
  void elementwise(const Elementwise& step, const Segment& s, std::int32_t index);
  Content summed(Content sum, const Content& c, const Segment& s, const Place& at, const Rect& cell);
  void move_tile(const Elementwise& step, const Segment& s, std::int32_t index, std::int64_t item);
  void finish_rows(const Elementwise& step, const Segment& s, std::int32_t index, std::int64_t tile_row);
  void check_in_place(const Elementwise& step, const Segment& s, std::int64_t item);
  std::uint64_t check_vector(const Slice& vector, Content::Of of, const Segment& s, std::int32_t index,
                             std::int64_t first, std::int64_t cols, std::int64_t logical);
  void check_owner(const Segment& s, std::uint64_t ranks, const Content& product) const;
  std::uint8_t check_epilogue(const Content& content, const Epilogue& epilogue, const Segment& s);
  void collective(const std::vector<std::int32_t>& segments);
  void message(const Event& event);
  void copy(const Slice& from, const Touch& reader, const Slice& to, const Touch& writer);
  void swap(const Swap& step, const Segment& s, std::int32_t index);

  const Step& step_of(const Segment& s) const { return plan_.ranks[s.rank].lanes[s.lane].steps[s.step]; }
  std::string describe_segment(std::int32_t segment, std::int64_t item) const;
  std::string describe_place(const Place& at, const Rect& rect) const;
  /// Counts work; a plan too large to be proven fails instead of taking for ever.
  void spend(std::int64_t items) {
    if ((work_ += items) > max_work)
      fail("size", fmt::format("more than {} tiles and accesses: too large to prove", max_work));
  }
  [[noreturn]] void fail(std::string rule, std::string text) const;
  [[noreturn]] void fail_content(const Segment& s, std::string text) const;

  const Plan& plan_;
  const Schedule& schedule_;
  const Order& order_;
  std::vector<std::vector<std::vector<RegionMap<Cell>>>> memory_;  // [buffer][rank][copy]
  std::uint64_t everyone_;
  // Neighbouring tiles of a run multiply the same rows of A: they are read once.
  std::int32_t a_segment_ = -1;
  std::int64_t a_row_ = -1;
  Content::Of a_wanted_ = Content::Of::nothing;
  std::vector<TileRows> a_tile_rows_;
  // Those of a head see the same keys and values, or more of them: each token's are read once.
  std::int32_t seen_segment_ = -1;
  std::map<std::int64_t, Seen> seen_;  // by the column of K and V in the step
  std::int64_t accesses_ = 0;
  static constexpr std::int64_t max_work = std::int64_t{1} << 30;
  std::int64_t work_ = 0;
};

}  // namespace shingle
