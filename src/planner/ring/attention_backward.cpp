// ring for attention-backward: keys and values travel as in allgather+attention, and parts of their gradients
// go back to their owners while the next piece is worked on (docs/mechanisms/ring-attention.md).
//
// Backward to some of the own keys hides the first message of keys, and that to the others the last message
// of gradients.
#include <optional>

#include "attention_gradients.hpp"

namespace shingle::planner {
namespace {

/// The arrivals at a rank: adds them to sums and makes room, in time for the next ones.
class Arrivals {
 public:
  Arrivals(const Timetable& timetable, GradientTransport& transport, RankGradients& gradients, int rank)
      : timetable_(timetable), transport_(transport), gradients_(gradients), rank_(rank) {}

  /// Appends sums behind the backward of a turn, if arrivals of earlier turns take the room of later ones.
  /// Then at most one of them is left, and a turn brings at most one.
  void make_room(std::int64_t turn) {
    const std::int64_t ready = transport_.before(rank_, turn), first = taken_;
    if (ready - taken_ < 2 || taken_ + GradientTransport::slots >= transport_.count(rank_)) return;
    take(ready);
    gradients_.fold_keys();
    for (std::int64_t arrival = first; arrival < ready; ++arrival) transport_.release(rank_, arrival);
  }
  void take_rest() { take(transport_.count(rank_)); }

 private:
  /// Takes arrivals before the one of this number.
  void take(std::int64_t end) {
    for (; taken_ < end; ++turn_) {
      const KeyPiece& own = timetable_.sent(rank_, turn_);
      if (own.empty()) continue;
      const std::int64_t rows = own.tokens.count();
      transport_.await_arrival(rank_, taken_);
      gradients_.take(timetable_.receiver(rank_, turn_), own.tokens,
                      transport_.arrived_keys(rank_, taken_, rows),
                      transport_.arrived_values(rank_, taken_, rows));
      ++taken_;
    }
  }

  const Timetable& timetable_;
  GradientTransport& transport_;
  RankGradients& gradients_;
  int rank_;
  std::int64_t taken_ = 0, turn_ = 0;  // number of arrivals, and the turn of the next
};

}  // namespace

void attention_backward_in_turns(RingBuilder& build) {
  const Timetable timetable(build);
  std::vector<RankGradients> ranks;
  for (int r = 0; r < build.world(); ++r) ranks.emplace_back(build, timetable, r);
  const GradientBuffers buffers = make_gradient_buffers(build, timetable, ranks);
  std::optional<DirectCopies> copies;
  std::unique_ptr<KeyTransport> keys;
  std::unique_ptr<GradientTransport> parts;
  if (timetable.most_count() > 0 && by_copies(build)) {
    keys = transport_by_copies(build, timetable, copies.emplace(build));
    parts = gradients_by_copies(build, timetable, *copies);
  } else if (timetable.most_count() > 0) {
    keys = transport_by_messages(build, timetable);
    parts = gradients_by_messages(build, timetable);
  }
  for (int r = 0; r < build.world(); ++r) {
    RankGradients& gradients = ranks[static_cast<std::size_t>(r)];
    gradients.use(buffers);
    std::optional<Arrivals> arrivals;
    if (parts) arrivals.emplace(timetable, *parts, gradients, r);
    const auto move_keys = [&](std::int64_t turn) {
      if (keys && turn < timetable.turns()) keys->move(r, turn);
    };
    for (std::int64_t turn = 0; turn < KeyTransport::room; ++turn) move_keys(turn);
    gradients.attend_own(true);
    for (std::int64_t turn = 0; parts && turn < timetable.turns(); ++turn) {
      const KeyPiece& piece = timetable.received(r, turn);
      if (!piece.empty()) {
        const std::int64_t n = timetable.before(r, turn);
        keys->await(r, n);
        parts->await_room(r, n);
        gradients.attend(piece.tokens, keys->keys(r, n), keys->values(r, n), parts->keys(r, n),
                         parts->values(r, n));
        keys->release(r, n);
        parts->notify_computed(r, n);
      }
      move_keys(turn + KeyTransport::room);
      parts->move(r, turn);
      arrivals->make_room(turn);
    }
    gradients.attend_own(false);
    gradients.finish_queries();
    if (arrivals) arrivals->take_rest();
    gradients.finish_keys();
  }
}

}  // namespace shingle::planner
