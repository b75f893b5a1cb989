// Tiled steps: workers claim items in order, wave by wave, wait at gates, store to other ranks, and notify.
#include <algorithm>
#include <utility>

#include "demand.hpp"
#include "lower/launch_rules.hpp"
#include "plan/steps.hpp"
#include "shingle/plan/placement.hpp"
#include "simulation.hpp"

namespace shingle::sim {
namespace {

const Resources& resources_of(const Step& step) {
  if (const auto* gemm = std::get_if<Gemm>(&step)) return gemm->resources;
  if (const auto* attend = std::get_if<Attend>(&step)) return attend->resources;
  if (const auto* merge = std::get_if<Merge>(&step)) return merge->resources;
  if (const auto* back = std::get_if<AttendBackward>(&step)) return back->resources;
  return std::get<Elementwise>(step).resources;
}

/// Where a step stores; none: in slices of its own rank.
std::vector<const Placement*> stores_of(const Step& step) {
  if (const auto* gemm = std::get_if<Gemm>(&step)) {
    std::vector<const Placement*> stores{&gemm->out};
    for (const Placement& to : gemm->sums.to) stores.push_back(&to);
    return stores;
  }
  if (const auto* attend = std::get_if<Attend>(&step)) return {&attend->out};
  if (const auto* merge = std::get_if<Merge>(&step)) return {&merge->to};
  if (const auto* pass = std::get_if<Elementwise>(&step)) return {&pass->to};
  return {};
}

/// Number of items in [first, last) that hold output: other tiles take no time. Tiles whose rows have no
/// token still notify: if there are no others, they count as one.
std::int64_t real_items(const Costs& costs, const Step& step, std::int64_t first, std::int64_t last) {
  if (const auto* gemm = std::get_if<Gemm>(&step)) {
    const std::int64_t live = costs.live_tiles(*gemm, last) - costs.live_tiles(*gemm, first);
    if (gemm->live.buffer < 0) return live;
    const std::int64_t tiles = gemm->grid.tiles_before(last) - gemm->grid.tiles_before(first);
    return larger(live, smaller(tiles, std::int64_t{1}));
  }
  const TileGrid& grid = *grid_of(step);
  const auto* pass = std::get_if<Elementwise>(&step);
  if ((pass && row_wise(*pass)) || grid.tiles() == grid.positions()) return last - first;
  return grid.tiles_before(last) - grid.tiles_before(first);
}

/// End of the next `most` real items after `first`, at most `last`.
std::int64_t end_of_real(const Costs& costs, const Step& step, std::int64_t first, std::int64_t last,
                         std::int64_t most) {
  if (real_items(costs, step, first, last) <= most) return last;
  std::int64_t enough = first + most;  // lower bound of the result, raised until exact
  while (enough < last) {
    const std::int64_t missing = most - real_items(costs, step, first, enough);
    if (missing == 0) break;
    enough += missing;
  }
  return enough;
}

/// True if a step is right behind a pass.
bool follows_pass(const Lane& lane, std::size_t step) {
  return step > 0 && std::holds_alternative<Elementwise>(lane.steps[step - 1]);
}

bool leaves(const Placement& at, Index rank, int world) {
  return std::ranges::any_of(ranks_of(at, world), [&](std::int32_t other) { return other != rank; });
}

}  // namespace

Index Simulation::pass_of(const LaneState& lane, const Step& step) {
  const Index queue = queue_of(step);
  Index* shared = nullptr;
  if (queue >= 0) {
    const auto [at, made] = shared_.try_emplace({lane.rank, queue}, none);
    shared = &at->second;
    if (!made && *shared != none && passes_[static_cast<std::size_t>(*shared)].epoch == lane.epoch)
      return *shared;
  }
  Pass pass;
  pass.step = &step;
  pass.bounds = run_boundaries(step);
  pass.next = pass.bounds.front();
  pass.epoch = lane.epoch;
  const int world = plan_.world();
  pass.stores = std::ranges::any_of(stores_of(step),
                                    [&](const Placement* to) { return leaves(*to, lane.rank, world); });
  if (const auto* elementwise = std::get_if<Elementwise>(&step))
    pass.loads = std::ranges::any_of(elementwise->from,
                                     [&](const Placement& from) { return leaves(from, lane.rank, world); });
  passes_.push_back(std::move(pass));
  const auto index = static_cast<Index>(passes_.size()) - 1;
  if (shared) *shared = index;
  return index;
}

/// Workers that a step takes at most. On a GPU a product takes whole clusters.
std::int32_t Simulation::most_workers(const LaneState& lane, const Step& step) const {
  const auto* gemm = std::get_if<Gemm>(&step);
  if (gemm != nullptr && on_streams(machine_) && !Costs::is_library(*gemm)) {
    const std::int32_t most = shingle::most_workers(*gemm, capacity_, may_start_early(lane, lane.step));
    return std::max(most - most % tiles_of_cluster(gemm->grid), 1);
  }
  const Resources& wanted = resources_of(step);
  return wanted.most > 0 ? std::min(wanted.most, capacity_) : capacity_;
}

bool Simulation::compute(LaneState& lane, const Step& step) {
  const auto* gemm = std::get_if<Gemm>(&step);
  const Launch* const kernel = launch_of(lane);
  const bool delivers = kernel && kernel->kind == LaunchKind::delivery;
  double launch_us = gemm == nullptr && may_start_early(lane, lane.step) ? 0 : machine_.launch_us;
  if (delivers)  // its steps are one kernel, launched with the first one
    launch_us = follows_pass(lane_plan(lane), lane.step) ? machine_.pass_us : 0;
  double begins_us = launch_us + (gemm && !Costs::is_library(*gemm) ? machine_.hooked_us : 0);
  if (gemm && gemm->live.buffer >= 0) begins_us += 2 * machine_.load_us;
  if (!has_parts(lane) && !delayed(lane, noisy(begins_us))) return false;
  if (lane.job == none) {
    Job job;
    job.lane = lane_index(lane.rank, lane.lane);
    job.pass = pass_of(lane, step);
    job.most = most_workers(lane, step);
    job.cause = lane.cause;
    job.begin = now_;
    jobs_.push_back(std::move(job));
    lane.job = static_cast<Index>(jobs_.size()) - 1;
    rank_jobs_[static_cast<std::size_t>(lane.rank)].push_back(lane.job);
  }
  const Index index = lane.job;
  Job& job = jobs_[static_cast<std::size_t>(index)];
  for (const Index at : std::exchange(job.summing, {})) batch_done(at);
  if (job.gated) {
    job.gated = false;
    claim(index);
  } else if (!job.over && job.active == 0) {
    claim(index);
  }
  if (!job.over) return false;
  // A kernel ends when its stores have arrived. No pass of a delivery waits for those of the pass before it.
  if (on_streams(machine_) && !delivers && blocked(lane)) return false;
  lane.cause = job.cause;
  lane.job = none;
  job.spans.clear();
  // The lane's next steps use what it has fetched; its remote stores may still be in flight.
  return true;
}

/// True if an item of a job may begin or, with `of_parts`, add the parts of other ranks. Otherwise registers
/// its lane to wait for the count.
bool Simulation::gates_open(Index index, std::int64_t item, bool of_parts) {
  Job& job = jobs_[static_cast<std::size_t>(index)];
  const Pass& pass = passes_[static_cast<std::size_t>(job.pass)];
  const auto* gates = gates_of(*pass.step);
  if (!gates) return true;
  const LaneState& lane = lanes_[static_cast<std::size_t>(job.lane)];
  for (const TileGate& gate : *gates) {
    if (gate.of_parts != of_parts) continue;
    const auto group = group_of(gate.ends, item);
    const CounterRef at{gate.counter, lane.rank, gate.entry(group)};
    Count& awaited = count(at);
    const auto target = absolute(at, gate.targets[static_cast<std::size_t>(group)], lane.epoch);
    if (awaited.value >= target) {
      if (job.was_gated) job.cause = awaited.cause;
      continue;
    }
    awaited.await({target, job.lane});
    if (!of_parts) job.gated = job.was_gated = true;
    return false;
  }
  if (!of_parts) job.was_gated = false;
  return true;
}

/// Returns true if the lane's pass is a wait and a kernel for each group of its gate.
bool Simulation::has_parts(const LaneState& lane) const {
  const Launch* const launch = launch_of(lane);
  return launch && !launch->parts.empty();
}

/// True if the kernel of the next group runs; otherwise wakes the lane when it does. An event edge may order
/// a group's kernel. Without one, it follows a wait kernel, which follows the previous group's kernel.
bool Simulation::launched(Index index, bool waited) {
  Job& job = jobs_[static_cast<std::size_t>(index)];
  const Pass& pass = passes_[static_cast<std::size_t>(job.pass)];
  const LaneState& lane = lanes_[static_cast<std::size_t>(job.lane)];
  if (!has_parts(lane)) return true;
  const Index group = group_at(*pass.step, pass.next);
  if (job.kernel == group) return true;
  if (job.active > 0) return false;
  job.kernel = group;
  job.gated = true;
  const auto& parts = launch_of(lane, lane.step)->parts;
  const auto part = std::ranges::find_if(parts, [&](const LaunchPart& at) { return pass.next < at.last; });
  const bool by_event = part != parts.end() && part->event >= 0;
  const double told_us = by_event ? 0 : noisy(waited ? machine_.signal_us : machine_.sync_us);
  wake(job.lane, told_us + noisy(machine_.launch_us));
  return false;
}

void Simulation::claim(Index index) {
  Job& job = jobs_[static_cast<std::size_t>(index)];
  Pass& pass = passes_[static_cast<std::size_t>(job.pass)];
  if (job.over || job.gated) return;
  const LaneState& lane = lanes_[static_cast<std::size_t>(job.lane)];
  auto& free = free_[static_cast<std::size_t>(lane.rank)];
  const auto* gemm = std::get_if<Gemm>(pass.step);
  const bool library = gemm && Costs::is_library(*gemm);
  while (pass.next < pass.bounds.back()) {
    while (pass.next >= pass.bounds[pass.run + 1]) ++pass.run;
    const std::int64_t end = pass.bounds[pass.run + 1];
    if (real_items(costs_, *pass.step, pass.next, end) == 0) {
      pass.next = end;
      continue;
    }
    const bool waited = job.was_gated;
    if (!gates_open(index, pass.next, false) || !launched(index, waited)) return;
    const std::int32_t more = std::min(job.most - job.held, free);
    const std::int64_t left = real_items(costs_, *pass.step, pass.next, pass.bounds.back());
    // Takes at most as many workers as there are items for them.
    const auto taken = static_cast<std::int32_t>(
        std::clamp<std::int64_t>(library ? more : smaller(more, left - (job.held - job.active)), 0, more));
    job.held += taken;
    free -= taken;
    const std::int32_t idle = job.held - job.active;
    if (idle == 0) return;
    start(index, library ? end : end_of_real(costs_, *pass.step, pass.next, end, idle));
  }
  if (job.active == 0) retire(index);
}

/// Starts the next items of a job, up to `last`, together.
void Simulation::start(Index index, std::int64_t last) {
  Job& job = jobs_[static_cast<std::size_t>(index)];
  Pass& pass = passes_[static_cast<std::size_t>(job.pass)];
  const LaneState& lane = lanes_[static_cast<std::size_t>(job.lane)];
  const auto* gemm = std::get_if<Gemm>(pass.step);
  Batch batch;
  batch.job = index;
  batch.first = pass.next;
  batch.last = last;
  batch.begin = now_;
  batch.workers = gemm && Costs::is_library(*gemm)
                      ? job.held
                      : static_cast<std::int32_t>(real_items(costs_, *pass.step, batch.first, last));
  pass.next = batch.last;
  if (job.active == 0) computes(lane.rank, 1);
  job.active += batch.workers;
  Index at;
  if (idle_batches_.empty()) {
    at = static_cast<Index>(batches_.size());
    batches_.push_back(batch);
  } else {
    at = idle_batches_.back();
    idle_batches_.pop_back();
    batch.version = batches_[static_cast<std::size_t>(at)].version;
    batches_[static_cast<std::size_t>(at)] = batch;
  }
  // Rows on other ranks are fetched first.
  if (pass.loads && move(at, true) > 0) return;
  run(at);
}

void Simulation::run(Index at) {
  Batch& batch = batches_[static_cast<std::size_t>(at)];
  Job& job = jobs_[static_cast<std::size_t>(batch.job)];
  const Pass& pass = passes_[static_cast<std::size_t>(job.pass)];
  const Index rank = lanes_[static_cast<std::size_t>(job.lane)].rank;
  const auto* gemm = std::get_if<Gemm>(pass.step);
  const double alone = gemm && Costs::is_library(*gemm) ? costs_.library_us(*gemm, batch.workers)
                                                        // Other batches of a pass share the memory's rate.
                                                        : costs_.items_us(*pass.step, batch.first, batch.last,
                                                                          gemm ? job.most : job.active);
  const double slower = options_.slowdown.empty() ? 1 : options_.slowdown[static_cast<std::size_t>(rank)];
  batch.slower = slowed_by_traffic(rank, *pass.step, job.held);
  batch.slower_by_stores = slowed_by_stores(job);
  const double us = alone * slower * batch.slower * batch.slower_by_stores;
  batch.end = now_ + noisy(gemm ? throttled_us(rank, us) : us);
  job.batches.push_back(at);
  events_.push(batch.end, What::batch, at, ++batch.version);
}

/// Ends the computation of a batch. A kernel has room for one tile per worker in flight to other ranks.
/// Without room, a batch keeps its workers.
void Simulation::batch_done(Index at) {
  Batch& batch = batches_[static_cast<std::size_t>(at)];
  const Index index = batch.job;
  Job& job = jobs_[static_cast<std::size_t>(index)];
  const Pass& pass = passes_[static_cast<std::size_t>(job.pass)];
  if (pass.stores && on_streams(machine_) && job.storing > 0 && job.storing + batch.workers > job.held) {
    job.staged.push_back(at);
    return;
  }
  if (!sums_up(at)) return;
  const LaneState& lane = lanes_[static_cast<std::size_t>(job.lane)];
  const Index rank = lane.rank, group = group_at(*pass.step, batch.first);
  const auto [known, first] = job.spans.try_emplace(group, none);
  if (first) {
    known->second = span(lane, lane.step, group, batch.begin, job.cause);
    job.cause = known->second;
  } else {
    out_.spans[static_cast<std::size_t>(known->second)].end_us = now_;
  }
  batch.cause = known->second;
  std::erase(job.batches, at);
  job.active -= batch.workers;
  if (job.active == 0) computes(rank, -1);
  if (pass.stores && move(at, false) > 0)
    stores(job, batch.workers);
  else
    items_done(at);
  // Workers without state between tiles are released to a waiting collective.
  if (!machine_.contention.persistent && !ready_.empty()) {
    const std::int32_t idle = job.held - job.active;
    job.held -= idle;
    give_back(rank, idle);
  }
  claim(index);
}

/// True if a batch is complete. A batch of sums first awaits the parts of other ranks, then adds them.
bool Simulation::sums_up(Index at) {
  Batch& batch = batches_[static_cast<std::size_t>(at)];
  Job& job = jobs_[static_cast<std::size_t>(batch.job)];
  const auto* gemm = std::get_if<Gemm>(passes_[static_cast<std::size_t>(job.pass)].step);
  if (gemm == nullptr || batch.added || !is_sum(*gemm, gemm->grid.rect(gemm->grid.tile(batch.first)).row))
    return true;
  if (!gates_open(batch.job, batch.first, true)) {
    batch.awaited = true;
    std::erase(job.batches, at);  // its workers wait: nothing takes time from them
    job.summing.push_back(at);
    return false;
  }
  if (batch.awaited) job.batches.push_back(at);
  batch.added = true;
  batch.end = now_ + noisy(costs_.adding_us(*gemm, batch.first, batch.awaited));
  events_.push(batch.end, What::batch, at, ++batch.version);
  return false;
}

/// Notifies for the items of a batch, once they have arrived, also on other ranks.
void Simulation::items_done(Index at) {
  const Batch batch = batches_[static_cast<std::size_t>(at)];
  const Job& job = jobs_[static_cast<std::size_t>(batch.job)];
  const Pass& pass = passes_[static_cast<std::size_t>(job.pass)];
  idle_batches_.push_back(at);
  const auto* notifies = notifies_of(*pass.step);
  if (!notifies || notifies->empty()) return;
  const TileGrid& grid = *grid_of(*pass.step);
  const std::int64_t tiles = grid.tiles_before(batch.last) - grid.tiles_before(batch.first);
  if (tiles == 0) return;
  for (const TileNotify& hook : *notifies) {
    const auto group = group_of(hook.ends, batch.first);
    hook.for_each_rank(group, [&](std::int32_t rank) {
      add({hook.counter, rank, hook.entry(group)}, tiles, pass.epoch, batch.cause);
    });
  }
}

/// Ends a job that has nothing left to claim.
void Simulation::retire(Index index) {
  Job& job = jobs_[static_cast<std::size_t>(index)];
  const LaneState& lane = lanes_[static_cast<std::size_t>(job.lane)];
  job.over = true;
  out_.busy_us[static_cast<std::size_t>(lane.rank)][static_cast<std::size_t>(lane.lane)] += now_ - job.begin;
  std::erase(rank_jobs_[static_cast<std::size_t>(lane.rank)], index);
  const std::int32_t held = std::exchange(job.held, 0);
  wake(job.lane);
  give_back(lane.rank, held);
}

/// Frees workers. Collectives take them first, because NCCL gives its kernels priority; then jobs take them.
void Simulation::give_back(Index rank, std::int32_t workers) {
  free_[static_cast<std::size_t>(rank)] += workers;
  begin_meetings();
  const std::vector<Index> jobs = rank_jobs_[static_cast<std::size_t>(rank)];
  for (const Index job : jobs)
    if (jobs_[static_cast<std::size_t>(job)].held < jobs_[static_cast<std::size_t>(job)].most) claim(job);
}

/// Begins the loads or stores of a batch between ranks. Returns how many there are.
std::int32_t Simulation::move(Index at, bool loads) {
  Batch& batch = batches_[static_cast<std::size_t>(at)];
  const Job& job = jobs_[static_cast<std::size_t>(batch.job)];
  const Pass& pass = passes_[static_cast<std::size_t>(job.pass)];
  LaneState& lane = lanes_[static_cast<std::size_t>(job.lane)];
  const double gbps = loads ? 0 : costs_.store_gbps(*pass.step, job.most);
  const double longer = gbps > 0 ? std::max(machine_.link.gbps / gbps, 1.0) : 1;
  std::vector<double> bytes(plan_.ranks.size(), 0);
  for (std::int64_t item = batch.first; item < batch.last; ++item)
    add_remote_bytes(*pass.step, item, lane.rank, loads, bytes);
  batch.pending = batch.leaving = 0;
  for (std::size_t peer = 0; peer < bytes.size(); ++peer) {
    if (bytes[peer] == 0) continue;
    ++batch.pending;
    if (!loads) ++lane.pending, ++batch.leaving;
    const auto other = static_cast<Index>(peer);
    transfer({loads ? Transfer::Of::load : Transfer::Of::store, at, none, 0}, bytes[peer] * longer,
             loads ? other : lane.rank, loads ? lane.rank : other, none);
  }
  return batch.pending;
}

void Simulation::add_remote_bytes(const Step& step, std::int64_t item, Index rank, bool loads,
                                  std::vector<double>& by_rank) const {
  const TileGrid& grid = *grid_of(step);
  const auto* gemm = std::get_if<Gemm>(&step);
  const auto* pass = std::get_if<Elementwise>(&step);
  const double stored = pass && !loads ? costs_.filled(*pass) : 1;
  const auto rect = [&](std::int64_t position) {
    return gemm ? costs_.tile_of(*gemm, position).rect : grid.rect(grid.tile(position));
  };
  const auto visit = [&](const Placement& at, std::int64_t position, std::int64_t cols) {
    const double width = element_bytes(plan_, at.slice);
    for_each_piece(at, grid, plan_.routing(), position, rect(position), [&](const Piece& piece) {
      if (piece.rank != rank)
        by_rank[static_cast<std::size_t>(piece.rank)] +=
            stored * static_cast<double>(piece.rows * cols) * width;
    });
  };
  const bool rows = pass && row_wise(*pass);
  const std::int64_t first = rows ? grid.linear({item, 0}) : item;
  const auto cols = [&](std::int64_t position) { return rect(position).cols; };
  if (!loads && gemm) {
    for (const Placement& to : stored_at(*gemm, rect(first).row)) visit(to, first, cols(first));
    return;
  }
  if (!loads) return visit(*stores_of(step).front(), first, rows ? out_cols(*pass) : cols(first));
  for (const Placement& from : pass->from)
    for (std::int64_t n = 0; n < (rows ? grid.tiles_n() : 1); ++n) {
      const std::int64_t position = rows ? grid.linear({item, n}) : item;
      visit(from, position, cols(position));
    }
}

}  // namespace shingle::sim
