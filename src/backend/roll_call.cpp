// Roll call of a star: after a wait has passed its deadline, every process names the same silent ranks.
#include <fmt/format.h>
#include <poll.h>

#include "shingle/base/error.hpp"
#include "star.hpp"

namespace shingle {

using net::Clock;
using net::Kind;

std::vector<int> Star::silent(std::string_view reason, double timeout_us) {
  broadcast(Kind::summons, reason.substr(0, most_reason));
  const auto deadline = net::deadline_in(timeout_us);
  if (rank_ != 0) return await_word_of_first(deadline + grace) ? std::vector<int>{} : std::vector<int>{0};
  // Any bytes count as an answer, and so does a connection that ended: the process is not stopped.
  std::vector<int> waiting;
  for (int rank = 1; rank < size_; ++rank) waiting.push_back(rank);
  do {
    std::vector<pollfd> polled;
    for (const int rank : waiting) polled.push_back({peer(rank).fd(), POLLIN, 0});
    ::poll(polled.data(), polled.size(), net::milliseconds_until(deadline));
    std::size_t i = 0;
    std::erase_if(waiting, [&](int) { return polled[i++].revents != 0; });
  } while (!waiting.empty() && Clock::now() < deadline);
  return waiting;
}

/// Answers a summons, and throws Timeout with the reason and the silent ranks.
void Star::answer(const std::string& reason) {
  const std::string text = reason + who_are_silent(silent(reason, roll_call_us));
  tell(text);  // here, not in the caller: other ranks wait for it
  throw Timeout(text);
}

/// Throws Timeout with rank 0's result. Returns false if rank 0 sends none before the deadline.
bool Star::await_word_of_first(Clock::time_point deadline) {
  while (Clock::now() < deadline) {
    net::Frame frame;
    try {
      frame = peer(0).receive(most_reason, deadline);
    } catch (const net::Late&) {
      return false;
    } catch (const net::Broken& error) {
      throw Timeout(fmt::format("rank 0 sent what makes no sense: {}", error.what()));
    } catch (const net::NetError&) {
      throw Timeout("rank 0 is gone: its connection ended");
    }
    if (frame.kind == Kind::failure) throw Timeout(frame.payload);
    if (frame.kind == Kind::goodbye) throw Timeout("rank 0 has left the world");
    if (frame.kind == Kind::summons) broadcast(Kind::summons, {});  // rank 0 counts who answers
  }
  return false;
}

}  // namespace shingle
