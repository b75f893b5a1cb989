// Races and content: replays every access of a schedule in its order. check_<kind>.cpp has the steps of each
// kind; check.cpp has the common part.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "content.hpp"
#include "key_set.hpp"
#include "region_map.hpp"
#include "results.hpp"
#include "shingle/plan/placement.hpp"
#include "tracked_memory.hpp"
#include "values.hpp"
#include "verify/order/order.hpp"
#include "verify/progress/schedule.hpp"

namespace shingle {

/// The same slice in the memory of the rank that holds a piece.
inline Slice on_rank(Slice slice, const Piece& piece) {
  slice.rank = piece.rank;
  return slice;
}

/// What the products and passes of a plan must be.
struct ComputeRules {
  explicit ComputeRules(const Problem& problem);
  /// Products of a workload are plain: no transposes, no epilogue, no norm.
  explicit ComputeRules(const Workload&) {}

  Content::Of a = Content::Of::a;  ///< what the only or the first product takes as A
  bool transpose_a = false;
  bool transpose_b = false;
  bool chains = false;  ///< there are two products
  std::int64_t k = 0;  ///< of the only or the first product; 0: each product has its own, kept in its content
  std::int64_t inner = 0;  ///< K of the second product
  std::int64_t b_cols = 0;
  std::int64_t out_cols = 0;
  Epilogue product{};  ///< that a product may apply
  Epilogue result{};   ///< that a pass over the result may apply
  Norm norm{};
};

class MemoryCheck {
 public:
  MemoryCheck(const Plan& plan, const Schedule& schedule, const Order& order, Setting setting,
              Budget& budget);

  /// The first failure; nothing if the plan has no race and computes its problem or workload.
  std::optional<CheckFailure> run();

  std::int64_t accesses() const { return memory_.accesses(); }

 private:
  /// Rows [tile_row, tile_row + rows) of a tile, and their content.
  struct TileRows {
    std::int64_t tile_row;
    std::int64_t rows;
    std::int64_t global_row;  ///< row of the problem that tile_row is
    std::uint64_t ranks;
    ValueTable::Id value;  ///< value of the rows over all of K; 0: inputs
    std::int32_t weight;   ///< that a first product was computed with
    bool merged;           ///< of merged slots
  };

  /// Parts of an attention that a merge has read.
  struct Merged {
    Content content{};  ///< `partial`; nothing: no part yet
    KeySet keys{};
    ValueTable::Id last = 0;  ///< of the last part
  };
  void read_parts(const Merge& step, const Segment& s, std::int32_t index, std::int64_t item,
                  RegionMap<Merged>& tile);
  void take_part(const Place& at, const Rect& cell, const Content& c, Merged& merged, const Segment& s);
  void take_lse(const Place& at, const Rect& cell, const Content& c, Merged& merged, DType part,
                const Segment& s);

  /// Keys and values that tiles of a run have read: columns in the problem, ranks and tokens.
  struct Seen {
    std::int64_t col = 0;
    std::uint64_t ranks = 0;
    TokenRange tokens;
  };

  void spend_items(const TileGrid& grid, std::int64_t items) const;
  void spend_pieces(const Elementwise& step, std::int64_t item) const;

  Place place(const Slice& slice, std::int32_t epoch) const;
  Place piece_place(const Slice& slice, std::int64_t row, std::int64_t rows, std::int64_t col,
                    std::int64_t cols, std::int32_t epoch) const;

