// Plans from anyone's files: whatever the text, it is read or refused with InvalidArgument. What is read can
// be printed, written back, and has every tile of every placement inside its buffer.
#include "shingle/plan/json.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "sample_plans.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/verify/wellformed.hpp"

namespace shingle {
namespace {

using Json = nlohmann::json;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int slowdown = 8;
#else
constexpr int slowdown = 1;
#endif
constexpr int byte_inputs = 8000 / slowdown;
constexpr int structure_inputs = 11000 / slowdown;

class PlanJsonFuzz : public ::testing::Test {
 protected:
  PlanJsonFuzz() {
    samples_.push_back(to_json(test::all_steps(), -1));
    for (const Plan& plan : test::planned(2, 9)) samples_.push_back(to_json(plan, -1));
    for (const std::string& text : samples_) parsed_.push_back(Json::parse(text));
  }

  template <class Int>
  Int below(Int end) {
    return std::uniform_int_distribution<Int>(0, end - 1)(random_);
  }
  const std::string& sample() { return samples_[below(samples_.size())]; }

  void try_text(const std::string& text) {
    try {
      check(plan_from_json(text));
      ++accepted_;
    } catch (const InvalidArgument& e) {
      ASSERT_STRNE(e.what(), "");
      ASSERT_EQ(std::string_view(e.what()).find('\n'), std::string_view::npos) << e.what();
      ++refused_;
    }
  }

  void check(const Plan& plan) {
    ASSERT_EQ(malformed(plan), std::nullopt);
    if (accepted_ % 8 == 0) {
      ASSERT_EQ(plan_from_json(to_json(plan, -1)), plan);
      ASSERT_FALSE(to_text(plan).empty());
    }
    for (const RankPlan& rank : plan.ranks)
      for (const Lane& lane : rank.lanes)
        for (const Step& step : lane.steps) {
          if (const auto* gemm = std::get_if<Gemm>(&step)) check_gemm(plan, *gemm);
          if (const auto* pass = std::get_if<Elementwise>(&step)) check_pass(plan, *pass);
        }
  }
  void check_gemm(const Plan& plan, const Gemm& gemm) {
    if (!gemm.groups.empty()) return check_groups(plan, gemm);
    check_placement(plan, gemm.grid, gemm.out, -1);
    gemm.a_rows.for_each_run(0, smaller(gemm.grid.rows, 100), [&](const RowRun& run) {
      ASSERT_GT(run.rows, 0);
      ASSERT_LE(run.matrix_row < 0 ? 0 : run.matrix_row + run.rows,
                gemm.transpose_a ? gemm.a.cols : gemm.a.rows);
    });
  }
  void check_groups(const Plan& plan, const Gemm& gemm) {
    for (std::int64_t i = 0; i < smaller(gemm.grid.positions(), 100); ++i) {
      const ProductTile tile = product_tile(gemm, gemm.grid.tile(i));
      if (tile.group == nullptr || tile.rect.rows > 10000) continue;
      const Slice weight = weight_of(gemm, *tile.group);
      ASSERT_GE(weight.row, gemm.b.row);
      ASSERT_LE(weight.row + weight.rows, gemm.b.row + gemm.b.rows);
      tile.for_each_a_run(gemm, 0, tile.rect.rows,
                          [&](const RowRun& run) { ASSERT_LE(run.matrix_row + run.rows, gemm.a.rows); });
      for_each_piece(gemm.out, gemm.grid, plan.routing(), i, tile.rect, [&](const Piece& piece) {
        const Buffer& buffer = plan.buffers[static_cast<std::size_t>(gemm.out.slice.buffer)];
        ASSERT_LE(piece.row + piece.rows, buffer.rows[static_cast<std::size_t>(piece.rank)]);
        ++pieces_;
      });
    }
  }
  void check_pass(const Plan& plan, const Elementwise& pass) {
    for (const Placement& from : pass.from) check_placement(plan, pass.grid, from, -1);
    const bool swiglu = pass.epilogue.activation == Activation::swiglu;
    const std::int64_t wide = !row_wise(pass) ? -1 : swiglu ? pass.grid.cols / 2 : pass.grid.cols;
    check_placement(plan, pass.grid, pass.to, wide);
    if (pass.norm.residual) {
      check_placement(plan, pass.grid, pass.residual, wide);
      check_placement(plan, pass.grid, pass.sum, wide);
    }
  }
  /// `wide` >= 0: asked for the tiles of column 0 only, that many columns wide.
  void check_placement(const Plan& plan, const TileGrid& grid, const Placement& at, std::int64_t wide) {
    const Slice& slice = at.slice;
    const std::int64_t positions = grid.positions();
    // The first and last positions of a grid that is too long to walk.
    for (std::int64_t i = 0; i < positions; i = i == 200 && positions > 400 ? positions - 200 : i + 1) {
      const Tile tile = grid.tile(i);
      const TileRect rect = grid.rect(tile);
      if (grid.phantom(tile) || rect.rows > 10000 || (wide >= 0 && tile.n != 0)) continue;
      for_each_piece(at, grid, plan.routing(), i, [&](const Piece& piece) {
        ASSERT_GE(piece.row, slice.row);
        // The slice says how many rows there are on its own rank; others may hold more of them, or fewer.
        const Buffer& buffer = plan.buffers[static_cast<std::size_t>(slice.buffer)];
        ASSERT_LE(piece.row + piece.rows, piece.rank == slice.rank
                                              ? slice.row + slice.rows
                                              : buffer.rows[static_cast<std::size_t>(piece.rank)]);
        ASSERT_GE(piece.col, slice.col);
        ASSERT_LE(piece.col + (wide >= 0 ? wide : rect.cols), slice.col + slice.cols);
        ASSERT_GE(piece.tile_row, 0);
        ASSERT_LE(piece.tile_row + piece.rows, rect.rows);
        ++pieces_;
      });
    }
  }

