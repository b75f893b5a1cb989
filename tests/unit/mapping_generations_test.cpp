// Mappings of other processes' memory go once matrices are bound anew, but for those that graphs replay. What
// maps is counted here instead.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cuda/peer/generations.hpp"

namespace shingle::cuda::mapping_generations_test {
namespace {

/// Like Mappings: opened until it is destroyed; a move swaps.
class Counted {
 public:
  Counted() = default;
  Counted(std::multiset<int>& open, int number) : open_(&open), number_(number) { open.insert(number); }
  ~Counted() {
    if (open_ != nullptr) open_->erase(open_->find(number_));
  }
  Counted(Counted&& other) noexcept : open_(std::exchange(other.open_, nullptr)), number_(other.number_) {}
  Counted& operator=(Counted&& other) noexcept {
    std::swap(open_, other.open_);
    std::swap(number_, other.number_);
    return *this;
  }

 private:
  std::multiset<int>* open_ = nullptr;
  int number_ = 0;
};

TEST(Generations, LetGoOfWhatWasMappedBefore) {
  std::multiset<int> open;
  {
    Generations<Counted> mapped;
    for (int number = 0; number < 100; ++number) {
      mapped.replace(Counted(open, number), false);
      EXPECT_EQ(open, std::multiset<int>{number});
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(Generations, KeepWhatGraphsReplay) {
  std::multiset<int> open;
  {
    Generations<Counted> mapped;
    mapped.replace(Counted(open, 0), false);
    mapped.replace(Counted(open, 1), true);  // a graph has captured 0
    mapped.replace(Counted(open, 2), false);
    mapped.replace(Counted(open, 3), true);  // and 2
    EXPECT_EQ(open, (std::multiset<int>{0, 2, 3}));
    mapped = {};
    EXPECT_TRUE(open.empty());
  }
  EXPECT_TRUE(open.empty());
}

}  // namespace
}  // namespace shingle::cuda::mapping_generations_test
