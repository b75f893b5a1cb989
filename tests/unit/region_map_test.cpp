// The verifier's map of a matrix beside one that keeps every element.
#include "verify/memory/region_map.hpp"

#include <gtest/gtest.h>

#include "support/random_problem.hpp"

namespace shingle::region_map_test {
namespace {

TEST(RegionMap, IsTheMatrixElementByElement) {
  test::Dice dice(1);
  for (int round = 0; round < 60; ++round) {
    const std::int64_t rows = dice.size(1, 40), cols = dice.size(1, 12);
    std::vector<int> elements(static_cast<std::size_t>(rows * cols), -1);
    std::vector<RegionMap<int>> maps;
    for (int i = 0; i < 3; ++i) maps.emplace_back(rows, cols, -1);  // moved about, as the verifier's are
    RegionMap<int>& map = maps[0];
    // Rectangles are where the last one was, behind it, or anywhere; of no size, too.
    Rect at{0, 1, 0, cols};
    for (int value = 0; value < 150; ++value) {
      if (dice.size(0, 2) == 0)
        at.row = dice.size(0, rows);
      else if (dice.size(0, 1) == 0)
        at.row = std::min(at.row + at.rows, rows);
      at.rows = dice.size(0, std::min<std::int64_t>(rows - at.row, 5));
      at.col = dice.size(0, cols);
      at.cols = dice.size(0, cols - at.col);
      const bool write = dice.size(0, 1) == 0, whole = dice.size(0, 9) == 0;
      if (whole) {
        map.replace_rows(at.row, at.rows, value);
        at.col = 0, at.cols = at.rows > 0 ? cols : 0;
      }
      std::int64_t area = 0;
      map.visit(at, [&](const Rect& cell, int& held) {
        area += cell.rows * cell.cols;
        ASSERT_TRUE(cell.row >= at.row && cell.row + cell.rows <= at.row + at.rows && cell.col >= at.col &&
                    cell.col + cell.cols <= at.col + at.cols);
        for (std::int64_t r = cell.row; r < cell.row + cell.rows; ++r)
          for (std::int64_t c = cell.col; c < cell.col + cell.cols; ++c) {
            int& element = elements[static_cast<std::size_t>(r * cols + c)];
            if (whole) element = value;
            ASSERT_EQ(held, element) << r << ", " << c;
            if (write) element = value;
          }
        if (write) held = value;
      });
      ASSERT_EQ(area, at.rows * at.cols);
    }
  }
}

TEST(RegionMap, MayBeEmpty) {
  RegionMap<int> none(0, 5, 1), thin(5, 0, 1);
  none.visit({0, 0, 0, 5}, [](const Rect&, int&) { FAIL(); });
  thin.visit({0, 5, 0, 0}, [](const Rect&, int&) { FAIL(); });
  none.replace_rows(0, 0, 2);
  thin.replace_rows(0, 5, 2);
}

}  // namespace
}  // namespace shingle::region_map_test