  std::string mutated_bytes() {
    std::string text = sample();
    for (int n = 1 + below(3); n > 0 && !text.empty(); --n) {
      const std::size_t at = below(text.size());
      switch (below(6)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text.erase(at, 1 + below(std::size_t{20}));
          break;
        case 2:
          text.insert(at, 1, "{}[]\",:0-9eE.x\\\x80\xff"[below(17)]);
          break;
        case 3:
          text.insert(at, text.substr(below(text.size()), below(std::size_t{30})));
          break;
        case 4:
          text.resize(at);
          break;
        default: {  // a digit more or less, so that many inputs stay JSON
          const std::size_t digit = text.find_first_of("0123456789", at);
          if (digit == std::string::npos) break;
          if (below(2) != 0)
            text[digit] = static_cast<char>('0' + below(10));
          else
            text.insert(digit, 1, static_cast<char>('1' + below(9)));
        }
      }
    }
    return text;
  }

  /// A random node, mostly a deep one.
  Json& node(Json& root) {
    Json* at = &root;
    while (at->is_structured() && !at->empty() && below(16) != 0) {
      auto it = at->begin();
      std::advance(it, below(static_cast<std::ptrdiff_t>(at->size())));
      at = &*it;
    }
    return *at;
  }

  Json value() {
    static const Json values[] = {nullptr,
                                  true,
                                  0,
                                  1,
                                  2,
                                  3,
                                  7,
                                  -1,
                                  -2,
                                  64,
                                  65,
                                  INT32_MAX,
                                  std::int64_t{1} << 31,
                                  UINT32_MAX,
                                  std::int64_t{1} << 40,
                                  std::int64_t{1} << 60,
                                  INT64_MAX,
                                  INT64_MIN,
                                  UINT64_MAX,
                                  1.5,
                                  -0.0,
                                  1e300,
                                  "",
                                  "gemm",
                                  "add",
                                  "set",
                                  "matrix",
                                  "slots",
                                  "subtiles",
                                  "pools",
                                  "routed",
                                  "swiglu",
                                  "f32",
                                  "allreduce",
                                  "gemm+alltoall",
                                  "\u00e4",
                                  Json::array(),
                                  Json::object(),
                                  {0},
                                  {0, 0},
                                  {1, 4},
                                  {4, 1},
                                  {-1},
                                  {INT64_MAX, INT64_MAX}};
    return values[below(std::size(values))];
  }