  void user(const Segment& s, std::int32_t index);
  void check_output(const Segment& s, std::int32_t index, Role role, std::uint8_t done);
  void check_grouped_output(const Segment& s, std::int32_t index, const Slice& all, std::uint8_t done);
  void check_slot_output(const Segment& s, std::int32_t index, Role role);
  /// The source of the routing that a rank's tokens are of, as a bit.
  std::uint64_t source_bit(int rank) const;
  void provide_tokens(const Place& all, const Segment& s);
  void assign_slots(const AssignSlots& step, const Segment& s, std::int32_t index);
  void read_numbers(const Slice& slice, Content::Of of, int source, const Segment& s, std::int32_t index,
                    std::int64_t row, std::int64_t col);
  void merge_slots(const MergeSlots& step, const Segment& s, std::int32_t index);
  void read_merged(const Slice& slice, Content::Of of, const Segment& s, std::int32_t index, std::int64_t row,
                   std::int64_t col);
  Content index_of(const Slice& by, const Segment& s, std::int32_t index);
  RegionMap<Content> pick_rows(const Elementwise& step, const Segment& s, std::int32_t index,
                               std::int64_t item, const Placement& from);
  Content pick_tokens(const Slice& by, const Content& first, const Placement& from, const Segment& s,
                      std::int32_t index);
  Content pick_merged(const Slice& by, const Content& first, const Placement& from, const Segment& s,
                      std::int32_t index);
  void place_by_expert(const Slice& by, const Content& first, const Placement& from, const Segment& s,
                       std::int32_t index, RegionMap<Content>& tile);
  void take_picked(const Elementwise& step, const Segment& s, std::int32_t index, std::int64_t item,
                   std::size_t choice, std::int64_t first, std::int64_t& first_col,
                   RegionMap<ValueTable::Id>& sums);
  const std::vector<ValueTable::Id>& read_slots(const Slice& products, int source, const Segment& s,
                                                std::int32_t index);
  const std::vector<ValueTable::Id>& read_merged_slots(const Slice& products, const Segment& s,
                                                       std::int32_t index);
  void check_live(const Gemm& step, const Segment& s, std::int32_t index, const ProductTile& tile,
                  const std::vector<TileRows>& rows);
  void check_merged_live(const Content& count, const Place& at, std::int64_t slot, std::int64_t in_group,
                         const Segment& s) const;
  void workload_user(const Workload& workload, const Segment& s, std::int32_t index);
  void check_results(const Workload& workload, const Segment& s, std::int32_t index);
  void overwrite_all(const Segment& s, std::int32_t index);
  void expect(const Place& at, std::int32_t index, const Content& expected);
  void provide_input(const Segment& s, Role role);
  void gemm(const Gemm& step, const Segment& s, std::int32_t index);
  void gemm_tile(const Gemm& step, const Segment& s, std::int32_t index, std::int64_t item);
  void sum_tile(const Gemm& step, const Segment& s, std::int32_t index, std::int64_t item,
                const std::vector<TileRows>& rows, const Content& b);
  Content product_of(const Gemm& step, const Segment& s, const TileRows& rows, const Content& b);
  void attend_tile(const Attend& step, const Segment& s, std::int32_t index, std::int64_t item);
  void store_attended(const Attend& step, const Segment& s, std::int32_t index, std::int64_t item,
                      std::int64_t col, std::uint64_t ranks);
  void merge_tile(const Merge& step, const Segment& s, std::int32_t index, std::int64_t item);
  void attend_backward_tile(const AttendBackward& step, const Segment& s, std::int32_t index,
                            std::int64_t item);
  void store_gradient(const Slice& to, const Segment& s, std::int32_t index, std::int64_t item,
                      const Content& content, const TokenRange& by);
  Content summed_gradients(Content sum, const Content& c, const Segment& s, const Place& at,
                           const Rect& cell);
  /// A part of a gradient as memory of this type holds it.
  ValueTable::Id stored_gradient(const Content& c, DType dtype);
  void check_complete(const Place& at, const Rect& rect, const Content& found);
  TokenRange unread(std::int32_t index, std::int64_t col, const Seen& wanted);
  const std::vector<TileRows>& read_a(const Gemm& step, const Segment& s, std::int32_t index,
                                      const ProductTile& tile, Content::Of wanted);
  Content::Of wanted_a(const Gemm& step, const Segment& s, Content::Of b) const;
  Content read_b(const Gemm& step, const Segment& s, std::int32_t index, const ProductTile& tile);
  void elementwise(const Elementwise& step, const Segment& s, std::int32_t index);
  Content summed(Content sum, const Content& c, const Segment& s, const Place& at, const Rect& cell);
  template <class Take>
  void read_source(const Placement& from, const TileGrid& grid, const Segment& s, std::int32_t index,
                   std::int64_t item, RegionMap<Content>& tile, Take&& take);
  void add_part(const Placement& from, const TileGrid& grid, const Segment& s, std::int32_t index,
                std::int64_t item, RegionMap<Content>& tile);
  void store_tile(RegionMap<Content>& tile, const TileGrid& grid, const Epilogue& epilogue, const Slice& bias,
                  const Placement& to, const Segment& s, std::int32_t index, std::int64_t item);
  void move_tile(const Elementwise& step, const Segment& s, std::int32_t index, std::int64_t item);
  void finish_rows(const Elementwise& step, const Segment& s, std::int32_t index, std::int64_t tile_row);
  void combine_tile(const Elementwise& step, const Segment& s, std::int32_t index, std::int64_t item);
  std::int64_t first_weighed(const Elementwise& step, const Segment& s, std::int32_t index,
                             std::int64_t item);
  void take_choice(const Elementwise& step, const Segment& s, std::int32_t index, std::int64_t item,
                   std::size_t choice, std::int64_t first, std::int64_t& first_col,
                   RegionMap<ValueTable::Id>& sums);
  void check_in_place(const Elementwise& step, const Segment& s, std::int64_t item);
  std::uint64_t check_vector(const Slice& vector, Content::Of of, const Segment& s, std::int32_t index,
                             std::int64_t first, std::int64_t cols, std::int64_t logical);
  void check_owner(const Segment& s, std::uint64_t ranks, const Content& product) const;
  std::uint8_t check_epilogue(const Content& content, const Epilogue& epilogue, const Segment& s);
  void collective(const std::vector<std::int32_t>& segments);
  void message(const Event& event);
  void copy(const Slice& from, const Touch& reader, const Slice& to, const Touch& writer);
  void swap(const Swap& step, const Segment& s, std::int32_t index);

