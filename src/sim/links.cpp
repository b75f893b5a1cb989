#include "links.hpp"

#include <algorithm>
#include <limits>

namespace shingle::sim {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double rest_bytes = 1e-3;  // rounding may leave this much of a finished transfer

/// Min. time difference that counts: a femtosecond, or a few units in the last place of `now`.
double instant(double now) {
  return std::max(1e-9, 4 * std::numeric_limits<double>::epsilon() * now);
}

}  // namespace

void Links::begin(double now, std::int32_t transfer, double bytes, const std::vector<Channel>& channels) {
  advance(now);
  flows_.push_back({transfer, bytes, 0, channels});
  changed_ = true;
}

/// Progressive filling. The channel with the least rate per transfer fixes the rate of its transfers. Their
/// unused share of other channels goes to the other transfers.
void Links::share() {
  if (!changed_) return;
  changed_ = false;
  std::vector<double> left;
  for (Capacity& channel : channels_) left.push_back(channel.bytes_per_us), channel.crossing = 0;
  for (Flow& flow : flows_) {
    flow.rate = -1;
    for (const Channel c : flow.channels) ++channels_[c].crossing;
  }
  for (std::size_t open = flows_.size(); open > 0;) {
    double least = infinite;
    for (std::size_t c = 0; c < channels_.size(); ++c)
      if (channels_[c].crossing > 0) least = std::min(least, left[c] / channels_[c].crossing);
    // Treats channels within rounding of the tightest as equally tight.
    const double tight = least * (1 + 1e-12);
    std::vector<char> full(channels_.size(), 0);
    for (std::size_t c = 0; c < channels_.size(); ++c)
      full[c] = channels_[c].crossing > 0 && left[c] / channels_[c].crossing <= tight;
    for (Flow& flow : flows_) {
      if (flow.rate >= 0) continue;
      const bool held = std::any_of(flow.channels.begin(), flow.channels.end(),
                                    [&](Channel c) { return full[static_cast<std::size_t>(c)] != 0; });
      if (!held && least < infinite) continue;
      flow.rate = least;
      --open;
      for (const Channel c : flow.channels) {
        left[static_cast<std::size_t>(c)] = std::max(left[static_cast<std::size_t>(c)] - least, 0.0);
        --channels_[c].crossing;
      }
    }
  }
}

double Links::rate(std::int32_t transfer) const {
  return std::ranges::find(flows_, transfer, &Flow::transfer)->rate;
}

double Links::next_end() const {
  double at = infinite;
  for (const Flow& flow : flows_)
    at = std::min(at, flow.rate == infinite || flow.left <= rest_bytes ? now_ : now_ + flow.left / flow.rate);
  return at;
}

std::vector<std::int32_t> Links::finished(double now) {
  advance(now);
  std::vector<std::int32_t> over;
  const auto done = [&](const Flow& flow) {
    return flow.left <= rest_bytes || flow.left <= flow.rate * instant(now);
  };
  for (const Flow& flow : flows_)
    if (done(flow)) over.push_back(flow.transfer);
  if (!over.empty()) std::erase_if(flows_, done), changed_ = true;
  return over;
}

void Links::advance(double now) {
  for (Flow& flow : flows_)
    flow.left = flow.rate == infinite ? 0 : std::max(flow.left - flow.rate * (now - now_), 0.0);
  now_ = now;
}

}  // namespace shingle::sim