  /// Whether there was something to change at the node that was drawn.
  bool mutate(Json& root) {
    Json& at = node(root);
    switch (below(6)) {
      case 0:
        at = value();
        return true;
      case 1:  // an element or a key less
        if (!at.is_structured() || at.empty()) return false;
        at.erase(std::next(at.begin(), below(static_cast<std::ptrdiff_t>(at.size()))));
        return true;
      case 2:  // an element twice, or a key more
        if (at.is_object()) at[below(2) != 0 ? "row" : "dest"] = value();
        if (at.is_array() && !at.empty()) at.push_back(Json(at[below(at.size())]));
        return at.is_structured();
      case 3:  // something from elsewhere, maybe a whole lane in place of a number
        at = Json(node(root));
        return true;
      default:  // a number a little off: most of what passes as JSON and is still wrong
        if (!at.is_number_integer()) return false;
        at =
            static_cast<std::int64_t>(at.get<std::uint64_t>() +  // modulo 2^64: the number may be the largest
                                      static_cast<std::uint64_t>((below(2) != 0 ? 1 : -1) * (1 + below(3))));
        return true;
    }
  }

  std::string mutated_structure() {
    Json json = parsed_[below(parsed_.size())];
    for (int n = 1 + below(3); n > 0; --n)
      while (!mutate(json)) {
      }
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  std::mt19937_64 random_{20260131};
  std::vector<std::string> samples_;
  std::vector<Json> parsed_;
  int accepted_ = 0;
  int refused_ = 0;
  std::int64_t pieces_ = 0;
};

TEST_F(PlanJsonFuzz, Bytes) {
  for (int i = 0; i < byte_inputs && !HasFatalFailure(); ++i) {
    const std::string text = mutated_bytes();
    try_text(text);
    if (HasFatalFailure()) FAIL() << text;
  }
  EXPECT_GT(accepted_, byte_inputs / 200);
  EXPECT_GT(refused_, byte_inputs / 2);
}

TEST_F(PlanJsonFuzz, Structure) {
  for (int i = 0; i < structure_inputs && !HasFatalFailure(); ++i) {
    const std::string text = mutated_structure();
    try_text(text);
    if (HasFatalFailure()) FAIL() << text;
  }
  EXPECT_GT(accepted_, structure_inputs / 200);
  EXPECT_GT(refused_, structure_inputs / 2);
  EXPECT_GT(pieces_, 10000 / slowdown);
}

TEST_F(PlanJsonFuzz, EveryNumberReplaced) {
  const Json original = Json::parse(samples_[0]);
  const Json flat = original.flatten();
  EXPECT_GT(5 * flat.size() + byte_inputs + structure_inputs, 20000u / slowdown);
  for (const auto& item : flat.items())
    for (const std::int64_t wrong :
         {std::int64_t{-1}, std::int64_t{1} << 31, std::int64_t{1} << 59, INT64_MAX, INT64_MIN}) {
      Json json = original;
      json[Json::json_pointer(item.key())] = wrong;
      try_text(json.dump());
      if (HasFatalFailure()) FAIL() << item.key() << " = " << wrong;
    }
}

TEST_F(PlanJsonFuzz, TextsThatAreNoPlans) {
  for (const std::string text :
       {"", " ", "null", "0", "\"\"", "[]", "{}", "{\"format\":\"shingle-plan\"}", "\xef\xbb\xbf", "\xff",
        "nan", "-", "1e9999", "{\"a\":1}{", "[[[", "{\"\":{\"\":{\"\":", "//", "'"})
    EXPECT_THROW(plan_from_json(text), InvalidArgument) << text;
  EXPECT_THROW(plan_from_json(std::string(1 << 20, '[')), InvalidArgument);
  EXPECT_THROW(plan_from_json(std::string(1 << 20, '\0')), InvalidArgument);
  EXPECT_THROW(plan_from_json(std::string(1 << 20, '9')), InvalidArgument);
}

}  // namespace
}  // namespace shingle
