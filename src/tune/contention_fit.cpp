#include "contention_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "shingle/base/units.hpp"

namespace shingle::tuning {
namespace {

using Samples = std::vector<ContentionSample>;

constexpr double wire_traffic = 3;  // memory bytes per byte on the wire: read, received and written

double square(double x) {
  return x * x;
}

/// Least-squares slope of y over x, at least 0.
class Slope {
 public:
  void add(double x, double y) { xx_ += x * x, xy_ += x * y; }
  double value() const { return xx_ > 0 ? std::max(xy_ / xx_, 0.0) : 0; }

 private:
  double xx_ = 0, xy_ = 0;
};

/// Slow-down of a computation, without what the kind of collective beside it adds to products.
double slowdown(const Contention& contention, const ContentionSample& sample) {
  const bool slowed = sample.computation == ComputationKind::product && !sample.engines;
  const double more = slowed ? contention.slowed_by(sample.traffic) : 0;
  return sample.product_beside_us / sample.product_us / (1 + more) - 1;
}

/// Rate in 1e9 bytes/s at which a rank's engine sends, and receives as much.
double engine_gbps(const ContentionSample& sample) {
  return wire_factor(sample.traffic, sample.ranks) * sample.bytes / sample.beside_us * 1e-3;
}

/// Bandwidth that slows a computation down as measured (Eq. 6, solved for V).
double taken_gbps(const Contention& contention, double share, const ContentionSample& sample,
                  double memory_gbps) {
  return memory_gbps * (1 - 1 / (1 + std::max(slowdown(contention, sample), 0.0) / share));
}

double share_of(const Contention& contention, const ContentionSample& sample, double memory_gbps) {
  return contention.share(sample.computation, sample.moved, sample.product_us, memory_gbps);
}

double chunks(const ContentionSample& sample) {
  return chunks_of(sample.traffic, sample.ranks, sample.workers, sample.chunk_bytes, sample.bytes);
}

/// Time of the collective alone with large chunks: measured if there is such a sample, else from the curves.
double large_chunks_us(const Machine& machine, const ContentionSample& sample) {
  for (const ContentionSample& other : machine.contention_samples)
    if (other.chunk_bytes == 0 && other.traffic == sample.traffic && other.ranks == sample.ranks &&
        other.workers == sample.workers && other.bytes == sample.bytes)
      return other.us;
  return collective_us(machine, sample.traffic, sample.ranks, sample.workers, sample.bytes);
}

double alone_us(const Machine& machine, const ContentionSample& sample) {
  const double us = large_chunks_us(machine, sample);
  return sample.chunk_bytes > 0 ? us + chunks(sample) * machine.contention.chunk_us.value_or(0) : us;
}

/// A geometric range of values that narrows around one of them.
struct Range {
  static constexpr int places = 24;
  double least = 0, most = 0;

  double at(int place) const { return least * std::pow(most / least, double(place) / places); }
  /// The range between the neighbours of `center`.
  Range around(double center) const {
    const double step = std::pow(most / least, 1.0 / places);
    return {center / step, center * step};
  }
};

/// Fits V, and how much of each kind of computation's time waits for memory. It tries values of V's two
/// parameters. Each pair implies the latter; the least squares win. How much a pass waits is known, as it
/// reads nothing twice. So slow-downs of passes tell V itself.
class TrafficFit {
 public:
  TrafficFit(const Machine& machine, const Samples& samples)
      : samples_(samples), found_(machine.contention), memory_gbps_(machine.memory_gbps) {
    for (const ContentionSample& sample : samples) {
      most_workers_ = std::max(most_workers_, sample.workers);
      const double wire_gbps = wire_factor(sample.traffic, sample.ranks) * sample.bytes / sample.us * 1e-3;
      assumed_gbps_ += wire_traffic * wire_gbps / sample.workers / static_cast<double>(samples.size());
    }
    const auto [least, most] = std::ranges::minmax(samples, {}, &ContentionSample::chunk_bytes);
    several_chunks_ = least.chunk_bytes != most.chunk_bytes;
    most_chunk_bytes_ = static_cast<double>(most.chunk_bytes);
  }