  DType dtype_of(const Slice& slice) const { return plan_.buffers[slice.buffer].dtype; }
  const Step& step_of(const Segment& s) const { return shingle::step_of(plan_, s); }
  [[noreturn]] void fail_content(const Segment& s, const std::string& text) const;

  const Plan& plan_;
  const Schedule& schedule_;
  const Setting setting_;
  Budget& budget_;
  TrackedMemory memory_;
  ValueTable values_;
  Results results_;
  ComputeRules rules_;
  std::uint64_t everyone_;
  // Neighbouring tiles of a run multiply the same rows of A. These rows are read once.
  std::int32_t a_segment_ = -1;
  std::int64_t a_row_ = -1;
  Content::Of a_wanted_ = Content::Of::nothing;
  std::vector<TileRows> a_tile_rows_;
  // Products of all slots of a rank, of which tiles of a run pick some. They are read once.
  std::int32_t slots_segment_ = -1;
  int slots_source_ = -1;  // merged_slots: of all ranks
  static constexpr int merged_slots = -2;
  Slice slots_{};
  std::vector<ValueTable::Id> slot_values_;
  std::int64_t slots_col_ = 0;   // first column of the products
  std::uint8_t slots_done_ = 0;  // merged: what was applied to the products
  // Tiles of a head see the same keys and values, or more of them. Each token's are read once.
  std::int32_t seen_segment_ = -1;
  std::map<std::int64_t, Seen> seen_;  // by column of K and V in the step
  std::map<ValueTable::Id, KeySet>
      keys_of_;  // of partial attentions, log-sum-exps and gradients of Q, by value as it is stored
  std::map<ValueTable::Id, KeySet> queries_of_;  // of parts of the gradients of K and V, by value
};

}  // namespace shingle
