// Transfers that share links: every link's rate is divided max-min fairly among those that cross it.
#pragma once

#include <cstdint>
#include <vector>

namespace shingle::sim {

/// Something of limited rate that transfers cross: a rank's link in one direction, a copy engine, a node's
/// link.
using Channel = std::int32_t;

class Links {
 public:
  /// `gbps`: 1e9 bytes/s.
  Channel add_channel(double gbps) {
    channels_.push_back({gbps * 1e3, 0});
    return static_cast<Channel>(channels_.size()) - 1;
  }

  /// `bytes` begin to cross all of `channels` at once. `transfer` is told by finished().
  void begin(double now, std::int32_t transfer, double bytes, const std::vector<Channel>& channels);

  /// Shares the rates anew if transfers have come or gone.
  void share();
  /// Bytes an us that a transfer gets, as they were shared last.
  double rate(std::int32_t transfer) const;
  /// When the next transfer is over if none comes or goes before; infinite without any.
  double next_end() const;
  /// Lets time pass; returns the transfers that are over then.
  std::vector<std::int32_t> finished(double now);

 private:
  struct Capacity {
    double bytes_per_us;
    std::int32_t crossing;  ///< transfers without a rate yet, while rates are shared
  };
  struct Flow {
    std::int32_t transfer;
    double left;  ///< bytes
    double rate;  ///< bytes an us
    std::vector<Channel> channels;
  };

  void advance(double now);

  std::vector<Capacity> channels_;
  std::vector<Flow> flows_;
  double now_ = 0;
  bool changed_ = false;
};

}  // namespace shingle::sim
