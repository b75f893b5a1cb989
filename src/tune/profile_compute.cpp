// Figures of a single rank: memory, steps, tiles, and cuBLASLt products. All ranks measure at once.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "profiler.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle::tuning {
namespace {

/// Tile shapes to sample if the backend serves any tile.
constexpr TileShape any_tiles[] = {{64, 64},   {64, 128},  {128, 128},   {64, 512},
                                   {128, 256}, {256, 128}, {128, 512},   {256, 256},
                                   {256, 512}, {512, 512}, {1024, 1024}, {2048, 2048}};
constexpr std::array<std::int64_t, 4> lengths_on_cores{64, 256, 1024, 4096};  // K
/// From K = 1024 on, times of a kernel with fixed tiles lie nearly on a line. Below, stores bound them: with
/// K = 512, the line is too slow for short K and too fast for long.
constexpr std::array<std::int64_t, 4> lengths_of_kernels{1024, 2048, 4096, 8192};
constexpr TileShape reference{512, 512};  // tile per worker of the reference product
constexpr std::int64_t reference_k = 1024;
constexpr double most_flops = 1e10;  // of a tile: seconds on a core

/// Subtracts `other_us`, but keeps at least half: on a busy machine, a nearly empty plan may take as long.
double without(double us, double other_us) {
  return std::max(us - other_us, us / 2);
}

double flops_of(const TileShape& shape, std::int64_t k) {
  return 2.0 * shape.rows * shape.cols * static_cast<double>(k);
}

}  // namespace

/// Measures the overhead of a step, and the delay until a lane sees a count.
void Profiler::steps() {
  constexpr int count = 200, rounds = 100;
  if (!next("steps and signals")) return;
  const double one = watch_.us(plans_.small_steps(1)), all = watch_.us(plans_.small_steps(count));
  machine_.launch_us = std::max((all - one) / (count - 1), 0.0);
  machine_.begin_us = std::max(one - machine_.launch_us, 0.0);
  // If collectives take workers, every step is a kernel, and so are waits and notifies.
  if (calls_take_) {
    machine_.sync_us = std::max((watch_.us(counted(plans_.small_steps(count))) - all) / count, 0.0);
    note("sync_us", Origin::measured, "counts between steps of one small tile");
  }
  const double turn = watch_.us(plans_.turns(rounds)) / (2 * rounds);
  machine_.signal_us = std::max(turn - machine_.launch_us - machine_.sync_us, 0.0);
  note("begin_us", Origin::measured, "a run of one small tile, without launch_us");
  note("launch_us", Origin::measured, "steps of one small tile, one after the other");
  note("signal_us", Origin::measured,
       "two lanes that wait for each other in turn, without the steps and counts between");
}

/// Time of a run without the run's own overhead and `more`.
double Profiler::alone_us(double us, double more) const {
  return without(us, machine_.begin_us + more);
}

/// Measures copies by one thread over more bytes than the caches hold, and row-wise passes by all workers.
void Profiler::memory() {
  constexpr std::int64_t most_rows = 1 << 19;
  if (!next("memory")) return;
  std::int64_t rows = 1 << 12;
  double copy = watch_.us(plans_.copy(rows));
  while (copy < watch_.timing().run_us / 2 && rows < most_rows) copy = watch_.us(plans_.copy(rows *= 4));
  const double bytes = plans_.bytes_passed(rows);
  machine_.memory_gbps = bytes / alone_us(copy, 0) * 1e-3;
  note("memory_gbps", Origin::measured,
       fmt::format("{} copied by one step of each rank at once", format_bytes(bytes / 2)));
  passes(rows);
}

