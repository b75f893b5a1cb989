// Collectives: ranks meet, take workers and links, and go on together.
#include <algorithm>
#include <utility>

#include "simulation.hpp"

namespace shingle::sim {
namespace {

/// Bytes of a collective on one rank, as the curves count them.
double counted_bytes(const Costs& costs, const Collective& step, std::size_t index) {
  if (step.kind == CollectiveKind::allgather) return costs.bytes_of(step.recv);
  const double sent = costs.bytes_of(step.send);
  if (step.kind != CollectiveKind::alltoall) return sent;
  // The bytes on the wire decide: they are scaled to an even exchange, in which each rank keeps its own part.
  const auto others = [&](const Slice& slice, const std::vector<std::int64_t>& rows) {
    const double row = slice.rows > 0 ? costs.bytes_of(slice) / static_cast<double>(slice.rows) : 0;
    std::int64_t moved = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) moved += i == index ? 0 : rows[i];
    return static_cast<double>(moved) * row;
  };
  const auto ranks = static_cast<double>(step.send_rows.size());
  const double wire = std::max(others(step.send, step.send_rows), others(step.recv, step.recv_rows));
  return ranks > 1 ? wire * ranks / (ranks - 1) : sent;
}

double chunk_bytes(const Collective& step) {
  return static_cast<double>(step.config.chunk_bytes);
}

}  // namespace

bool Simulation::collective(LaneState& lane, const Collective& step) {
  if (lane.met) {
    lane.met = false;
    return true;
  }
  const auto c = static_cast<std::size_t>(step.communicator);
  const std::size_t call = entered_[c][static_cast<std::size_t>(lane.rank)]++;
  if (call == calls_[c].size()) {
    calls_[c].push_back(static_cast<Index>(meetings_.size()));
    meetings_.emplace_back();
    meetings_.back().step = &step;
  }
  Meeting& meeting = meetings_[static_cast<std::size_t>(calls_[c][call])];
  const auto& ranks = plan_.communicators[c].ranks;
  const auto index = static_cast<std::size_t>(std::ranges::find(ranks, lane.rank) - ranks.begin());
  meeting.bytes = std::max(meeting.bytes, counted_bytes(costs_, step, index));
  meeting.workers = std::max(meeting.workers, step.resources.least);
  meeting.lanes.push_back(lane_index(lane.rank, lane.lane));
  if (meeting.lanes.size() == std::min(ranks.size(), plan_.ranks.size())) {
    meeting.cause = lane.cause;
    for (const Index other : meeting.lanes)
      meeting.wanting.push_back(lanes_[static_cast<std::size_t>(other)].rank);
    ready_.push_back(calls_[c][call]);
    begin_meetings();
  }
  return false;
}

/// Begins collectives that all ranks have entered. Each collective takes its workers rank by rank as they
/// become free, in order. It begins when it has the workers of all ranks.
void Simulation::begin_meetings() {
  for (std::size_t i = 0; i < ready_.size();) {
    const Index index = ready_[i];
    Meeting& meeting = meetings_[static_cast<std::size_t>(index)];
    const std::int32_t workers = std::min(meeting.workers, capacity_);
    std::erase_if(meeting.wanting, [&](Index rank) {
      auto& free = free_[static_cast<std::size_t>(rank)];
      if (free < workers) return false;
      free -= workers;
      return true;
    });
    if (!meeting.wanting.empty()) {
      ++i;
      continue;
    }
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(i));
    running_.push_back(index);
    begin(meeting);
    retime(index);
    share_links();
  }
}

/// True if the lane's previous step is a collective too.
bool Simulation::follows_another(Index index) const {
  const LaneState& lane = lanes_[static_cast<std::size_t>(index)];
  return lane.step > 0 && std::holds_alternative<Collective>(lane_plan(lane).steps[lane.step - 1]);
}

