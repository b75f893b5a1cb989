// Roll call of a star: after a wait has passed its deadline, every process names the same silent ranks.
#include <fmt/format.h>

#include "shingle/base/error.hpp"
#include "star.hpp"

namespace shingle {

using net::Clock;
using net::Kind;

std::vector<int> Star::silent(std::string_view reason, double timeout_us) {
  broadcast(Kind::summons, reason.substr(0, most_reason));
  const auto deadline = net::deadline_in(timeout_us);
  if (rank_ != 0) {
    await_word_of_first(deadline + grace);
    return {0};
  }
  std::vector<int> waiting = others();
  for (;;) {
    std::erase_if(waiting, [&](int rank) { return has_answered(rank); });
    if (waiting.empty() || Clock::now() >= deadline) return waiting;
    await_any(waiting, deadline);
  }
}

/// Returns true if a rank has sent more than data, or has closed its connection. Its process is then not
/// stopped. Data alone proves nothing, because it may be older than the summons.
bool Star::has_answered(int rank) {
  try {
    for (;;) {
      const auto frame = peer(rank).try_receive(most_frame_);
      if (!frame) return false;
      if (frame->kind != Kind::data) return true;
    }
  } catch (const net::NetError&) {
    return true;
  }
}

/// Answers a summons, then throws Timeout with the reason and the silent ranks.
void Star::answer(const std::string& reason) {
  const std::string text = reason + who_are_silent(silent(reason, roll_call_us));
  tell(text);  // here, not in the caller: other ranks wait for it
  throw Timeout(text);
}

/// Throws Timeout with rank 0's result. Returns if rank 0 sends none before the deadline.
void Star::await_word_of_first(Clock::time_point deadline) {
  while (Clock::now() < deadline) {
    net::Frame frame;
    try {
      frame = peer(0).receive(most_frame_, deadline);
    } catch (const net::Late&) {
      return;
    } catch (const net::Broken& error) {
      throw Timeout(fmt::format("rank 0 sent a malformed message: {}", error.what()));
    } catch (const net::NetError&) {
      throw Timeout("rank 0 is gone: its connection ended");
    }
    if (frame.kind == Kind::failure) throw Timeout(frame.payload);
    if (frame.kind == Kind::goodbye) throw Timeout("rank 0 has left the world");
    if (frame.kind == Kind::summons) broadcast(Kind::summons, {});  // rank 0 counts the answers
  }
}

}  // namespace shingle
