// How much computation and communication slow each other down (Lagom Eq. 4-6).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "contention_fit.hpp"
#include "profiler.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::tuning {
namespace {

constexpr CollectiveKind contending[] = {CollectiveKind::allreduce, CollectiveKind::reducescatter,
                                         CollectiveKind::allgather};
constexpr std::int32_t channels[] = {2, 8, 16, 32};
constexpr double messages[] = {8 << 20, 64 << 20};

}  // namespace

void Profiler::contention() {
  if (size_ < 2) return;
  if (calls_take_)
    own_workers();
  else
    shared_cores();
}

/// Stores a sample in place of an earlier one of the same computation and collective.
void Profiler::keep(const ContentionSample& sample) {
  const auto key = [](const ContentionSample& s) {
    return std::tuple(s.computation, s.traffic, s.ranks, s.workers, s.chunk_bytes, s.bytes, s.engines);
  };
  std::erase_if(machine_.contention_samples, [&](const auto& known) { return key(known) == key(sample); });
  machine_.contention_samples.push_back(sample);
}

void Profiler::fit(std::string text) {
  machine_.contention = fit_contention(machine_);
  const std::string found = describe_fit(machine_);
  if (options_.progress) options_.progress(fmt::format("          {}", found));
  note("contention_samples", Origin::measured, text);
  note("contention", Origin::fitted, found);
}

/// Runs products and collectives beside each other. There are enough products to cover some collectives, and
/// enough collectives to outlast the products; more of either where they were too few. Returns nothing if no
/// product or no collective was covered completely, or if collectives take too long.
std::optional<ContentionSample> Profiler::beside(const Plan& product, double alone_us, Beside what) {
  constexpr double long_enough = 3.5, longer = 2, longest_us = 2e4;
  constexpr int after = 2;
  const Traffic traffic = parse_traffic(name(what.kind));
  const double known_us =
      what.engines ? wire_factor(traffic, size_) * what.bytes / (machine_.engine.gbps * 1e3)
                   : collective_us(machine_, traffic, size_,
                                   {.channels = what.workers, .chunk_bytes = what.chunk_bytes}, what.bytes);
  const double call_us = known_us > 0 ? known_us : alone_us;
  if (call_us > longest_us) return {};
  Stopwatch::Beside found;
  double more_products = 1, more_calls = 1;  // call_us is a guess where nothing is known of the collective
  for (int tries = 0; tries < 4; ++tries) {
    what.products =
        static_cast<int>(std::ceil(more_products * long_enough * std::max(call_us / alone_us, 1.0)));
    what.calls =
        static_cast<int>(std::ceil(more_calls * longer * what.products * alone_us / call_us)) + after;
    found = watch_.beside(plans_.beside(product, what));
    if (found.product_us == 0 || found.collective_us == 0)
      more_products *= 2;
    else if (found.alone_us == 0)
      more_calls *= 3;
    else
      break;
  }
  const char* const missing = found.product_us == 0      ? "no product was beside them"
                              : found.collective_us == 0 ? "none was beside products"
                              : found.alone_us == 0      ? "none was alone"
                                                         : nullptr;
  if (missing != nullptr) {
    if (options_.progress)
      options_.progress(fmt::format("          {} of {} on {} workers: {}", name(what.kind),
                                    format_bytes(what.bytes), what.workers, missing));
    return {};
  }
  return ContentionSample{.traffic = traffic,
                          .ranks = size_,
                          .workers = what.workers,
                          .chunk_bytes = what.chunk_bytes,
                          .bytes = what.bytes,
                          .us = found.alone_us,
                          .beside_us = found.collective_us,
                          .product_us = alone_us,
                          .product_beside_us = found.product_us,
                          .engines = what.engines,
                          .moved = plans_.moved_by(product)};
}

/// Measures products beside collectives that run as long, by collective, workers and size. The product has
/// workers of its own, and takes them first.
void Profiler::own_workers() {
  constexpr std::int64_t k = 4096;
  const TileShape shape = own_tile();
  std::optional<Plan> product;
  std::map<std::int32_t, double> alone_us;  // of a product, by the workers that it leaves
  for (const CollectiveKind kind : contending) {
    if (!next(fmt::format("computation beside {}", name(kind)))) continue;
    if (!product) product = plans_.tiled(shape, k, waves(shape, k)).plan;
    for (const std::int32_t workers : channels) {
      if (workers >= machine_.workers) continue;
      double& alone = alone_us[workers];
      if (alone == 0) alone = watch_.step_us(plans_.beside(*product, {.products = 3, .left = workers}), 0);
      for (const double bytes : messages) {
        Beside what{.kind = kind,
                    .bytes = bytes,
                    .workers = workers,
                    .chunk_bytes = options_.chunk_bytes,
                    .left = workers,
                    .late = true};
        if (const auto sample = beside(*product, alone, what)) keep(*sample);
      }
    }
  }
  if (!product || machine_.contention_samples.empty()) return;
  beside_engines(*product);
  other_computations();
  if (!can_.tiles.empty() && options_.chunk_bytes == 0) machine_.contention.persistent = comes_late(*product);
  fit(
      fmt::format("{} products, attentions and passes beside collectives on workers of their own, of 2 to 32 "
                  "workers",
                  name(dtype_)));
}