  Contention best() && {
    constexpr int rounds = 6;
    constexpr double wide = 4096;
    const double most_gbps = memory_gbps_ / most_workers_;
    Range gbps{most_gbps / wide, most_gbps}, chunk{most_chunk_bytes_ / wide, most_chunk_bytes_ * wide};
    for (int round = 0; round < rounds; ++round) {
      for (int i = 0; i <= Range::places; ++i)
        if (several_chunks_)
          for (int j = 0; j <= Range::places; ++j) try_out(gbps.at(i), chunk.at(j));
        else
          try_out(gbps.at(i), found_.chunk_bytes);
      gbps = gbps.around(found_.channel_gbps);
      chunk = chunk.around(found_.chunk_bytes);
    }
    return found_;
  }

 private:
  void try_out(double gbps, double chunk_bytes) {
    constexpr double noise = 0.01;  // of a slow-down: within it, the assumed V decides
    Contention tried = found_;
    tried.channel_gbps = gbps, tried.chunk_bytes = chunk_bytes;
    std::vector<double> waiting;  // slow-down of a computation that only waits for memory
    Slope share;                  // of products
    std::array<Slope, computation_kinds> misses;
    std::array<bool, computation_kinds> known{};
    for (const ContentionSample& sample : samples_) {
      const double taken = tried.traffic_gbps(sample.workers, static_cast<double>(sample.chunk_bytes));
      const double waits = Contention::slowed(1, taken, memory_gbps_) - 1;
      waiting.push_back(waits);
      if (sample.computation == ComputationKind::product) share.add(waits, slowdown(tried, sample));
      if (sample.moved.once == 0) continue;
      const auto kind = static_cast<std::size_t>(sample.computation);
      const auto part = [&](double bytes) {
        return waits * bytes / (memory_gbps_ * 1e3) / sample.product_us;
      };
      misses[kind].add(part(sample.moved.again), slowdown(tried, sample) - part(sample.moved.once));
      known[kind] = true;
    }
    tried.memory_share = std::min(share.value(), 1.0);
    for (std::size_t kind = 0; kind < known.size(); ++kind)
      if (known[kind]) tried.misses[kind] = std::min(misses[kind].value(), 1.0);
    double cost = square(noise * std::log(gbps / assumed_gbps_));
    for (std::size_t i = 0; i < waiting.size(); ++i)
      cost += square(slowdown(tried, samples_[i]) - share_of(tried, samples_[i], memory_gbps_) * waiting[i]);
    if (cost >= least_cost_) return;
    least_cost_ = cost;
    found_ = tried;
  }