void Simulation::begin(Meeting& meeting) {
  std::vector<Index> ranks;
  const double chunk = chunk_bytes(*meeting.step);
  const double slowdown = machine_.contention.slowed_by(traffic_of(meeting.step->kind));
  for (const Index lane : meeting.lanes) {
    LaneState& state = lanes_[static_cast<std::size_t>(lane)];
    ranks.push_back(state.rank);
    traffic(state.rank, machine_.contention.traffic_gbps(meeting.workers, chunk), slowdown);
    state.begin = now_;  // the time before now was waiting
    state.cause = meeting.cause;
  }
  const auto c = static_cast<std::size_t>(meeting.step->communicator);
  const auto size = static_cast<int>(plan_.communicators[c].ranks.size());
  CollectiveConfig config = meeting.step->config;
  if (meeting.step->resources.most > 0) config.channels = meeting.workers;
  const double us =
      size > 1 ? noisy(costs_.collective_us(meeting.step->kind, size, config, meeting.bytes)) : 0;
  if (machine_.contention.steals > 0 && size > 1)
    for (const Index rank : ranks)
      steal(rank, costs_.moving_us(meeting.step->kind, size, meeting.workers, meeting.bytes));
  meeting.gbps = us > 0 ? costs_.wire_bytes(meeting.step->kind, size, meeting.bytes) / us * 1e-3 : 0;
  meeting.left_us = size > 1 && machine_.topology.serial ? book(ranks, us) - now_ : us;
  if (size > 1) {
    const double latency = machine_.lone_latency_of(beside_computation(ranks));
    if (latency > 0 && !follows_another(meeting.lanes.front()))
      meeting.left_us += latency * noisy(costs_.collective_us(meeting.step->kind, size, config, 0));
    meeting.left_us += wake_us(ranks);
  }
  meeting.since = now_;
}

bool Simulation::beside_computation(std::span<const Index> ranks) const {
  return std::ranges::any_of(ranks,
                             [&](Index rank) { return computing_[static_cast<std::size_t>(rank)] > 0; });
}

/// Delay until a sleeping host thread notices that its link is done. It is longer while all cores compute,
/// because the thread must first get a core.
double Simulation::wake_us(std::span<const Index> ranks) {
  return noisy(costs_.wake_us() + (beside_computation(ranks) ? machine_.contention.wake_us : 0));
}

/// Concurrent collectives share the links of their common ranks max-min fairly. No collective gets more than
/// its rate alone.
void Simulation::share_links() {
  if (machine_.link.gbps == 0 || machine_.topology.serial) return;
  const auto get = [&](Index index, double share) {
    double& had = meetings_[static_cast<std::size_t>(index)].share;
    if (std::exchange(had, share) != share) retime(index);
  };
  if (running_.size() == 1) return get(running_.front(), 1);
  double gbps = machine_.link.gbps;
  for (const Index index : running_) gbps = std::max(gbps, meetings_[static_cast<std::size_t>(index)].gbps);
  Links links;
  for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) links.add_channel(gbps);
  for (const Index index : running_) {
    const Meeting& meeting = meetings_[static_cast<std::size_t>(index)];
    std::vector<Channel> channels{links.add_channel(meeting.gbps)};
    for (const Index lane : meeting.lanes) channels.push_back(lanes_[static_cast<std::size_t>(lane)].rank);
    if (meeting.gbps > 0) links.begin(now_, index, 1, channels);
  }
  links.share();
  for (const Index index : running_) {
    const double alone = meetings_[static_cast<std::size_t>(index)].gbps * 1e3;
    get(index, alone > 0 ? links.rate(index) / alone : 1);
  }
}

/// Updates a running collective's remaining time and rate; it is slower beside computation.
void Simulation::retime(Index index) {
  Meeting& meeting = meetings_[static_cast<std::size_t>(index)];
  meeting.left_us = std::max(meeting.left_us - (now_ - meeting.since) * meeting.rate, 0.0);
  meeting.since = now_;
  const bool beside = std::ranges::any_of(meeting.lanes, [&](Index lane) {
    return computing_[static_cast<std::size_t>(lanes_[static_cast<std::size_t>(lane)].rank)] > 0;
  });
  meeting.rate = meeting.share * (beside ? 1 / (1 + machine_.contention.collective_slowdown) : 1);
  events_.push(now_ + meeting.left_us / meeting.rate, What::collective, index, ++meeting.version);
}

void Simulation::end(Index index) {
  Meeting& meeting = meetings_[static_cast<std::size_t>(index)];
  ++meeting.version;
  std::erase(running_, index);
  share_links();
  const std::vector<Index> lanes = std::move(meeting.lanes);
  const std::int32_t workers = std::min(meeting.workers, capacity_);
  const double gbps = machine_.contention.traffic_gbps(meeting.workers, chunk_bytes(*meeting.step));
  const double slowdown = machine_.contention.slowed_by(traffic_of(meeting.step->kind));
  for (const Index lane : lanes) {
    LaneState& state = lanes_[static_cast<std::size_t>(lane)];
    traffic(state.rank, -gbps, -slowdown);
    state.met = true;
  }
  // Resumes the lanes first: their next steps come before jobs that wait for workers.
  for (const Index lane : lanes) resume(lane);
  for (const Index lane : lanes) give_back(lanes_[static_cast<std::size_t>(lane)].rank, workers);
}

}  // namespace shingle::sim
