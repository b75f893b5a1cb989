#include "routed_rows.hpp"

namespace shingle::planner {

RoutedRows::RoutedRows(const Routing& routing) {
  for (int rank = 0; rank < routing.world(); ++rank) {
    sent.push_back(routing.rows(rank));
    received.push_back(routing.received(rank));
  }
}

RoutedBuffers::RoutedBuffers(Builder& build, const RoutedRows& rows) {
  const Problem& p = build.problem();
  if (p.traits().before) {
    packed = build.buffer("packed", rows.sent, p.k);
    arrivals = build.buffer("arrivals", rows.received, p.k);
  }
  if (p.traits().after) {
    products = build.buffer("products", rows.received, p.n);
    returns = build.buffer("returns", rows.sent, p.n);
  }
}

}  // namespace shingle::planner
