#include "iteration.hpp"

#include <algorithm>

namespace shingle::nccl_tuner {

Iteration::Event Iteration::push(std::uint64_t signature) {
  ring_[count_++ % span] = signature;
  if (period_ > 0) {
    if (signature != back(period_)) {
      if (held_ < proven) least_held_ = std::min(2 * held_, span / 2);
      period_ = 0;
      searched_from_ = count_;
      next_look_ = count_ + least_held_;
      return Event::broken;
    }
    ++held_;
    if (count_ - 1 - begun_ < period_) return Event::none;
    begun_ = count_ - 1;
    return Event::begins;
  }
  if (count_ < std::max(next_look_, least_held_)) return Event::none;
  period_ = shortest_period();
  next_look_ = count_ + std::min((count_ - searched_from_) / 4 + 1, span);
  if (period_ == 0) return Event::none;
  held_ = std::max(least_held_, repetitions * period_);
  begun_ = count_ - 1;
  return Event::begins;
}

bool Iteration::join(std::size_t sequences) {
  const std::size_t joined = period_ * std::min(sequences, span / repetitions / period_);
  if (held_ < joined) return false;
  period_ = joined;
  return true;
}

/// Searches the latest calls, read backwards; further back the longer no period was found. The prefix
/// function of Knuth, Morris and Pratt gives the shortest period of each prefix. These periods only grow with
/// the prefix.
std::size_t Iteration::shortest_period() const {
  const std::size_t calls = std::min({count_, 4 * (count_ - searched_from_), span});
  std::vector<std::uint32_t> border(calls, 0);
  for (std::size_t i = 0; i < calls; ++i) {
    if (i > 0) {
      std::uint32_t k = border[i - 1];
      while (k > 0 && back(i) != back(k)) k = border[k - 1];
      border[i] = k + (back(i) == back(k) ? 1 : 0);
    }
    const std::size_t length = i + 1, period = length - border[i];
    if (length >= std::max(least_held_, repetitions * period)) return period;
  }
  return 0;
}

std::vector<std::uint64_t> Iteration::calls() const {
  std::vector<std::uint64_t> all;
  for (std::size_t ago = period_; ago-- > 0;) all.push_back(back(ago));
  return all;
}

}  // namespace shingle::nccl_tuner