  const Samples& samples_;
  Contention found_;
  double memory_gbps_ = 0, assumed_gbps_ = 0, most_chunk_bytes_ = 0;
  std::int32_t most_workers_ = 1;
  bool several_chunks_ = false;
  double least_cost_ = std::numeric_limits<double>::infinity();
};

void fit_own_workers(Machine& machine, const Samples& samples) {
  Contention& contention = machine.contention;
  if (machine.memory_gbps > 0) contention = TrafficFit(machine, samples).best();
  Slope chunk_us, slower;
  for (const ContentionSample& sample : samples) {
    if (sample.computation == ComputationKind::product) slower.add(1, sample.beside_us / sample.us - 1);
    if (sample.chunk_bytes == 0) continue;
    const double us = large_chunks_us(machine, sample);
    chunk_us.add(chunks(sample) / us, sample.us / us - 1);
  }
  contention.collective_slowdown = slower.value();
  if (std::ranges::any_of(samples, [](const auto& sample) { return sample.chunk_bytes > 0; }))
    contention.chunk_us = chunk_us.value();
}

/// Memory traffic at both ends of what engines move, from the computations' demand of memory.
void fit_engines(Machine& machine, const Samples& samples) {
  Slope traffic;
  for (const ContentionSample& sample : samples)
    if (const double share = share_of(machine.contention, sample, machine.memory_gbps); share > 0)
      traffic.add(2 * engine_gbps(sample),
                  taken_gbps(machine.contention, share, sample, machine.memory_gbps));
  machine.contention.engine_traffic = traffic.value();
}

void fit_shared_cores(Machine& machine, const Samples& samples) {
  Slope steals, wake_us;
  for (const ContentionSample& sample : samples) {
    steals.add(sample.calls * sample.us / sample.product_us, slowdown(machine.contention, sample));
    wake_us.add(1 / sample.us, sample.beside_us / sample.us - 1);
  }
  machine.contention.steals = std::min(steals.value(), 1.0);
  machine.contention.wake_us = wake_us.value();
}

}  // namespace

Residual residual_of(const Machine& machine, const ContentionSample& sample) {
  const Contention& contention = machine.contention;
  const double taken = sample.engines
                           ? contention.engine_traffic * 2 * engine_gbps(sample)
                           : contention.traffic_gbps(sample.workers, static_cast<double>(sample.chunk_bytes));
  const double slowed =
      sample.calls > 0
          ? 1 + contention.steals * sample.calls * sample.us / sample.product_us
          : Contention::slowed(share_of(contention, sample, machine.memory_gbps), taken, machine.memory_gbps);
  const double beside = sample.engines     ? sample.us
                        : sample.calls > 0 ? sample.us + contention.wake_us
                                           : alone_us(machine, sample) * (1 + contention.collective_slowdown);
  return {slowed / (1 + slowdown(contention, sample)) - 1, beside / sample.beside_us - 1};
}

bool waited_for_one(const ContentionSample& sample) {
  constexpr double longer = 1.5, most = 0.8;
  return sample.computation == ComputationKind::pass && sample.beside_us > longer * sample.product_us &&
         sample.product_beside_us - sample.product_us > most * sample.beside_us;
}

Contention fit_contention(const Machine& machine) {
  Machine fitted = machine;
  Samples own, shared, engines;
  for (const ContentionSample& sample : machine.contention_samples)
    (sample.engines ? engines : sample.calls > 0 ? shared : own).push_back(sample);
  if (!own.empty()) fit_own_workers(fitted, own);
  if (!engines.empty()) fit_engines(fitted, engines);
  if (!shared.empty()) fit_shared_cores(fitted, shared);
  double product = 0, collective = 0;
  for (const ContentionSample& sample : machine.contention_samples) {
    const Residual residual = residual_of(fitted, sample);
    product += square(residual.product), collective += square(residual.collective);
  }
  const auto count = static_cast<double>(machine.contention_samples.size());
  if (count > 0) {
    fitted.contention.product_residual = std::sqrt(product / count);
    fitted.contention.collective_residual = std::sqrt(collective / count);
  }
  return fitted.contention;
}

std::string describe_fit(const Machine& machine) {
  const Contention& found = machine.contention;
  const auto& samples = machine.contention_samples;
  if (samples.empty()) return "nothing was measured";
  const ContentionSample& farthest = *std::ranges::max_element(
      samples, {}, [&](const auto& sample) { return std::abs(residual_of(machine, sample).product); });
  std::string text, on;
  if (farthest.calls > 0) {
    text = fmt::format("collectives steal {:.2f} of their time and meet {:.1f} us later", found.steals,
                       found.wake_us);
  } else {
    const std::string part =
        found.chunk_bytes > 0 ? fmt::format(" * C / (C + {})", format_bytes(found.chunk_bytes)) : "";
    text = fmt::format(
        "V = NC * {:.1f} GB/s{}, products wait for memory {:.1f}% of their time, collectives "
        "are {:.1f}% slower beside them",
        found.channel_gbps, part, 100 * found.memory_share, 100 * found.collective_slowdown);
    for (const ComputationKind kind : all_computation_kinds)
      if (const auto missed = found.misses_of(kind); missed && kind != ComputationKind::pass)
        text += fmt::format(", caches miss {:.0f}% of what a {} reads again", 100 * *missed, name(kind));
    if (found.chunk_us) text += fmt::format(" and take {:.3f} us a chunk", *found.chunk_us);
    if (found.engine_traffic > 0)
      text += fmt::format(", copy engines take {:.2f} of their rate at both ends", found.engine_traffic);
    on = farthest.engines ? " by engines" : fmt::format(" on {} workers", farthest.workers);
  }
  return text +
         fmt::format(
             "; residuals of {} samples: computations {:.1f}%, collectives {:.1f}%; farthest: {} {:+.1f}% "
             "beside {} of {}{}",
             samples.size(), 100 * found.product_residual.value_or(0),
             100 * found.collective_residual.value_or(0), name(farthest.computation),
             100 * residual_of(machine, farthest).product, name(farthest.traffic),
             format_bytes(farthest.bytes), on);
}

}  // namespace shingle::tuning
