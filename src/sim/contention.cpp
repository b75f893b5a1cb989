// How computation and communication slow each other, and how a rank that computes for long throttles.
#include <algorithm>
#include <utility>

#include "simulation.hpp"

namespace shingle::sim {

void Simulation::computes(Index rank, std::int32_t more) {
  const auto r = static_cast<std::size_t>(rank);
  const std::int32_t before = computing_[r];
  computing_[r] += more;
  if (before == 0) computing_since_[r] = now_;
  if (computing_[r] == 0) out_.computing_us[r] += now_ - computing_since_[r];
  if (before > 0 && computing_[r] > 0) return;
  if (machine_.contention.collective_slowdown > 0)
    for (const Index meeting : running_) retime(meeting);
}

/// Lagom Eq. 6: the part of a tile's time that waits for memory grows with the collectives' memory traffic.
/// Products may be slowed further.
double Simulation::slowed_by_traffic(Index rank, const Step& step, std::int32_t workers) const {
  const double taken = traffic_gbps_[static_cast<std::size_t>(rank)];
  const double more =
      std::holds_alternative<Gemm>(step) ? product_slowdown_[static_cast<std::size_t>(rank)] : 0;
  const double slowed =
      taken == 0 ? 1 : Contention::slowed(costs_.memory_share(step, workers), taken, machine_.memory_gbps);
  return slowed * (1 + more);
}

/// A product that stores its tiles to other ranks slows its own loads.
double Simulation::slowed_by_stores(const Job& job) const {
  const Step& step = *passes_[static_cast<std::size_t>(job.pass)].step;
  if (job.storing == 0 || !std::holds_alternative<Gemm>(step)) return 1;
  const double stored = static_cast<double>(job.storing) / static_cast<double>(larger(job.held, 1));
  return 1 + machine_.contention.store_slowdown * std::min(stored, 1.0);
}

/// What is left of a batch goes on at another pace.
void Simulation::retime(Index at, double Batch::*factor, double now) {
  Batch& batch = batches_[static_cast<std::size_t>(at)];
  const double before = std::exchange(batch.*factor, now);
  if (now == before || batch.end <= now_) return;
  batch.end = now_ + (batch.end - now_) * now / before;
  events_.push(batch.end, What::batch, at, ++batch.version);
}

/// Changes the number of a job's workers whose tiles are on their way to other ranks.
void Simulation::stores(Job& job, std::int32_t more) {
  job.storing += more;
  const double now = slowed_by_stores(job);
  for (const Index at : job.batches)
    if (!batches_[static_cast<std::size_t>(at)].added) retime(at, &Batch::slower_by_stores, now);
}

/// Time of a part of a product of which a rank that does not throttle takes `us`.
double Simulation::throttled_us(Index rank, double us) const {
  const auto& [after_us, rate] = machine_.throttle;
  const auto r = static_cast<std::size_t>(rank);
  if (after_us == 0) return us;
  const double busy = out_.computing_us[r] + (computing_[r] > 0 ? now_ - computing_since_[r] : 0);
  const double cool = std::clamp(after_us - busy, 0.0, us);
  return cool + (us - cool) / rate;
}

/// Changes a rank's memory traffic, and by how much else products are slowed. A library's product is one
/// batch of many waves, which goes on at another pace. Other batches are one wave, which ends as it began.
void Simulation::traffic(Index rank, double gbps, double slowdown) {
  traffic_gbps_[static_cast<std::size_t>(rank)] += gbps;
  product_slowdown_[static_cast<std::size_t>(rank)] += slowdown;
  for (const Index index : rank_jobs_[static_cast<std::size_t>(rank)]) {
    const Job& job = jobs_[static_cast<std::size_t>(index)];
    const Step& step = *passes_[static_cast<std::size_t>(job.pass)].step;
    if (const auto* gemm = std::get_if<Gemm>(&step); !gemm || !Costs::is_library(*gemm)) continue;
    const double now = slowed_by_traffic(rank, step, job.held);
    for (const Index at : job.batches) retime(at, &Batch::slower, now);
  }
}

/// On shared cores, threads that move bytes take that time from the computing threads.
void Simulation::steal(Index rank, double us) {
  if (machine_.contention.steals == 0) return;
  for (const Index index : rank_jobs_[static_cast<std::size_t>(rank)])
    for (const Index at : jobs_[static_cast<std::size_t>(index)].batches) {
      Batch& batch = batches_[static_cast<std::size_t>(at)];
      batch.end += us * machine_.contention.steals;
      events_.push(batch.end, What::batch, at, ++batch.version);
    }
}

}  // namespace shingle::sim
