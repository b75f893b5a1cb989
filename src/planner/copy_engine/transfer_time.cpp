#include "transfer_time.hpp"

#include <algorithm>
#include <cmath>

namespace shingle::planner {
namespace {

class Estimate {
 public:
  Estimate(const Machine& machine, const TransferShape& shape, const CopyEngineParams& params)
      : machine_(machine), engine_(machine.engine), shape_(shape), params_(params) {}

  /// Time if all commands, of all engines, are in flight together.
  double at_once_us() const {
    const double peers = shape_.world - 1;
    const bool in_pairs = shape_.variant == CopyVariant::bcst || shape_.variant == CopyVariant::swap;
    const double commands = in_pairs ? std::ceil(peers / 2) : peers;
    const double engines = std::min<double>(shape_.engines, commands), each = std::ceil(commands / engines);
    const double copies =
        shape_.variant == CopyVariant::swap ? 2 * commands : peers;  // a swap moves data both ways
    const double beyond = shape_.variant == CopyVariant::bcst   ? engine_.broadcast_us
                          : shape_.variant == CopyVariant::swap ? engine_.swap_us
                                                                : 0;
    // An engine that notifies receivers itself notifies each of them; with swap, also its own rank.
    const double told = params_.trigger == EngineTrigger::host ? 1
                        : shape_.variant == CopyVariant::swap  ? each + 1
                                                               : std::ceil(peers / engines);
    const double moved_us = std::max(by_engine_us(std::ceil(copies / engines)), by_links_us(peers));
    return trigger_us(engines) + start_us(commands + engines * told, engines) +
           (each - 1) * engine_.queued_us + copy_us() + beyond + moved_us + told * engine_.sync_us +
           machine_.signal_us;
  }

  /// Time if commands run in turn, each after a signal of another rank.
  double in_turn_us() const {
    const double steps = shape_.world - 1, told = shape_.same_for_all ? 1 : 2;
    const double step_us = start_us(1 + told, 1) + copy_us() + std::max(by_engine_us(1), by_links_us(1)) +
                           told * engine_.sync_us;
    return trigger_us(1) + steps * step_us + machine_.signal_us;
  }

 private:
  bool paired() const {
    const Topology& topology = machine_.topology;
    return topology.pair.paced() && shape_.world <= topology.pair_ranks;
  }
  /// Number of ranks that one host thread serves in turn.
  double served() const {
    return std::ceil(static_cast<double>(shape_.world) / std::max(params_.launchers, 1));
  }
  /// Time until the engines see their trigger: a host thread writes every word that they poll.
  double trigger_us(double engines) const {
    if (!params_.prelaunch || params_.trigger == EngineTrigger::direct) return 0;
    if (params_.poll == PollScope::collective) return engine_.control_us;
    return served() * (params_.poll == PollScope::engine ? engines : 1) * engine_.control_us;
  }
  /// Time from the count that lets a batch begin to the start of its engines.
  double start_us(double commands, double batches) const {
    if (params_.prelaunch) return engine_.poll_us;
    return machine_.signal_us + served() * (commands * engine_.control_us + batches * engine_.schedule_us) +
           engine_.fetch_us;
  }
  double copy_us() const {
    return engine_.copy_us + (paired() ? machine_.topology.pair : machine_.link).latency_us;
  }
  double by_engine_us(double parcels) const { return us(parcels, engine_.gbps); }
  double by_links_us(double peers) const {
    return paired() ? us(1, machine_.topology.pair.gbps) : us(peers, machine_.link.gbps);
  }
  double us(double parcels, double gbps) const {
    return gbps > 0 ? parcels * shape_.parcel_bytes / gbps * 1e-3 : 0;
  }

  const Machine& machine_;
  const EnginePhases& engine_;
  const TransferShape& shape_;
  const CopyEngineParams& params_;
};

}  // namespace

double transfer_us(const Machine& machine, const TransferShape& shape, const CopyEngineParams& params) {
  const Estimate estimate(machine, shape, params);
  return shape.variant == CopyVariant::ring ? estimate.in_turn_us() : estimate.at_once_us();
}

}  // namespace shingle::planner
