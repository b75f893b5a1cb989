#include "rhythm.hpp"

#include <algorithm>
#include <cmath>

namespace shingle::nccl_tuner {
namespace {

constexpr double least_us = 2e6, most_us = 30e6;
// An iteration has at least one of its longest pauses. So many of these have at least four whole iterations
// between them.
constexpr int longest_pauses = 5;
constexpr double as_long = 0.7;  // relative to the longest
// Relative differences of pauses: as good as the least, and so much better than those of single sequences
// that it is no chance.
constexpr double as_good = 1.5, much_better = 0.6;

}  // namespace

std::optional<std::size_t> Rhythm::on_begin(Clock::time_point now) {
  if (last_) {
    pauses_.push_back(std::chrono::duration<double, std::micro>(now - *last_).count());
    passed_us_ += pauses_.back();
  }
  last_ = now;
  if (!seen_enough()) return std::nullopt;
  return sequences();
}

bool Rhythm::seen_enough() const {
  if (pauses_.size() + 1 >= most_begins || passed_us_ >= most_us) return true;
  if (passed_us_ < least_us) return false;
  const double least_long = as_long * std::ranges::max(pauses_);
  return std::ranges::count_if(pauses_, [&](double us) { return us >= least_long; }) >= longest_pauses;
}

/// The least number n for which each pause is about as long as the n-th after it.
std::size_t Rhythm::sequences() const {
  std::vector<double> differences;
  for (std::size_t n = 1; n <= std::max<std::size_t>(pauses_.size() / 4, 1); ++n) {
    double difference = 0, sum = 0;
    for (std::size_t i = n; i < pauses_.size(); ++i) {
      difference += std::abs(pauses_[i] - pauses_[i - n]);
      sum += pauses_[i] + pauses_[i - n];
    }
    differences.push_back(sum > 0 ? difference / sum : 0);
  }
  const double most = as_good * std::ranges::min(differences);
  if (most > much_better * differences.front()) return 1;
  const auto found = std::ranges::find_if(differences, [&](double difference) { return difference <= most; });
  return static_cast<std::size_t>(found - differences.begin()) + 1;
}

}  // namespace shingle::nccl_tuner
