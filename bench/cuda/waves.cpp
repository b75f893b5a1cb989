// Measures when every tile of one GEMM is finished (FlashOverlap Fig. 3). The instrumented kernel runs
// unchanged, with a counter for each tile. A second kernel on an SM of its own records when the counters
// change. Waves are those of the schedule: with n CTAs, the tile at position p of the order is in wave p / n.
#include <CLI/CLI.hpp>

#include <cmath>

#include "base/statistics.hpp"
#include "hooked_gemm.hpp"
#include "watch.hpp"

using namespace shingle;
using namespace shingle::bench;

namespace {

constexpr double timeout_us = 5e6;
constexpr double near = 0.05;  // share of a wave's time within which the paper finds the wave's tiles

/// Time at which each tile was finished, in µs from the start, by position; negative if there is no tile.
using TileTimes = std::vector<double>;

/// Runs a kernel that counts its tiles, and returns their times.
TileTimes watch(const HookedGemm& gemm) {
  LocalRank rank(0, 0);
  const WaitTimeout timeout(timeout_us);
  const auto tiles = static_cast<std::size_t>(gemm.grid().positions());
  std::vector<std::uint32_t> counts(tiles + 1, 0);  // the last counter marks the start
  for (std::size_t p = 0; p < tiles; ++p)
    counts[p] = gemm.grid().phantom(gemm.grid().tile(static_cast<std::int64_t>(p))) ? 1 : 0;
  check(cudaMemcpy(gemm.counts(), counts.data(), counts.size() * sizeof(counts[0]), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  std::vector<std::uint64_t> seen(tiles + 1, 0);
  const DeviceMemory times = upload(seen), ready = upload(std::vector<std::uint32_t>{0}),
                     epoch = upload(std::vector<std::uint32_t>{0});
  const Stream watching, computing;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  check(
      launch_watch(gemm.counts(), static_cast<std::int32_t>(tiles + 1), times.get<std::uint64_t>(),
                   ready.get<std::uint32_t>(), static_cast<std::uint64_t>(timeout_us * 1e3), watching.get()),
      "launch_watch");
  const SyncOp start[] = {{SyncKind::await, ready.get<std::uint32_t>(), 1, 0, true},
                          {SyncKind::add, gemm.counts() + tiles, 1, 0, false}};
  check(launch_sync(start, 2, rank.watch(epoch.get<std::uint32_t>(), timeout), computing.get()),
        "launch_sync");
  gemm.launch(computing.get());
  computing.synchronize(), watching.synchronize();
  check(cudaMemcpy(seen.data(), times.get(), times.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  TileTimes us;
  for (std::size_t p = 0; p < tiles; ++p) {
    if (seen[p] == 0 || seen[tiles] == 0)
      throw Timeout(fmt::format("tile {} was not seen within {} s", p, timeout_us * 1e-6));
    us.push_back(counts[p] != 0 ? -1
                                : (static_cast<double>(seen[p]) - static_cast<double>(seen[tiles])) * 1e-3);
  }
  return us;
}

/// The smallest non-zero difference between two times.
double step_us(TileTimes times) {
  std::ranges::sort(times);
  double least = times.back();
  for (std::size_t i = 1; i < times.size(); ++i)
    if (times[i] > times[i - 1] && times[i - 1] >= 0) least = std::min(least, times[i] - times[i - 1]);
  return least;
}

struct Wave {
  std::size_t tiles = 0;
  Spread us{};
  double p5 = 0, p95 = 0;
  double near = 0;  ///< share of tiles finished within 5% of a wave's time around the median
};

struct Waves {
  /// time between the medians of consecutive waves; the median if there is only one wave
  double wave_us = 0;
  std::vector<Wave> all;
};

Waves waves_of(const TileTimes& times, std::int32_t ctas) {
  Waves waves;
  std::vector<Samples> tiles;
  for (std::size_t p = 0; p < times.size(); ++p) {
    tiles.resize(p / static_cast<std::size_t>(ctas) + 1);
    if (times[p] >= 0) tiles.back().us.push_back(times[p]);
  }
  std::erase_if(tiles, [](const Samples& wave) { return wave.us.empty(); });
  // A last wave with few tiles is left out: its tiles get a larger share of the memory bandwidth each.
  const std::size_t full = tiles.size() > 2 ? tiles.size() - 1 : tiles.size();
  const double first = tiles[0].median();
  waves.wave_us = full > 1 ? (tiles[full - 1].median() - first) / static_cast<double>(full - 1) : first;
  for (const Samples& wave : tiles) {
    const double median = wave.median();
    const auto close = std::ranges::count_if(
        wave.us, [&](double us) { return std::abs(us - median) <= near * waves.wave_us; });
    waves.all.push_back({wave.us.size(), spread_of(wave.us), wave.at(0.05), wave.at(0.95),
                         static_cast<double>(close) / static_cast<double>(wave.us.size())});
  }
  return waves;
}

void print(const GemmShape& shape, const GemmSetup& setup, const Waves& waves, double step) {
  fmt::print("\n{}x{}x{}, tiles {}x{}, waves of {} tiles, each {:.1f} us (times are in steps of {:.2f} us)\n",
             shape.m, shape.n, shape.k, setup.instance.tile.rows, setup.instance.tile.cols, setup.ctas,
             waves.wave_us, step);
  fmt::print("{:>5} {:>6} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8}  {}\n", "wave", "tiles", "first us",
             "median us", "last us", "p25-p75", "p5-p95", "all", "within 5%");
  for (std::size_t w = 0; w < waves.all.size(); ++w) {
    const Wave& wave = waves.all[w];
    const auto percent = [&](double us) { return fmt::format("{:.1f}%", 100 * us / waves.wave_us); };
    fmt::print("{:>5} {:>6} {:>9.1f} {:>9.1f} {:>9.1f} {:>8} {:>8} {:>8}  {:.2f}\n", w, wave.tiles,
               wave.us.least, wave.us.median, wave.us.most, percent(wave.us.p75 - wave.us.p25),
               percent(wave.p95 - wave.p5), percent(wave.us.most - wave.us.least), wave.near);
  }
}

nlohmann::json json_of(const GemmShape& shape, const GemmSetup& setup, const Waves& waves,
                       const TileTimes& times) {
  nlohmann::json row{{"m", shape.m},
                     {"n", shape.n},
                     {"k", shape.k},
                     {"tile", fmt::format("{}x{}", setup.instance.tile.rows, setup.instance.tile.cols)},
                     {"ctas", setup.ctas},
                     {"wave_us", waves.wave_us},
                     {"step_us", step_us(times)},
                     {"tile_us", times}};
  for (const Wave& wave : waves.all)
    row["waves"].push_back({{"tiles", wave.tiles},
                            {"first_us", wave.us.least},
                            {"p5_us", wave.p5},
                            {"p25_us", wave.us.p25},
                            {"median_us", wave.us.median},
                            {"p75_us", wave.us.p75},
                            {"p95_us", wave.p95},
                            {"last_us", wave.us.most},
                            {"within_5_percent", wave.near}});
  return row;
}

const GemmInstance& instance_of(const std::string& tile) {
  for (const GemmInstance& instance : gemm_instances(GemmFamily::sm90))
    if (instance.type == Element::bf16 && !instance.transpose_a && instance.transpose_b &&
        tile == fmt::format("{}x{}", instance.tile.rows, instance.tile.cols))
      return instance;
  throw InvalidArgument(fmt::format("this build has no tile {} for compute capability 9.0", tile));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Completion times of a GEMM's tiles, and how they spread within a wave, on one GPU");
  std::vector<std::string> shapes{"2048x8192x1024", "2048x8192x7168", "4096x8192x3584",
                                  "8192x8192x3584", "8192x7168x8192", "16384x8192x1024"};
  std::string tile = "128x256", json;
  std::int32_t swizzle = 8;
  app.add_option("--shape", shapes, "MxNxK; may be repeated")->delimiter(',')->capture_default_str();
  app.add_option("--tile", tile)->capture_default_str();
  app.add_option("--swizzle", swizzle)->capture_default_str();
  app.add_option("--json", json, "file for the record, written anew after each shape");
  CLI11_PARSE(app, argc, argv);
  try {
    auto record = bench::record(argc, argv);
    check(preload_watch(), "preload_watch");
    check(preload_sync(), "preload_sync");
    const GemmInstance& instance = instance_of(tile);
    const std::int32_t cluster = instance.tile.cluster;
    for (const GemmShape& shape : parse_shapes(shapes)) {
      const DeviceMemory a = uniform(shape.m * shape.k, 1), b = uniform(shape.n * shape.k, 2),
                         out(HookedGemm::out_bytes(shape));
      const GemmSetup setup{.instance = instance,
                            .shape = shape,
                            .order = {Raster::along_m, swizzle, cluster, 1, 0},
                            .granularity = Granularity::tile,
                            .ctas = (sm_count() - 1) / cluster * cluster,
                            .count_tiles = true};
      const HookedGemm gemm(setup, a.get(), b.get(), out.get<char>());
      watch(gemm);  // warms up
      const TileTimes times = watch(gemm);
      const Waves waves = waves_of(times, setup.ctas);
      print(shape, setup, waves, step_us(times));
      std::fflush(stdout);
      record["rows"].push_back(json_of(shape, setup, waves, times));
      bench::save(record, json);
    }
    bench::write(record, json);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "bench_cuda_waves: {}\n", error.what());
    return 1;
  }
}
