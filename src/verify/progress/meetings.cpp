#include "meetings.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shingle/plan/print.hpp"

namespace shingle {

Meetings::Meetings(const Plan& plan)
    : plan_(plan),
      calls_(plan.communicators.size()),
      entered_(plan.communicators.size(), std::vector<std::size_t>(plan.world(), 0)) {}

std::vector<std::int32_t> Meetings::enter(std::int32_t communicator, std::int32_t rank, std::int32_t segment,
                                          const std::vector<Segment>& segments) {
  auto& calls = calls_[communicator];
  const std::size_t call = entered_[communicator][rank]++;
  if (call == calls.size()) calls.emplace_back();
  calls[call].push_back(segment);
  const auto& ranks = plan_.communicators[communicator].ranks;
  if (calls[call].size() < ranks.size()) return {};
  const auto place = [&](std::int32_t s) { return std::find(ranks.begin(), ranks.end(), segments[s].rank); };
  std::sort(calls[call].begin(), calls[call].end(), [&](auto a, auto b) { return place(a) < place(b); });
  complete_.insert(calls[call].begin(), calls[call].end());
  return calls[call];
}

std::vector<std::int32_t> Meetings::missing(std::int32_t communicator, std::int32_t rank) const {
  const auto& entered = entered_[communicator];
  std::vector<std::int32_t> missing;
  for (const std::int32_t other : plan_.communicators[communicator].ranks)
    if (entered[other] < entered[rank]) missing.push_back(other);
  return missing;
}

std::string Meetings::mismatch(std::int32_t communicator, const std::vector<std::int32_t>& call,
                               const std::vector<Segment>& segments) const {
  const auto collective_of = [&](std::int32_t s) -> const Collective& {
    return std::get<Collective>(step_of(plan_, segments[s]));
  };
  const Collective& first = collective_of(call[0]);
  for (std::size_t i = 0; i < call.size(); ++i) {
    const Collective& other = collective_of(call[i]);
    bool fits = other.kind == first.kind && other.send.cols == first.send.cols &&
                other.recv.cols == first.recv.cols &&
                plan_.buffers[other.send.buffer].dtype == plan_.buffers[first.send.buffer].dtype;
    if (first.kind == CollectiveKind::alltoall) {
      for (std::size_t j = 0; fits && j < call.size(); ++j) {
        const Collective& to = collective_of(call[j]);
        fits = to.kind == first.kind && other.send_rows[j] == to.recv_rows[i];
      }
    } else {
      fits = fits && other.send.rows == first.send.rows && other.recv.rows == first.recv.rows;
    }
    if (fits) continue;
    const Segment &a = segments[call[0]], &b = segments[call[i]];
    return fmt::format("communicator {}: {} meets {}, but they differ: {} against {}",
                       plan_.communicators[communicator].name, where(plan_, a.rank, a.lane, a.step),
                       where(plan_, b.rank, b.lane, b.step), describe(plan_, step_of(plan_, a)),
                       describe(plan_, step_of(plan_, b)));
  }
  return {};
}

std::vector<Event> Meetings::post(const Exchange& exchange, std::int32_t rank, std::int32_t segment) {
  unmatched_[segment] = exchange.sends.size() + exchange.receives.size();
  for (std::size_t i = 0; i < exchange.sends.size(); ++i)
    channel(exchange.communicator, rank, exchange.sends[i].peer)
        .sends.push_back({segment, static_cast<std::int32_t>(i)});
  for (std::size_t i = 0; i < exchange.receives.size(); ++i)
    channel(exchange.communicator, exchange.receives[i].peer, rank)
        .receives.push_back({segment, static_cast<std::int32_t>(i)});
  std::vector<Event> met;
  for (const auto& message : exchange.sends) match(channel(exchange.communicator, rank, message.peer), met);
  for (const auto& message : exchange.receives)
    match(channel(exchange.communicator, message.peer, rank), met);
  return met;
}

void Meetings::match(Channel& channel, std::vector<Event>& met) {
  while (channel.matched < std::min(channel.sends.size(), channel.receives.size())) {
    const Posted &send = channel.sends[channel.matched], &receive = channel.receives[channel.matched];
    ++channel.matched;
    met.push_back({EventKind::message, {send.segment, receive.segment}, send.index, receive.index});
    --unmatched_[send.segment];
    --unmatched_[receive.segment];
  }
}

}  // namespace shingle
