// The handshake at the start of an epoch, for mechanisms that access remote memory.
#pragma once

#include "builder.hpp"

namespace shingle::planner {

/// Every rank signals its peers that it has begun the epoch. Before that, its user may still read the last
/// outputs or write the next inputs, and its own lanes may still use its buffers. Entry p on rank r: rank p
/// has begun.
class Handshake {
 public:
  /// Declares the counter. The first steps of every rank's compute lane add to it on the peers.
  explicit Handshake(Builder& build);
  /// The lane waits until `peer` has begun.
  void await(Builder& build, int rank, std::int32_t lane, int peer) const;
  void await_all(Builder& build, int rank, std::int32_t lane) const;

 private:
  std::int32_t begun_;
};

}  // namespace shingle::planner
