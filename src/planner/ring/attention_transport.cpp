#include "attention_transport.hpp"

#include <utility>

namespace shingle::planner {
namespace {

/// Messages of the communicate lane.
class Messages final : public KeyTransport {
 public:
  Messages(RingBuilder& build, const Timetable& timetable)
      : KeyTransport(build, timetable, CounterKind::add),
        attended_(build.counter("attended", timetable.most_count())) {}

  void move(int rank, std::int64_t turn) override {
    const KeyPiece &sent = timetable_.sent(rank, turn), &received = timetable_.received(rank, turn);
    const std::int64_t n = timetable_.before(rank, turn);
    std::vector<Exchange::Message> sends, receives;
    if (!sent.empty())
      for (const std::int32_t buffer : {build_.keys, build_.values})
        sends.push_back({timetable_.receiver(rank, turn), owned(buffer, sent)});
    if (!received.empty())
      for (const Slice& place : {keys(rank, n), values(rank, n)})
        receives.push_back({timetable_.sender(rank, turn), place});
    if (sends.empty() && receives.empty()) return;
    if (!received.empty() && n >= room) build_.await(rank, communicate_lane, attended_, n - room);
    build_.exchange(rank, std::move(sends), std::move(receives));
    if (!received.empty()) build_.notify(rank, communicate_lane, arrived_, n);
  }

  void release(int rank, std::int64_t n) override {
    if (has_next(rank, n)) build_.notify(rank, compute_lane, attended_, n);
  }

 private:
  std::int32_t attended_;  // counter, by piece
};

/// Copies by the sender, from the user's K and V.
class Copies final : public KeyTransport {
 public:
  Copies(RingBuilder& build, const Timetable& timetable, DirectCopies& copies)
      : KeyTransport(build, timetable, DirectCopies::counts(build)),
        freed_(build.counter("freed", timetable.turns())),
        copies_(copies) {}

  void move(int rank, std::int64_t turn) override {
    const KeyPiece& sent = timetable_.sent(rank, turn);
    if (sent.empty()) return;
    const int peer = timetable_.receiver(rank, turn);
    const std::int64_t n = timetable_.before(peer, turn);
    const std::int32_t lane = copies_.begin(rank, turn, peer);
    if (n >= room) build_.await(rank, lane, freed_, turn);
    copies_.copy(rank, lane, owned(build_.keys, sent), keys(peer, n));
    copies_.copy(rank, lane, owned(build_.values, sent), values(peer, n));
    build_.notify_peer(rank, lane, arrived_, peer, n);
  }

  void release(int rank, std::int64_t n) override {
    if (!has_next(rank, n)) return;
    const std::int64_t next = timetable_.turn(rank, n + room);
    copies_.notify_from_compute(rank, freed_, timetable_.sender(rank, next), next);
  }

 private:
  std::int32_t freed_;  // counter, by turn: the receiver has room
  DirectCopies& copies_;
};

}  // namespace

KeyTransport::KeyTransport(RingBuilder& build, const Timetable& timetable, CounterKind kind)
    : build_(build),
      timetable_(timetable),
      arrived_(build.counter("arrived", timetable.most_count(), kind)),
      keys_(build.buffer("keys_received", room * timetable.longest(), build.problem().kv_cols())),
      values_(build.buffer("values_received", room * timetable.longest(), build.problem().kv_cols())) {}

std::unique_ptr<KeyTransport> transport_by_messages(RingBuilder& build, const Timetable& timetable) {
  return std::make_unique<Messages>(build, timetable);
}

std::unique_ptr<KeyTransport> transport_by_copies(RingBuilder& build, const Timetable& timetable,
                                                  DirectCopies& copies) {
  return std::make_unique<Copies>(build, timetable, copies);
}

}  // namespace shingle::planner
