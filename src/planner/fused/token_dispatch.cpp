#include "token_dispatch.hpp"

#include <algorithm>
#include <utility>

#include "planner/common/pools.hpp"

namespace shingle::planner {

TokenDispatch::TokenDispatch(FusedBuilder& build, const Slots* slots)
    : build_(build), p_(build.problem()), routing_(*p_.routing), slots_(slots) {
  std::vector<std::int64_t> rows;
  for (int r = 0; r < p_.world; ++r) {
    rows.push_back(routing_.received(r));
    if (!by_engine()) continue;
    rows.back() += routing_.rows(r) - routing_.count_to_rank(r, r);
    for (int dest = 0; dest < p_.world; ++dest)
      most_pieces_ = larger(most_pieces_, static_cast<std::int64_t>(pieces(r, dest).size()));
  }
  rows_ = build.buffer("tokens", std::move(rows), p_.k);
  if (by_engine()) packed_ = build.counter("packed", 1);
  arrived_ =
      build.counter("arrived", p_.world * most_pieces_, by_engine() ? CounterKind::set : CounterKind::add);
}

std::vector<TokenDispatch::Piece> TokenDispatch::pieces(int source, int dest) const {
  std::vector<Piece> pieces;
  Piece next;
  for (int i = 0; i < routing_.experts_per_rank(); ++i) {
    next.rows += routing_.count(source, dest * routing_.experts_per_rank() + i);
    if (next.rows == 0 || (next.rows < build_.params().comm_rows && i + 1 < routing_.experts_per_rank()))
      continue;
    next.end = i + 1;
    pieces.push_back(next);
    next = {0, next.row + next.rows, 0};
  }
  return pieces;
}

std::int32_t TokenDispatch::entry(int source, std::size_t piece) const {
  return static_cast<std::int32_t>(source * most_pieces_ + static_cast<std::int64_t>(piece));
}

/// First row that a rank packs for an expert.
std::int64_t TokenDispatch::first_packed(int source, int expert) const {
  std::int64_t row = 0;
  for (int before = 0; before < expert; ++before) row += routing_.count(source, before);
  return row;
}

/// First row of those that a rank holds for a source: packed ones of its own, or where those of another rank
/// are stored. Workers store rows of a routing of the host elsewhere, by expert.
std::int64_t TokenDispatch::first_row(int dest, int source) const {
  if (slots_) return source * routing_.count_to_rank(source, dest);
  if (source == dest) return first_packed(dest, dest * routing_.experts_per_rank());
  std::int64_t row = routing_.rows(dest);
  for (int before = 0; before < source; ++before)
    if (before != dest) row += routing_.count_to_rank(before, dest);
  return row;
}

/// Grid of a pass over the tokens that a rank routes. Slots for one rank are consecutive, so that a pass for
/// it has those only.
TileGrid TokenDispatch::blocks(int rank) const {
  const bool some = slots_ != nullptr && !before_product();
  return build_.row_blocks(some ? routing_.count_to_rank(rank, 0) : routing_.rows(rank), p_.k);
}

std::int32_t TokenDispatch::lane(int rank) const {
  return build_.helpers() > 0 ? build_.helper_lane(rank, "push") : compute_lane;
}

void TokenDispatch::move(const Handshake& handshake, int rank) const {
  if (by_engine())
    move_by_engine(handshake, rank);
  else if (before_product())
    move_before_product(handshake, rank);
  else
    move_by_rank(handshake, rank);
}

void TokenDispatch::move_by_engine(const Handshake& handshake, int rank) const {
  const int experts = routing_.experts_per_rank();
  build_.step(rank, compute_lane,
              pack(routing_, rank, blocks(rank), rows_of_tokens(p_, rank, build_.all(build_.a, rank)),
                   build_.rows(rows_, rank, 0, routing_.rows(rank))));
  if (routing_.rows(rank) == routing_.count_to_rank(rank, rank)) return;
  const std::int32_t lane = build_.lane(rank, LaneKind::copy, "copy");
  hand_over(build_, rank, packed_, compute_lane, lane);
  // All at once, because a wait between two copies makes the engine pause. A rank that gets nothing from this
  // one is not awaited: nothing would make it wait in turn.
  for (int dest = 0; dest < p_.world; ++dest)
    if (dest != rank && routing_.count_to_rank(rank, dest) > 0) handshake.await(build_, rank, lane, dest);
  for (int i = 1; i < p_.world; ++i) {
    const int dest = (rank - i + p_.world) % p_.world;
    const std::int64_t from = first_packed(rank, dest * experts), to = first_row(dest, rank);
    std::size_t number = 0;
    for (const Piece& piece : pieces(rank, dest)) {
      build_.step(rank, lane,
                  Copy{build_.rows(rows_, rank, from + piece.row, piece.rows),
                       build_.rows(rows_, dest, to + piece.row, piece.rows)});
      build_.step(rank, lane, Notify{{arrived_, dest, entry(rank, number++)}, 1});
    }
  }
}

/// All workers store the own tokens before the product, which begins with them. Helpers push those of other
/// ranks beside the product.
void TokenDispatch::move_by_rank(const Handshake& handshake, int rank) const {
  const std::int32_t lane = this->lane(rank);
  if (routing_.count_to_rank(rank, rank) > 0)
    build_.step(rank, compute_lane, push(rank, rank, build_.workers() - build_.helpers()));
  for (int i = 1; i < p_.world; ++i) {
    const int to = (rank - i + p_.world) % p_.world;
    if (routing_.count_to_rank(rank, to) == 0) continue;
    if (slots_ == nullptr) handshake.await(build_, rank, lane, to);
    build_.step(rank, lane, push(rank, to, build_.helpers()));
  }
}

/// All workers push all tokens in one pass.
void TokenDispatch::move_before_product(const Handshake& handshake, int rank) const {
  if (slots_ == nullptr) handshake.await_all(build_, rank, compute_lane);
  build_.step(rank, compute_lane, push(rank, to_all, build_.workers()));
}

/// Where a rank's tokens for the experts of rank `to`, or of all ranks, are stored.
Placement TokenDispatch::place(int rank, int to) const {
  const Slice rows = build_.all(rows_, to == to_all ? rank : to);
  if (slots_) {
    const std::int64_t each = routing_.count_to_rank(rank, rank);  // equal for all ranks
    if (to != to_all) return Builder::in_place(build_.rows(rows_, to, rank * each, each));
    const std::int64_t held = p_.world * each;
    return {rows, placement::Owners{{p_.world, each, each, held, rank * each, p_.world * held}}};
  }
  placement::Routed store{rank};
  store.one_rank = to != to_all;
  for (int expert = 0; expert < routing_.experts(); ++expert)
    store.bases.push_back(routing_.receive_base(expert, rank));
  return {rows, std::move(store)};
}

Elementwise TokenDispatch::push(int rank, int to, std::int32_t workers) const {
  Elementwise pass;
  pass.grid = blocks(rank);
  pass.from.push_back(slots_ && to == to_all ? slots_->tokens(rank)
                      : slots_               ? slots_->tokens(rank, to)
                                             : rows_of_tokens(p_, rank, build_.all(build_.a, rank)));
  pass.to = place(rank, to);
  std::vector<std::int32_t> told;
  for (int i = 1; i < p_.world; ++i) {
    const int peer = (rank + i) % p_.world;
    if (to == to_all || to == peer) told.push_back(peer);
  }
  if (!told.empty()) pass.notify.push_back({arrived_, std::move(told), {pass.grid.positions()}, {rank}});
  pass.resources = {1, workers};
  return pass;
}

void TokenDispatch::feed(const Machine& machine, Gemm product) const {
  const int rank = product.a.rank;
  if (!before_product()) return build_.step(rank, compute_lane, feed_by_source(machine, std::move(product)));
  for (int i = 1; i < p_.world; ++i) {
    const int source = (rank + i) % p_.world;
    if (const std::int64_t tiles = blocks(source).tiles(); tiles > 0)
      build_.await(rank, compute_lane, arrived_, entry(source, 0), static_cast<std::uint32_t>(tiles));
  }
  build_.step(rank, compute_lane, feed_all(machine, std::move(product)));
}

/// Rows of an expert follow each other, so that its weight is read once.
Gemm TokenDispatch::feed_all(const Machine& machine, Gemm product) const {
  const int rank = product.a.rank;
  if (slots_) product.live = slots_->live(rank);
  std::vector<RowGroup> groups = slots_ ? groups_by_source(routing_, rank) : groups_by_expert(routing_, rank);
  std::ranges::stable_sort(groups, {}, &RowGroup::weight);
  return grouped(build_, machine, build_.params().tile, std::move(product), rows_, std::move(groups));
}

Gemm TokenDispatch::feed_by_source(const Machine& machine, Gemm product) const {
  const int rank = product.a.rank, experts = routing_.experts_per_rank();
  std::vector<RowGroup> groups;
  std::vector<std::int32_t> awaited;  // by group: an entry of `arrived`
  for (int i = 0; i < p_.world; ++i) {
    const int source = (rank + i) % p_.world;
    const std::vector<Piece> sent = by_engine() ? pieces(source, rank) : std::vector<Piece>{{experts}};
    std::int64_t row = first_row(rank, source);
    std::size_t piece = 0;
    for (int weight = 0; weight < experts; ++weight) {
      const int expert = rank * experts + weight;
      const std::int64_t rows = routing_.count(source, expert),
                         by_expert = routing_.receive_base(expert, source);
      if (rows == 0) continue;
      while (sent[piece].end <= weight) ++piece;
      groups.push_back({by_engine() || slots_ ? row : by_expert, by_expert, rows, weight,
                        live_element(routing_, rank, source, weight)});
      awaited.push_back(entry(source, piece));
      row += rows;
    }
  }
  product = grouped(build_, machine, build_.params().tile, std::move(product), rows_, std::move(groups));
  PositionRuns runs = runs_by(product, awaited);
  TileGate gate{arrived_, std::move(runs.ends), {}, std::move(runs.keys)};
  for (const std::int32_t entry : gate.entries) {
    const int source = static_cast<int>(entry / most_pieces_);
    gate.targets.push_back(source == rank ? 0
                           : by_engine()  ? 1
                                          : static_cast<std::uint32_t>(blocks(source).tiles()));
  }
  if (!gate.ends.empty()) product.gates.push_back(std::move(gate));
  if (slots_) product.live = slots_->live(rank);
  product.resources = {1, build_.workers() - build_.helpers()};
  return product;
}

}  // namespace shingle::planner