/// Measures a product on all workers beside copies of all ranks' engines, as in an all-gather.
void Profiler::beside_engines(const Plan& product) {
  if (!can_.remote_memory || !machine_.engine.paced() || !next("computation beside copy engines")) return;
  const double alone = watch_.step_us(plans_.beside(product, {.products = 3}), 0);
  for (const double bytes : messages)
    if (const auto sample =
            beside(product, alone, {.kind = CollectiveKind::allgather, .bytes = bytes, .engines = true}))
      keep(*sample);
}

/// An attention or a pass that takes about as long as a collective. Nothing if the backend does not serve it.
std::optional<Plan> Profiler::computation(ComputationKind kind) {
  const bool on_cores = !calls_take_;
  const AttentionSize size =
      on_cores ? AttentionSize{512, 512, 4, 64, true} : AttentionSize{4096, 4096, 32, 128, true};
  const Plan plan =
      kind == ComputationKind::pass ? plans_.pass(on_cores ? 1 << 13 : 1 << 16) : plans_.attention(size);
  try {
    watch_.us(plan);
  } catch (const Unsupported&) {
    return std::nullopt;
  }
  return plan;
}

/// Time of a computation on all but `left` workers. cuDNN's attentions and passes take all SMs that they get:
/// where leaving workers changes nothing, the time follows from that on all. A pass is slower only if the
/// workers left do not saturate memory.
double Profiler::without_workers_us(const Plan& plan, ComputationKind kind, double all_us,
                                    std::int32_t left) {
  const double all = machine_.workers, rest = all - left;
  const auto pass_us = [&](double workers) {
    return std::max(1.0, machine_.memory_gbps / (workers * machine_.pass_gbps));
  };
  const double slower = kind == ComputationKind::attention ? all / rest
                        : machine_.pass_gbps > 0           ? pass_us(rest) / pass_us(all)
                                                           : 1;
  const double us = watch_.step_us(plans_.beside(plan, {.products = 3, .left = left}), 0);
  return us > all_us * (1 + (slower - 1) / 2) ? us : all_us * slower;
}

/// Measures attentions and passes beside all-reduces: each has its own demand of memory (Lagom Eq. 6).
void Profiler::other_computations() {
  for (const ComputationKind kind : {ComputationKind::attention, ComputationKind::pass}) {
    if (!next(fmt::format("{} beside collectives", kind == ComputationKind::pass ? "passes" : "attention")))
      continue;
    const std::optional<Plan> plan = computation(kind);
    if (!plan) continue;
    const double all_us = watch_.step_us(plans_.beside(*plan, {.products = 3}), 0);
    for (const std::int32_t workers : channels) {
      if (workers >= machine_.workers) continue;
      const double alone = without_workers_us(*plan, kind, all_us, workers);
      auto sample = beside(*plan, alone,
                           {.kind = CollectiveKind::allreduce,
                            .bytes = messages[1],
                            .workers = workers,
                            .chunk_bytes = options_.chunk_bytes,
                            .left = workers});
      if (!sample) continue;
      sample->computation = kind;
      if (!waited_for_one(*sample))
        keep(*sample);
      else if (options_.progress)
        options_.progress(fmt::format("          on {} workers: it waited until one had ended", workers));
    }
  }
}

/// True if a collective that starts after a product's begin, with too few workers left, waits for the
/// product's end.
bool Profiler::comes_late(const Plan& product) {
  constexpr double small_bytes = 1 << 20;
  const std::int32_t few = std::max(machine_.workers / 32, 1);
  const Plan late = plans_.beside(
      product,
      {.products = 1, .calls = 1, .bytes = small_bytes, .workers = 6 * few, .left = few, .late = true});
  return watch_.lane_us(late, 1) > 0.9 * watch_.lane_us(late, 0);
}

/// Measures how much computations lose to collectives whose threads share their cores, relative to the
/// collectives' time alone. Nearly empty calls show how much later collectives start beside them.
void Profiler::shared_cores() {
  if (!next("computation beside communication")) return;
  share_cores_with(plans_.reduced_product(1024), ComputationKind::product);
  for (const ComputationKind kind : {ComputationKind::attention, ComputationKind::pass})
    if (const auto plan = computation(kind)) share_cores_with(*plan, kind);
  fit("GEMMs, attentions and passes beside up to 20 all-reduces on the same cores, which take up to 0.3 of "
      "their time");
}

void Profiler::share_cores_with(const Plan& computation, ComputationKind kind) {
  constexpr double share = 0.3;  // of the computations' time
  constexpr int most_calls = 20, computations = 4;
  constexpr double whole = 1024.0 * 1024 * 4;
  const auto plan = [&](int count, int calls, double bytes) {
    return plans_.beside(computation, {.products = count, .calls = calls, .bytes = bytes});
  };
  const double alone = at_one_pace(plan(computations, 0, 0));
  for (const double bytes : {whole / 256, whole / 4, whole}) {
    const int several = bytes < whole / 64 ? most_calls : 4;
    const double us = watch_.lane_us(plan(0, several, bytes), 0) / several;
    const int calls = std::clamp(static_cast<int>(share * alone / us), 1, most_calls);
    const double beside_us = watch_.lane_us(plan(2 * computations, several, bytes), 1) / several;
    keep({.traffic = Traffic::allreduce,
          .ranks = size_,
          .bytes = bytes,
          .us = us,
          .beside_us = beside_us,
          .product_us = alone,
          .product_beside_us = at_one_pace(plan(computations, calls, bytes)),
          .calls = calls,
          .computation = kind,
          .moved = plans_.moved_by(computation)});
  }
}

}  // namespace shingle::tuning
