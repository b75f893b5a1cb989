#include "attention_cut.hpp"

#include <algorithm>

namespace shingle::planner {
namespace {

/// The pieces of a rank's keys and values.
std::vector<KeyPiece> pieces_of(const Problem& p, int rank, std::int64_t slices) {
  std::vector<KeyPiece> pieces;
  for (const GlobalRun& run : p.a_runs(rank)) {
    const std::int64_t count = smaller(slices, run.rows);
    for (std::int64_t s = 0; s < count; ++s) {
      const std::int64_t first = chunk_begin(run.rows, count, s), end = chunk_begin(run.rows, count, s + 1);
      pieces.push_back({rank, run.local_row + first, {run.global_row + first, run.global_row + end}});
    }
  }
  return pieces;
}

/// From the first to the last token of a piece that a query of a rank sees.
KeyPiece seen_part(const Problem& p, KeyPiece piece, int rank) {
  TokenRange seen{piece.tokens.end, piece.tokens.first};
  for (const GlobalRun& run : p.a_runs(rank)) {
    const TokenRange queries = common(p.seeing(piece.tokens), {run.global_row, run.global_row + run.rows});
    const TokenRange keys = common(p.seen_by(queries.first, queries.count()), piece.tokens);
    if (queries.empty() || keys.empty()) continue;
    seen = {smaller(seen.first, keys.first), larger(seen.end, keys.end)};
  }
  piece.row += seen.first - piece.tokens.first;
  piece.tokens = seen;
  return piece;
}

}  // namespace

Timetable::Timetable(const RingBuilder& build)
    : world_(build.world()),
      arrivals_(static_cast<std::size_t>(world_)),
      received_in_(static_cast<std::size_t>(world_)) {
  const Problem& p = build.problem();
  std::vector<std::vector<KeyPiece>> pieces;
  for (int rank = 0; rank < world_; ++rank) {
    pieces.push_back(pieces_of(p, rank, build.params().slices));
    pieces_ = larger(pieces_, static_cast<std::int64_t>(pieces.back().size()));
  }
  for (int rank = 0; rank < world_; ++rank)
    for (std::int64_t turn = 0; turn < turns(); ++turn) {
      const auto& held = pieces[static_cast<std::size_t>(sender(rank, turn))];
      const auto number = static_cast<std::size_t>(turn % pieces_);
      const KeyPiece piece = number < held.size() ? seen_part(p, held[number], rank) : KeyPiece{};
      arrivals_[static_cast<std::size_t>(rank)].push_back({piece, count(rank)});
      if (piece.empty()) continue;
      received_in_[static_cast<std::size_t>(rank)].push_back(turn);
      longest_ = larger(longest_, piece.tokens.count());
    }
}

std::int64_t Timetable::most_count() const {
  std::int64_t most = 0;
  for (int rank = 0; rank < world_; ++rank) most = larger(most, count(rank));
  return most;
}

}  // namespace shingle::planner