/// Measures passes by all workers over `rows` rows. If the workers are cores and ranks access each other's
/// memory, another rank stores the rows first, as after any communication. The rows then lie in that rank's
/// caches, or in no cache. SMs saturate memory long before all of them work: all have its rate, and a pass by
/// one SM has that of a worker.
void Profiler::passes(std::int64_t rows) {
  constexpr std::int64_t rows_on_cores = 1 << 10;
  const bool others_store = can_.remote_memory && size_ > 1;
  const bool on_cores = others_store && can_.host_accessible;
  if (on_cores) rows = rows_on_cores;
  const auto size = [&] { return format_bytes(plans_.bytes_passed(rows) / 2); };
  const auto gbps = [&](int sources, double us) {
    return plans_.bytes_passed(rows, sources) / us * 1e-3 / machine_.workers;
  };
  const auto pass_us = [&](std::int64_t of, std::int32_t workers) {
    return alone_us(watch_.us(plans_.pass(of, workers)), machine_.launch_us);
  };
  machine_.pass_gbps = gbps(1, on_cores ? sum_us(rows, 1) : pass_us(rows, 0));
  if (calls_take_) {
    const std::int64_t share = std::max(rows / 8, std::int64_t{1});  // more than caches hold
    machine_.memory_gbps = std::max(machine_.memory_gbps, machine_.pass_gbps * machine_.workers);
    machine_.pass_gbps = plans_.bytes_passed(share) / pass_us(share, 1) * 1e-3;
    note("memory_gbps", Origin::measured,
         fmt::format("{} passed by all SMs of each rank at once, or copied by one step", size()));
    note("pass_gbps", Origin::measured, "a pass by one SM of each rank");
  } else {
    note("pass_gbps", Origin::measured,
         fmt::format("a pass over {}{} by all workers of each rank at once", size(),
                     on_cores ? " that another rank has stored," : ""));
  }
  if (!others_store) return;
  if (!on_cores) {
    const double us = alone_us(watch_.us(plans_.pushed(rows)), machine_.launch_us);
    machine_.store_gbps = plans_.bytes_passed(rows) / 2 / us * 1e-3;
    note("store_gbps", Origin::measured,
         fmt::format("{} stored by all workers of each rank to the next one", size()));
    rows /= size_;
  }
  machine_.reduce_gbps = gbps(size_, sum_us(rows, size_));
  note("reduce_gbps", Origin::measured, fmt::format("the sum of {} from each rank, stored by it", size()));
}

double Profiler::sum_us(std::int64_t rows, int sources) {
  const TimedPlans::Stored stored = plans_.stored(rows, sources);
  return without(watch_.step_us(stored.plan, 0, stored.sum), machine_.launch_us);
}

/// Corrects for clocks that drift, above all on a shared machine. It times the reference product before and
/// after the plan and scales by the reference's first time. All compute figures refer to that first time
/// until settle().
double Profiler::at_one_pace(const Plan& plan) {
  constexpr int tries = 4;
  constexpr double steady = 1.05;
  Timed timed = watch_.prepare(plan);
  double us = 0, pace = 0;
  for (int i = 0; i < tries; ++i) {
    const double before = reference_us();
    us = watch_.us(timed);
    const double after = reference_us();
    pace = (before + after) / 2 / reference_us_.front();
    if (std::max(before, after) < steady * std::min(before, after)) break;
  }
  return us / pace;
}

double Profiler::reference_us() {
  if (!reference_)
    reference_ = watch_.prepare(
        plans_.product(std::int64_t{reference.rows} * machine_.workers, reference.cols, reference_k));
  reference_us_.push_back(watch_.us(*reference_));
  return reference_us_.back();
}

/// Rescales tiles to the median reference time, because the first one may be that of a cold device.
void Profiler::settle() {
  if (reference_us_.empty()) return;
  std::vector<double> sorted = reference_us_;
  std::ranges::sort(sorted);
  const double slower = sorted[sorted.size() / 2] / reference_us_.front();
  for (TileRate& tile : machine_.tiles)
    if (std::ranges::find(sampled_, TileShape{tile.rows, tile.cols}) != sampled_.end())
      tile.fixed_us *= slower, tile.us_per_k *= slower;
}

double Profiler::product_us(const Plan& plan) {
  return alone_us(at_one_pace(plan), machine_.launch_us);
}

/// Number of waves that fills a run's target time, by the rate of the reference product.
std::int64_t Profiler::waves(const TileShape& shape, std::int64_t k) {
  constexpr double most = 64;
  if (reference_us_.empty()) reference_us();
  const double rate = flops_of(reference, reference_k) / reference_us_.front();
  return std::llround(std::clamp(watch_.timing().run_us * rate / flops_of(shape, k), 1.0, most));
}

double Profiler::wave_us(const TileShape& shape, std::int64_t k) {
  const Tiled tiled = plans_.tiled(shape, k, waves(shape, k));
  const double us = alone_us(at_one_pace(tiled.plan), machine_.launch_us + machine_.hooked_us);
  return us / static_cast<double>(tiled.waves);
}

const std::array<std::int64_t, 4>& Profiler::lengths() const {
  return can_.tiles.empty() ? lengths_on_cores : lengths_of_kernels;
}

