#include "slots.hpp"

#include <numeric>
#include <utility>

#include "experts.hpp"

namespace shingle::planner {

Slice of_choice(Slice slots, std::int64_t choice) {
  slots.col = choice;
  slots.cols = 1;
  return slots;
}

Placement picked(const Slice& rows, const Slice& index) {
  return {rows, placement::Indexed{index}};
}

std::int32_t live_element(const Routing& routing, int rank, int source, int weight) {
  if (routing.capacity() == 0) return -1;
  const bool apart = source == rank && routing.split() == ExpertSplit::by_expert;
  const int row = apart ? routing.world() + rank : source;
  return row * routing.experts_per_rank() + weight;
}

Slots::Slots(Builder& build, bool merged)
    : build_(build),
      p_(build.problem()),
      routing_(*p_.routing),
      of_all_(p_.traits().slices_experts() && !p_.traits().replicates_tokens()),
      merged_(merged),
      row_of_(build.typed_buffer("row_of", DType::i32, (of_all_ && !merged ? p_.world : 1) * routing_.rows(0),
                                 1)),
      slot_of_(build.typed_buffer("slot_of", DType::i32, (of_all_ ? p_.world : 1) * p_.m, p_.experts.topk)),
      live_(build.typed_buffer("live", DType::i32,
                               (p_.traits().slices_experts() ? 1 : 2) * std::int64_t{p_.sources()},
                               p_.weights())) {}

void Slots::assign(int rank) const {
  build_.step(rank, compute_lane,
              AssignSlots{build_.all(build_.topk_ids, rank),
                          merged_ ? build_.all(row_of_, rank) : part(row_of_, rank, rank),
                          part(slot_of_, rank, rank), counts_to(rank), build_.all(build_.dropped, rank)});
}

Placement Slots::tokens(int rank) const {
  return picked(build_.all(build_.a, rank), build_.all(row_of_, rank));
}

Placement Slots::tokens(int rank, int to) const {
  const std::int64_t rows = routing_.count_to_rank(rank, to);
  return picked(build_.all(build_.a, rank), build_.rows(row_of_, rank, to * rows, rows));
}

Placement Slots::tokens(int rank, int source, const Slice& tokens) const {
  return picked(tokens, part(row_of_, rank, source));
}

Slice Slots::counts_to(int rank) const {
  return p_.traits().slices_experts() ? part(live_, rank, rank)
                                      : build_.rows(live_, rank, p_.world, p_.world);
}

std::vector<std::int32_t> Slots::gathered() const {
  std::vector<std::int32_t> buffers{live_};
  if (merged_) return {live_, slot_of_};
  if (p_.traits().before) buffers.push_back(row_of_);
  if (p_.traits().after) buffers.push_back(slot_of_);
  return buffers;
}

Elementwise Slots::send_counts(int rank, std::int32_t counted) const {
  const int world = build_.world();
  Elementwise pass;
  pass.grid = make_grid(world, routing_.experts_per_rank(), 1, routing_.experts_per_rank());
  pass.from.push_back(Builder::in_place(counts_to(rank)));
  RowMap one_each = RowMap::identity(world);
  one_each.stride = 1;
  pass.to = {build_.rows(live_, rank, rank, 1), placement::Owners{one_each}};
  if (counted >= 0) {
    TileNotify notify{counted, {}, std::vector<std::int64_t>(static_cast<std::size_t>(world))};
    std::iota(notify.ends.begin(), notify.ends.end(), 1);
    notify.entries.assign(notify.ends.size(), rank);
    notify.owners.resize(notify.ends.size());
    std::iota(notify.owners.begin(), notify.owners.end(), 0);
    pass.notify.push_back(std::move(notify));
  }
  pass.resources = {1, 1};
  return pass;
}

void Slots::exchange_counts(int rank) const {
  const std::vector<std::int64_t> one_each(static_cast<std::size_t>(build_.world()), 1);
  build_.collective(rank, CollectiveKind::alltoall, counts_to(rank), counts_from(rank), one_each, one_each);
}

Elementwise Slots::combine(int rank, const Slice& products) const {
  return combine(rank, rank, products, build_.all(build_.topk_weights, rank), build_.all(build_.out, rank));
}

Elementwise Slots::combine(int rank, int source, const Slice& products, const Slice& factors,
                           const Slice& to) const {
  Elementwise pass = planner::combine(build_.row_blocks(factors.rows, p_.n), factors, to);
  for (std::int64_t choice = 0; choice < p_.experts.topk; ++choice)
    pass.from.push_back(picked(products, of_choice(part(slot_of_, rank, source), choice)));
  return pass;
}

void Slots::return_counts(int rank) const {
  if (build_.counts >= 0)
    build_.step(rank, compute_lane, build_.copy(counts_from(rank), build_.all(build_.counts, rank)));
}

Slice Slots::part(std::int32_t buffer, int rank, int source) const {
  return of_all_ ? part_of(build_, buffer, rank, source) : build_.all(buffer, rank);
}

Slice part_of(const Builder& build, std::int32_t buffer, int rank, int of) {
  const std::int64_t rows = build.all(buffer, rank).rows / build.world();
  return build.rows(buffer, rank, of * rows, rows);
}

}  // namespace shingle::planner
