// Transfers that share links. Transfers that cross a link share its rate max-min fairly.
#pragma once

#include <cstdint>
#include <vector>

namespace shingle::sim {

/// A resource of limited rate that transfers cross: one direction of a rank's link, a copy engine, or a
/// node's link.
using Channel = std::int32_t;

class Links {
 public:
  /// `gbps`: 1e9 bytes/s.
  Channel add_channel(double gbps) {
    channels_.push_back({gbps * 1e3, 0});
    return static_cast<Channel>(channels_.size()) - 1;
  }

  /// Starts a transfer of `bytes` across all of `channels` at once. finished() returns `transfer` as its
  /// identifier.
  void begin(double now, std::int32_t transfer, double bytes, const std::vector<Channel>& channels);

  /// Recomputes the rates if transfers have begun or ended.
  void share();
  /// Bytes per µs of a transfer, as of the last share().
  double rate(std::int32_t transfer) const;
  /// Time when the next transfer ends if none begins or ends before. Infinite without transfers.
  double next_end() const;
  /// Advances time to `now`. Returns the transfers that have ended.
  std::vector<std::int32_t> finished(double now);

 private:
  struct Capacity {
    double bytes_per_us;
    std::int32_t crossing;  ///< transfers without a rate yet, used by share()
  };
  struct Flow {
    std::int32_t transfer;
    double left;  ///< bytes
    double rate;  ///< bytes per µs
    std::vector<Channel> channels;
  };

  void advance(double now);

  std::vector<Capacity> channels_;
  std::vector<Flow> flows_;
  double now_ = 0;
  bool changed_ = false;
};

}  // namespace shingle::sim