/// Fits the line with the least relative error through the times of a tile and its launch, over all K.
TileRate Profiler::tile(const TileShape& shape) {
  double w = 0, wk = 0, wkk = 0, wt = 0, wkt = 0;
  for (const std::int64_t length : lengths()) {
    if (flops_of(shape, length) > most_flops) continue;
    const auto k = static_cast<double>(length);
    const double us = wave_us(shape, length), weight = std::pow(us + machine_.launch_us, -2);
    w += weight, wk += weight * k, wkk += weight * k * k, wt += weight * us, wkt += weight * k * us;
  }
  TileRate rate{shape.rows, shape.cols, 0, 0};
  rate.us_per_k = (w * wkt - wk * wt) / (w * wkk - wk * wk);
  rate.fixed_us = std::max((wt - rate.us_per_k * wk) / w, 0.0);
  if (rate.fixed_us == 0) rate.us_per_k = wkt / wkk;
  return rate;
}

std::vector<TileShape> Profiler::shapes() const {
  return can_.tiles.empty() ? std::vector<TileShape>(std::begin(any_tiles), std::end(any_tiles)) : can_.tiles;
}

/// Estimates seconds from the time of the reference product, which is timed beside each tile.
double Profiler::tiles_s() const {
  const double rate = flops_of(reference, reference_k) / reference_us_.front();
  double seconds = 0;
  for (const TileShape& shape : shapes())
    for (const std::int64_t k : lengths())
      if (const double us = flops_of(shape, k) / rate; flops_of(shape, k) <= most_flops)
        seconds +=
            runs_s(1, std::max(us, watch_.timing().run_us), true) + runs_s(2, reference_us_.front(), true);
  return seconds;
}

void Profiler::tiles() {
  const std::vector<TileShape> shapes = this->shapes();
  for (const TileShape& shape : shapes) {
    if (!next(fmt::format("tiles of {}x{}", shape.rows, shape.cols))) continue;
    std::erase_if(machine_.tiles,
                  [&](const TileRate& known) { return TileShape{known.rows, known.cols} == shape; });
    machine_.tiles.push_back(tile(shape));
    sampled_.push_back(shape);
  }
  // A kernel with fixed tiles serves only these of the base's tiles.
  if (!can_.tiles.empty())
    std::erase_if(machine_.tiles, [&](const TileRate& known) {
      return std::ranges::find(shapes, TileShape{known.rows, known.cols}) == shapes.end();
    });
  const auto per_element = [](const TileRate& t) { return t.us_per_k / (double(t.rows) * t.cols); };
  std::ranges::stable_sort(machine_.tiles, {}, per_element);
  if (sampled_.empty()) return;
  const std::string text = fmt::format(
      "{}, all workers of all ranks at once{}; lines through K = {} to {}", name(dtype_),
      can_.tiles.empty() ? "" : ", stored by slots and counted", lengths().front(), lengths().back());
  if (sampled_.size() < machine_.tiles.size()) return note_part("tiles", Origin::measured, text);
  note("tiles", Origin::measured, text);
}

/// Compares cuBLASLt products with the waves of their best tiles.
void Profiler::library() {
  constexpr std::array<std::array<std::int64_t, 3>, 5> sizes{
      {{2048, 8192, 3584}, {4096, 8192, 1024}, {4096, 4096, 4096}, {8192, 8192, 1024}, {8192, 8192, 3584}}};
  if (machine_.tiles.empty() || !next("a library's products")) return;
  machine_.library_rate = 1;
  double sum = 0;
  for (const auto& [m, n, k] : sizes)
    sum +=
        std::log(library_gemm_us(machine_, m, n, k, machine_.workers) / product_us(plans_.product(m, n, k)));
  machine_.library_rate = std::exp(sum / sizes.size());
  note("library_rate", Origin::measured,
       fmt::format("mean of {} products, 2048x8192x3584 to 8192x8192x3584", sizes.size()));
}

/// The machine's tile, or the kernel's first tile if the kernel lacks the machine's.
TileShape Profiler::own_tile() const {
  const TileShape shape{machine_.tile_rows, machine_.tile_cols};
  const bool served = can_.tiles.empty() || std::ranges::find(can_.tiles, shape) != can_.tiles.end();
  return served ? shape : can_.tiles.front();
}

