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

/// Stores a sample in place of an earlier one of the same collective.
void Profiler::keep(const ContentionSample& sample) {
  const auto key = [](const ContentionSample& s) {
    return std::tuple(s.traffic, s.ranks, s.workers, s.chunk_bytes, s.bytes);
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
  const double known_us = collective_us(
      machine_, traffic, size_, {.channels = what.workers, .chunk_bytes = what.chunk_bytes}, what.bytes);
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
                          .product_beside_us = found.product_us};
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
  if (!can_.tiles.empty() && options_.chunk_bytes == 0) machine_.contention.persistent = comes_late(*product);
  fit(fmt::format("{} products beside collectives on workers of their own, of 2 to 32 workers",
                  name(dtype_)));
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

/// Measures how much a GEMM loses to collectives whose threads share its cores, relative to the collectives'
/// time alone. Nearly empty calls show how much later collectives start beside it.
void Profiler::shared_cores() {
  constexpr std::int64_t size = 1024;
  constexpr double share = 0.3;  // of the products' time
  constexpr int most_calls = 20, products = 4;
  constexpr double whole = size * size * 4;
  if (!next("computation beside communication")) return;
  const Plan product = plans_.reduced_product(size);
  const auto plan = [&](int gemms, int calls, double bytes) {
    return plans_.beside(product, {.products = gemms, .calls = calls, .bytes = bytes});
  };
  const double alone = at_one_pace(plan(products, 0, 0));
  for (const double bytes : {whole / 256, whole / 4, whole}) {
    const int several = bytes < whole / 64 ? most_calls : 4;
    const double us = watch_.lane_us(plan(0, several, bytes), 0) / several;
    const int calls = std::clamp(static_cast<int>(share * alone / us), 1, most_calls);
    const double beside_us = watch_.lane_us(plan(2 * products, several, bytes), 1) / several;
    keep({Traffic::allreduce, size_, 0, 0, bytes, us, beside_us, alone,
          at_one_pace(plan(products, calls, bytes)), calls});
  }
  fit("GEMMs beside up to 20 all-reduces on the same cores, which take up to 0.3 of their time");
}

}  // namespace shingle::tuning
