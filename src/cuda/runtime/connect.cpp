#include "connect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/log.hpp"
#include "branches.hpp"
#include "cuda/commands/command.hpp"
#include "cuda/nccl/api.hpp"
#include "cuda/nccl/group.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "deadline.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::cuda {

std::size_t most_lanes(const Plan& plan) {
  std::size_t most = 0;
  for (const RankPlan& rank : plan.ranks) most = std::max(most, rank.lanes.size());
  return most;
}

std::vector<CommUse> communicators_of(const Plan& plan) {
  std::vector<CommUse> uses;
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      for (const Step& step : lane.steps) {
        const auto* collective = std::get_if<Collective>(&step);
        const auto* exchange = std::get_if<Exchange>(&step);
        if (collective == nullptr && exchange == nullptr) continue;
        const CommKey key = collective != nullptr ? comm_key(plan, *collective) : comm_key(plan, *exchange);
        const bool messages = exchange != nullptr || collective->kind == CollectiveKind::alltoall;
        auto found = std::ranges::find(uses, key, &CommUse::key);
        if (found == uses.end()) found = uses.insert(uses.end(), {key, false});
        found->messages = found->messages || messages;
      }
  return uses;
}

Connections::Connections(CudaWorld& world, const Plan& plan) : world_(world), lanes_(most_lanes(plan)) {
  for (const CommUse& use : communicators_of(plan)) {
    const Communicator& made = world.communicator(use.key);
    if (use.messages && !world.exchanging().contains(use.key)) exchanging_.emplace_back(use.key, &made);
  }
  for (const LocalRank& local : world.local()) {
    const DeviceGuard guard(local.device());
    greetings_.emplace_back(static_cast<std::size_t>(world.size()) + 1);
  }
}

bool Connections::connect(StartLine& start, Launchers& launchers, Monitor& monitor) {
  const double timeout_us = monitor.connect_us();
  const bool known = world_.side_by_side().contains(lanes_);
  const auto trials = std::make_shared<std::vector<char>>(world_.local().size(), 1);
  monitor.run_on_all(
      launchers,
      [this, &start, &launchers, timeout_us, known, trials](std::size_t index) {
        greet(index, start, launchers, timeout_us);
        if (!known) (*trials)[index] = run_side_by_side(lanes_) ? 1 : 0;
      },
      timeout_us);
  for (const auto& [key, communicator] : exchanging_) world_.exchanging().insert(key);
  if (known) return world_.side_by_side()[lanes_];
  const bool any_not = std::ranges::find(*trials, 0) != trials->end();
  const bool all = world_.all_max({any_not ? 1.0 : 0.0})[0] == 0;
  world_.side_by_side()[lanes_] = all;
  if (!all)
    log_line(LogLevel::info,
             fmt::format("{} lanes do not run concurrently as branches of a graph: streams are used instead",
                         lanes_));
  return all;
}

/// Sends one byte between every two ranks. NCCL connects the transports of collectives when it makes a
/// communicator, but those of point-to-point messages only at the first message.
void Connections::greet(std::size_t index, StartLine& start, const Launchers& launchers, double timeout_us) {
  const int rank = world_.local()[index].rank();
  const Stream stream;
  const Event done;
  start.meet(index, stream.get());
  auto* const bytes = greetings_[index].get<char>();
  for (const auto& [key, communicator] : exchanging_) {
    const ncclComm_t comm = communicator->of(rank);
    if (comm == nullptr) continue;
    int size = 0;
    check(nccl().ncclCommCount(comm, &size), "ncclCommCount");
    in_group([&] {
      for (int peer = 0; peer < size; ++peer) {
        check(nccl().ncclSend(bytes, 1, ncclUint8, peer, comm, stream.get()), "ncclSend");
        check(nccl().ncclRecv(bytes + 1 + peer, 1, ncclUint8, peer, comm, stream.get()), "ncclRecv");
      }
    });
  }
  done.record(stream.get());
  const auto deadline = deadline_in(timeout_us);
  while (!done.done()) {
    if (launchers.failed() || Clock::now() > deadline)
      throw UnnamedTimeout(
          fmt::format("rank {}: not all ranks connected within {}", rank, format_us(timeout_us)), rank);
    std::this_thread::sleep_for(nap);
  }
}

}  // namespace shingle::cuda
