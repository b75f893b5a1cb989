#include "sliced_chunks.hpp"

#include <algorithm>
#include <utility>

namespace shingle::planner {

SlicedChunks::SlicedChunks(Builder& build, const Machine& machine, const TileParams& tile,
                           const std::vector<std::int64_t>& shares)
    : build_(build), p_(build.problem()), routing_(*p_.routing), machine_(machine), tile_(tile) {
  for (const std::int64_t share : shares) begins_.push_back(begins_.back() + share);
  const std::int64_t tokens = p_.world * p_.m, rows = routing_.received(0);
  if (p_.traits().before) {
    gathered_ = build.buffer("gathered", tokens, p_.k);
    sorted_ = build.buffer("sorted", rows, p_.k);
    arrived = build.counter("arrived", chunks());
  }
  if (p_.traits().chains()) hidden_ = build.buffer("hidden", rows, p_.inner);
  if (p_.has_slots()) {
    slots_.emplace(build);
    placed_ = build.counter("placed", 1);
  }
  if (!p_.traits().after) return;
  weights_ = build.typed_buffer("weights", DType::f32, tokens, p_.experts.topk);
  products_ = build.buffer("products", rows, p_.n);
  sums_ = build.buffer("sums", tokens, p_.n);
  parts_ = build.buffer("parts", tokens, p_.n);
  weights_arrived = build.counter("weights", 1);
  combined = build.counter("combined", chunks());
  returned_ = build.counter("returned", 1);
}

std::vector<SlicedChunks::Piece> SlicedChunks::pieces(int rank, int chunk) const {
  std::vector<Piece> found;
  for (int turn = 0; turn < p_.world; ++turn)
    if (const Piece piece = piece_of(after(rank, turn), turn, chunk); piece.rows > 0) found.push_back(piece);
  return found;
}

void SlicedChunks::begin(int rank) const {
  if (!slots_) return;
  slots_->assign(rank);
  const auto place = [&](std::int32_t matrix, std::int32_t parts) {
    build_.step(rank, compute_lane, build_.copy(build_.all(matrix, rank), at(parts, rank, all_of(rank))));
  };
  if (p_.traits().before) place(build_.a, gathered_);
  if (p_.traits().after) place(build_.topk_weights, weights_);
  hand_over(build_, rank, placed_, compute_lane, communicate_lane);
}

void SlicedChunks::gather(int rank) const {
  Messages first;
  if (slots_) add_slots(rank, first);
  for (int chunk = 0; p_.traits().before && chunk < chunks(); ++chunk) {
    if (!travels(chunk)) continue;
    exchange(rank, std::exchange(first, {}));
    Messages tokens;
    for (int turn = 1; turn < p_.world; ++turn) {
      const Piece own = piece_of(rank, turn, chunk), other = piece_of(after(rank, turn), turn, chunk);
      tokens.sends.push_back(
          {after(rank, p_.world - turn),
           slots_ ? at(gathered_, rank, own) : build_.rows(build_.a, rank, own.first, own.rows)});
      tokens.receives.push_back({other.source, at(gathered_, rank, other)});
    }
    exchange(rank, std::move(tokens));
    build_.notify(rank, communicate_lane, arrived, chunk);
  }
  if (!p_.traits().after) return;
  for (int turn = 1; turn < p_.world; ++turn) {
    const int source = after(rank, turn);
    first.sends.push_back({after(rank, p_.world - turn), slots_ ? at(weights_, rank, all_of(rank))
                                                                : build_.all(build_.topk_weights, rank)});
    first.receives.push_back({source, at(weights_, rank, all_of(source))});
  }
  exchange(rank, std::move(first));
  build_.notify(rank, communicate_lane, weights_arrived, 0);
}

void SlicedChunks::return_counts(int rank) const {
  if (slots_) slots_->return_counts(rank);
}

void SlicedChunks::give_back(int rank, int chunk) const {
  Messages messages;
  for (int turn = 1; turn < p_.world; ++turn) {
    const Piece other = piece_of(after(rank, turn), turn, chunk);
    const int holder = after(rank, p_.world - turn);
    messages.sends.push_back({other.source, at(sums_, rank, other)});
    messages.receives.push_back({holder, part_of(holder, piece_of(rank, turn, chunk))});
  }
  exchange(rank, std::move(messages));
}

std::vector<Elementwise> SlicedChunks::sort(int rank, const Piece& piece) const {
  const bool own = piece.source == rank;
  const Slice from = own ? build_.rows(build_.a, rank, piece.first, piece.rows) : at(gathered_, rank, piece),
              to = build_.all(sorted_, rank);
  if (piece.rows == tokens_of(p_, piece.source))
    return {sort_tokens(build_, slots(), piece.source, from, to)};
  std::vector<Elementwise> passes;
  for (std::int64_t choice = 0; choice < p_.experts.topk; ++choice)
    passes.push_back(sort_choice(build_, piece.source, piece.first, choice, from, to));
  return passes;
}

TurnProduct SlicedChunks::first_product(int rank, int first, int end) const {
  const auto in_place = [&](std::int32_t buffer) { return Builder::in_place(build_.all(buffer, rank)); };
  return in_turns(p_.traits().chains()
                      ? build_.up_gemm(rank, build_.one_tile(1, p_.inner), {}, in_place(hidden_))
                      : build_.gemm(rank, build_.one_tile(1), {}, in_place(build_.out)),
                  sorted_, TurnOf::last, first, end);
}

TurnProduct SlicedChunks::last_product(int rank, int first, int end) const {
  return in_turns(build_.gemm(rank, build_.one_tile(1), {}, Builder::in_place(build_.all(products_, rank))),
                  p_.traits().chains() ? hidden_ : build_.a, TurnOf::first, turn_of_last(end - 1),
                  turn_of_last(first) + 1);
}

Elementwise SlicedChunks::combine(int rank, const Piece& piece) const {
  const bool own = piece.source == rank;
  const Slice factors =
      own ? build_.rows(build_.topk_weights, rank, piece.first, piece.rows) : at(weights_, rank, piece);
  return combine_sorted(build_, slots(), piece.source, build_.all(products_, rank), factors,
                        at(own ? parts_ : sums_, rank, piece), piece.first);
}

std::vector<ExpertRows> SlicedChunks::rows_of(const Piece& piece) const {
  if (slots_) return {{routing_.global_base(piece.source), routing_.global_base(piece.source + 1)}};
  const std::int64_t tokens = tokens_of(p_, piece.source);
  std::vector<ExpertRows> rows;
  for (int expert = 0; expert < routing_.experts(); ++expert)
    for (std::int64_t choice = 0; choice < p_.experts.topk; ++choice) {
      const auto row = [&](std::int64_t token) {
        return routing_.receive_base(expert, piece.source) +
               routing_.count_before(piece.source, expert, choice * tokens + token);
      };
      const ExpertRows range{row(piece.first), row(piece.first + piece.rows)};
      if (range.first < range.end) rows.push_back(range);
    }
  return rows;
}

void SlicedChunks::sum(int rank) const {
  // Transfers run in order, so a wait for the last covers all.
  hand_over(build_, rank, returned_, communicate_lane, compute_lane);
  Elementwise pass;
  pass.grid = build_.row_blocks(tokens_of(p_, rank), p_.n);
  for (int holder = 0; holder < p_.world; ++holder)
    pass.from.push_back(Builder::in_place(part_of(holder, all_of(rank))));
  pass.to = Builder::in_place(build_.all(build_.out, rank));
  if (pass.grid.rows > 0) build_.step(rank, compute_lane, std::move(pass));
}

std::int64_t SlicedChunks::first_token(int source, int turn, int chunk) const {
  const std::int64_t all = begins_.back();
  const std::int64_t past = p_.world * begins_[static_cast<std::size_t>(chunk)] - turn * all;
  return std::clamp<std::int64_t>(past, 0, all) * tokens_of(p_, source) / all;
}

SlicedChunks::Piece SlicedChunks::piece_of(int source, int turn, int chunk) const {
  const std::int64_t first = first_token(source, turn, chunk);
  return {source, first, first_token(source, turn, chunk + 1) - first};
}

Slice SlicedChunks::at(std::int32_t buffer, int rank, const Piece& piece) const {
  return build_.rows(buffer, rank, piece.source * p_.m + piece.first, piece.rows);
}

Slice SlicedChunks::part_of(int holder, const Piece& piece) const {
  return build_.rows(parts_, piece.source, holder * p_.m + piece.first, piece.rows);
}

void SlicedChunks::add_slots(int rank, Messages& messages) const {
  for (int turn = 1; turn < p_.world; ++turn)
    for (const std::int32_t buffer : slots_->gathered()) {
      const int source = after(rank, turn);
      messages.sends.push_back({after(rank, p_.world - turn), planner::part_of(build_, buffer, rank, rank)});
      messages.receives.push_back({source, planner::part_of(build_, buffer, rank, source)});
    }
}

void SlicedChunks::exchange(int rank, Messages messages) const {
  auto& [sends, receives] = messages;
  const auto empty = [](const Exchange::Message& message) { return message.slice.rows == 0; };
  std::erase_if(sends, empty);
  std::erase_if(receives, empty);
  if (!sends.empty() || !receives.empty()) build_.exchange(rank, std::move(sends), std::move(receives));
}

TurnGroups SlicedChunks::groups(const Gemm& product, TurnOf of) const {
  const int rank = product.a.rank;
  if (!slots_)
    return groups_in_turn(routing_, rows_in_chunks(rank, of), unit_rows(machine_, tile_, product.epilogue),
                          of);
  std::vector<std::int32_t> turns(static_cast<std::size_t>(p_.world), 0);
  for (int chunk = 0; chunk < chunks(); ++chunk)
    for (const Piece& piece : pieces(rank, chunk))
      turns[static_cast<std::size_t>(piece.source)] = of == TurnOf::last ? chunk : turn_of_last(chunk);
  return slots_in_turn(build_, product, turns);
}

std::vector<TurnRows> SlicedChunks::rows_in_chunks(int rank, TurnOf of) const {
  std::vector<std::vector<TurnRows>> tokens(static_cast<std::size_t>(p_.world));  // of each source
  for (int chunk = 0; chunk < chunks(); ++chunk)
    for (const Piece& piece : pieces(rank, chunk))
      tokens[static_cast<std::size_t>(piece.source)].push_back(
          {piece.first + piece.rows, of == TurnOf::last ? chunk : turn_of_last(chunk)});
  std::vector<TurnRows> rows;
  for (int expert = 0; expert < routing_.experts(); ++expert)
    for (int source = 0; source < p_.world; ++source)
      for (std::int64_t choice = 0; choice < p_.experts.topk; ++choice)
        for (const TurnRows& until : tokens[static_cast<std::size_t>(source)])
          rows.push_back(
              {routing_.receive_base(expert, source) +
                   routing_.count_before(source, expert, choice * tokens_of(p_, source) + until.end),
               until.turn});
  return rows;
}

TurnProduct SlicedChunks::in_turns(Gemm product, std::int32_t a, TurnOf of, int first, int end) const {
  product.a = build_.all(a, product.a.rank);
  if (slots_) product.live = slots_->live(product.a.rank);
  const TurnGroups all = groups(product, of);
  const auto from = std::ranges::lower_bound(all.turns, first) - all.turns.begin(),
             to = std::ranges::lower_bound(all.turns, end) - all.turns.begin();
  if (from == to) return {std::move(product), {}};
  std::vector<RowGroup> some(all.groups.begin() + from, all.groups.begin() + to);
  return {grouped(build_, machine_, tile_, std::move(product), std::move(some)),
          {all.turns.begin() + from, all.turns.begin() + to}};
}

}  // namespace shingle::planner
