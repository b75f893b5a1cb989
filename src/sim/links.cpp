#include "links.hpp"

#include <algorithm>
#include <limits>

namespace shingle::sim {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double rest_bytes = 1e-3;  // what rounding may leave of a transfer that is over

/// The shortest time that is told from none: a femtosecond, or what two neighbouring numbers are apart.
double instant(double now) {
  return std::max(1e-9, 4 * std::numeric_limits<double>::epsilon() * now);
}

}  // namespace

void Links::begin(double now, std::int32_t transfer, double bytes, const std::vector<Channel>& channels) {
  advance(now);
  flows_.push_back({transfer, bytes, 0, channels});
  changed_ = true;
}

/// Progressive filling: the channel that leaves least to each of its transfers fixes their rate, and gives
/// back what they do not use elsewhere.
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
    // All transfers of the channels that are as tight as the tightest.
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
