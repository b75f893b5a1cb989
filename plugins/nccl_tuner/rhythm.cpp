#include "rhythm.hpp"

#include <algorithm>
#include <cmath>

namespace shingle::nccl_tuner {
namespace {

constexpr auto least_time = std::chrono::seconds(2), most_time = std::chrono::seconds(30);
// An iteration has at least one of its longest pauses. So many of these have at least four whole iterations
// between them.
constexpr int longest_pauses = 5;
constexpr double as_long = 0.7;  // relative to the longest
// Relative differences of pauses: as good as the least, and so much better than those of single sequences
// that it is no chance.
constexpr double as_good = 1.5, much_better = 0.6;

}  // namespace

std::optional<std::size_t> Rhythm::on_begin(Clock::time_point now) {
  if (begins_.empty()) {
    longest_ = {};
    long_ones_ = 0;
  } else {
    const auto pause = now - begins_.back();
    if (pause > longest_) longest_ = pause, long_ones_ = count_long();
    if (std::chrono::duration<double>(pause) >= as_long * std::chrono::duration<double>(longest_))
      ++long_ones_;
  }
  begins_.push_back(now);
  const auto passed = now - begins_.front();
  const bool enough = passed >= least_time && (long_ones_ >= longest_pauses || passed >= most_time);
  if (!enough && begins_.size() < most_begins) return std::nullopt;
  return sequences();
}

int Rhythm::count_long() const {
  int count = 0;
  for (std::size_t i = 1; i < begins_.size(); ++i)
    count += std::chrono::duration<double>(begins_[i] - begins_[i - 1]) >=
             as_long * std::chrono::duration<double>(longest_);
  return count;
}

/// The least number n for which each pause is about as long as the n-th after it.
std::size_t Rhythm::sequences() const {
  std::vector<double> pauses;
  for (std::size_t i = 1; i < begins_.size(); ++i)
    pauses.push_back(std::chrono::duration<double, std::micro>(begins_[i] - begins_[i - 1]).count());
  std::vector<double> differences;
  for (std::size_t n = 1; n <= std::max<std::size_t>(pauses.size() / 4, 1); ++n) {
    double difference = 0, sum = 0;
    for (std::size_t i = n; i < pauses.size(); ++i) {
      difference += std::abs(pauses[i] - pauses[i - n]);
      sum += pauses[i] + pauses[i - n];
    }
    differences.push_back(sum > 0 ? difference / sum : 0);
  }
  const double most = as_good * std::ranges::min(differences);
  if (most > much_better * differences.front()) return 1;
  const auto found = std::ranges::find_if(differences, [&](double difference) { return difference <= most; });
  return static_cast<std::size_t>(found - differences.begin()) + 1;
}

}  // namespace shingle::nccl_tuner