/// Measures the part of a hooked product's time that does not grow with the number of waves.
void Profiler::hooked() {
  constexpr std::int64_t k = 1024, few = 1, more = 9;
  if (!next("the begin and the end of a product")) return;
  const TileShape shape = own_tile();
  const Tiled once = plans_.tiled(shape, k, few), often = plans_.tiled(shape, k, more);
  const double us = watch_.us(once.plan);
  const double wave = (watch_.us(often.plan) - us) / static_cast<double>(often.waves - once.waves);
  machine_.hooked_us =
      std::max(us - machine_.begin_us - machine_.launch_us - wave * static_cast<double>(once.waves), 0.0);
  note("hooked_us", Origin::measured,
       fmt::format("{} and {} waves of {}x{}, K = {}", once.waves, often.waves, shape.rows, shape.cols, k));
}

/// Compares products whose tiles hold rows of all shards with a product that reads A in place.
void Profiler::picking() {
  constexpr std::int64_t k = 4096;
  const TileShape shape = own_tile();
  if (size_ < 2 || shape.rows % size_ != 0 || !next("rows picked from shards")) return;
  const auto us = [&](bool picks) { return product_us(plans_.tiled(shape, k, waves(shape, k), picks).plan); };
  const double plain = us(false);
  machine_.picking_rate = plain / us(true);
  note("picking_rate", Origin::measured,
       fmt::format("tiles of {}x{}, K = {}, {} shards", shape.rows, shape.cols, k, size_));
}

/// Checks whether half a tile takes half the time.
void Profiler::edges() {
  constexpr std::int64_t rows = 512, cols = 512, k = 1024;
  if (!next("tiles at edges")) return;
  const auto us = [&](std::int64_t height) {
    return watch_.us(plans_.product(height * machine_.workers, cols, k));
  };
  machine_.whole_tiles = us(rows / 2) > 0.75 * us(rows);
  note("whole_tiles", Origin::measured, "half a tile against a whole one");
}

/// Sizes of the attentions that are measured: squares, and few queries of many keys as in the pieces of a
/// sequence. Few heads leave SMs of GPUs idle. Cores take one head each in backward.
std::vector<AttentionSize> Profiler::attentions(bool backward) const {
  if (can_.tiles.empty()) {
    const std::int64_t heads = backward ? machine_.workers : 4;
    return {{256, 256, heads, 64}, {1024, 1024, heads, 64}, {256, 1024, heads, 64}};
  }
  std::vector<AttentionSize> sizes;
  const std::int64_t longest = backward ? 8192 : 16384;
  for (const auto& [queries, keys] : std::initializer_list<std::pair<std::int64_t, std::int64_t>>{
           {1024, 1024}, {4096, 4096}, {longest, longest}, {1024, 8192}, {longest / 4, longest}})
    for (const std::int64_t heads : {4, 32}) sizes.push_back({queries, keys, heads, 128});
  sizes.push_back({4096, 4096, 32, 64});
  return sizes;
}

/// Time that the simulator gives an attention at the rate of the fastest tile. It has waves of blocks of
/// queries, and so the workers that are idle in the last one.
double Profiler::full_rate_us(const Plan& plan) const {
  Machine machine = machine_;
  machine.attention.clear();
  if (machine.link.gbps == 0) machine.link.gbps = 1;  // nothing is sent
  return simulate(plan, machine).makespan_us - machine.begin_us - machine.launch_us;
}

/// Measures the multiply-add rate of attentions relative to that of the fastest tile.
void Profiler::attention() {
  if (machine_.tiles.empty()) return;
  std::vector<AttentionRate> measured;
  const auto of = [](bool backward) {
    return [backward](const AttentionRate& one) { return one.of.backward == backward; };
  };
  for (const bool backward : {false, true}) {
    if (!next(backward ? "backward of attention" : "attention")) continue;
    std::vector<AttentionRate> rates;
    try {
      for (AttentionSize size : attentions(backward))
        for (const bool causal : {false, true}) {
          size.causal = causal, size.backward = backward;
          const Plan plan = plans_.attention(size);
          rates.push_back({size, full_rate_us(plan) / alone_us(at_one_pace(plan), machine_.launch_us)});
        }
    } catch (const Unsupported&) {  // the base's figures stay
      continue;
    }
    std::erase_if(machine_.attention, of(backward));
    measured.insert(measured.end(), rates.begin(), rates.end());
  }
  if (measured.empty()) return;
  const bool all = machine_.attention.empty();  // nothing of the base is left
  machine_.attention.insert(machine_.attention.begin(), measured.begin(), measured.end());
  const std::string text =
      fmt::format("{} attentions and {} of their backward, causal or not",
                  std::ranges::count_if(measured, of(false)), std::ranges::count_if(measured, of(true)));
  all ? note("attention", Origin::measured, text) : note_part("attention", Origin::measured, text);
}

}  // namespace shingle::tuning
