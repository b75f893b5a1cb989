#include "handshake.hpp"

namespace shingle::planner {

Handshake::Handshake(Builder& build) : begun_(build.counter_of_begins()) {
  for (int r = 0; r < build.world(); ++r)
    for (int i = 1; i < build.world(); ++i)
      build.notify_peer(r, compute_lane, begun_, (r + i) % build.world(), r);
}

void Handshake::await(Builder& build, int rank, std::int32_t lane, int peer) const {
  build.await(rank, lane, begun_, peer);
}

void Handshake::await_all(Builder& build, int rank, std::int32_t lane) const {
  for (int i = 1; i < build.world(); ++i) await(build, rank, lane, (rank + i) % build.world());
}

}  // namespace shingle::planner
