#include "gradient_transport.hpp"

#include <utility>

namespace shingle::planner {
namespace {

/// By rank, by turn: number of a rank's pieces that were sent before. The last entry counts all.
std::vector<std::vector<std::int64_t>> pieces_sent_before(const Timetable& timetable, int world) {
  std::vector<std::vector<std::int64_t>> before(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    std::int64_t count = 0;
    auto& of_rank = before[static_cast<std::size_t>(rank)];
    for (std::int64_t turn = 0; turn < timetable.turns(); ++turn) {
      of_rank.push_back(count);
      if (!timetable.sent(rank, turn).empty()) ++count;
    }
    of_rank.push_back(count);
  }
  return before;
}

/// Messages of the communicate lane.
class GradientMessages final : public GradientTransport {
 public:
  GradientMessages(RingBuilder& build, const Timetable& timetable)
      : GradientTransport(build, timetable, CounterKind::add),
        summed_(build.counter("summed", timetable.turns())) {}

  void move(int rank, std::int64_t turn) override {
    const KeyPiece &computed = timetable_.received(rank, turn), &own = timetable_.sent(rank, turn);
    const std::int64_t n = timetable_.before(rank, turn), arrival = before(rank, turn);
    std::vector<Exchange::Message> sends, receives;
    if (!computed.empty())
      for (const Slice& part : {keys(rank, n), values(rank, n)})
        sends.push_back({timetable_.sender(rank, turn), part});
    if (!own.empty())
      for (const Slice& place : {arrived_keys(rank, arrival, own.tokens.count()),
                                 arrived_values(rank, arrival, own.tokens.count())})
        receives.push_back({timetable_.receiver(rank, turn), place});
    if (sends.empty() && receives.empty()) return;
    if (!computed.empty()) build_.await(rank, communicate_lane, computed_, n);
    if (!own.empty() && arrival >= slots) build_.await(rank, communicate_lane, summed_, arrival - slots);
    build_.exchange(rank, std::move(sends), std::move(receives));
    if (!computed.empty() && has_next_piece(rank, n)) build_.notify(rank, communicate_lane, sent_, n);
    if (!own.empty()) build_.notify(rank, communicate_lane, returned_, arrival);
  }

  void release(int rank, std::int64_t arrival) override {
    if (has_next_arrival(rank, arrival)) build_.notify(rank, compute_lane, summed_, arrival);
  }

 private:
  std::int32_t summed_;  // counter, by arrival
};

/// Copies by the rank that computed the parts.
class GradientCopies final : public GradientTransport {
 public:
  GradientCopies(RingBuilder& build, const Timetable& timetable, DirectCopies& copies)
      : GradientTransport(build, timetable, DirectCopies::counts(build)),
        summed_(build.counter("summed", timetable.turns())),
        copies_(copies) {}

  void move(int rank, std::int64_t turn) override {
    const KeyPiece& computed = timetable_.received(rank, turn);
    if (computed.empty()) return;
    const int owner = timetable_.sender(rank, turn);
    const std::int64_t n = timetable_.before(rank, turn), arrival = before(owner, turn);
    const std::int64_t rows = computed.tokens.count();
    const std::int32_t lane = copies_.begin(rank, turn, owner);
    build_.await(rank, lane, computed_, n);
    if (arrival >= slots) build_.await(rank, lane, summed_, turn);
    copies_.copy(rank, lane, keys(rank, n), arrived_keys(owner, arrival, rows));
    copies_.copy(rank, lane, values(rank, n), arrived_values(owner, arrival, rows));
    build_.notify_peer(rank, lane, returned_, owner, arrival);
    if (has_next_piece(rank, n)) build_.notify(rank, lane, sent_, n);
  }

  void release(int rank, std::int64_t arrival) override {
    if (!has_next_arrival(rank, arrival)) return;
    std::int64_t turn = 0;  // of the arrival that takes the place
    while (before(rank, turn + 1) <= arrival + slots) ++turn;
    copies_.notify_from_compute(rank, summed_, timetable_.receiver(rank, turn), turn);
  }

 private:
  std::int32_t summed_;  // counter, by turn: the owner has room
  DirectCopies& copies_;
};

}  // namespace

GradientTransport::GradientTransport(RingBuilder& build, const Timetable& timetable, CounterKind kind)
    : build_(build),
      timetable_(timetable),
      before_(pieces_sent_before(timetable, build.world())),
      computed_(build.counter("computed", timetable.most_count())),
      sent_(build.counter("sent", timetable.most_count(), kind)),
      returned_(build.counter("returned", most_arrivals(), kind)),
      keys_out_(build.buffer("keys_grad_sent", room * timetable.longest(), build.problem().kv_cols())),
      values_out_(build.buffer("values_grad_sent", room * timetable.longest(), build.problem().kv_cols())),
      keys_in_(build.buffer("keys_grad_received", slots * timetable.longest(), build.problem().kv_cols())),
      values_in_(
          build.buffer("values_grad_received", slots * timetable.longest(), build.problem().kv_cols())) {}

std::int64_t GradientTransport::most_arrivals() const {
  std::int64_t most = 0;
  for (const auto& of_rank : before_) most = larger(most, of_rank.back());
  return most;
}

std::unique_ptr<GradientTransport> gradients_by_messages(RingBuilder& build, const Timetable& timetable) {
  return std::make_unique<GradientMessages>(build, timetable);
}

std::unique_ptr<GradientTransport> gradients_by_copies(RingBuilder& build, const Timetable& timetable,
                                                       DirectCopies& copies) {
  return std::make_unique<GradientCopies>(build, timetable, copies);
}

}  // namespace shingle::planner
