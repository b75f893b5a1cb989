// ring for allgather+attention: keys and values of other ranks arrive while attention to those before is
// computed (docs/mechanisms/ring-attention.md).
//
// In every turn a rank sends a piece of its K and V to the rank some places ahead, and receives one from the
// rank as many places behind. Attention to own keys hides the first message, and none follows the last part.
#include <optional>

#include "attention_parts.hpp"
#include "attention_transport.hpp"

namespace shingle::planner {

void attention_in_turns(RingBuilder& build) {
  const Timetable timetable(build);
  std::vector<PartialAttention> ranks;
  for (int r = 0; r < build.world(); ++r) ranks.emplace_back(build, timetable, r);
  const PartBuffers buffers = make_part_buffers(build, ranks);
  std::optional<DirectCopies> copies;
  std::unique_ptr<KeyTransport> transport;
  if (timetable.most_count() > 0)
    transport = by_copies(build) ? transport_by_copies(build, timetable, copies.emplace(build))
                                 : transport_by_messages(build, timetable);
  for (int r = 0; r < build.world(); ++r) {
    PartialAttention& attention = ranks[static_cast<std::size_t>(r)];
    const auto move = [&](std::int64_t turn) {
      if (transport && turn < timetable.turns()) transport->move(r, turn);
    };
    for (std::int64_t turn = 0; turn < KeyTransport::room; ++turn) move(turn);
    attention.attend_own(buffers);
    for (std::int64_t turn = 0; turn < timetable.turns(); ++turn) {
      const KeyPiece& piece = timetable.received(r, turn);
      if (!piece.empty()) {
        const std::int64_t n = timetable.before(r, turn);
        transport->await(r, n);
        attention.attend(buffers, piece.tokens, transport->keys(r, n), transport->values(r, n));
        transport->release(r, n);
      }
      move(turn + KeyTransport::room);
    }
    attention.finish(buffers);
  }
}

}  // namespace shingle::planner
