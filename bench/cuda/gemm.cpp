// Compares the instrumented GEMM with cuBLASLt's fastest algorithm on one GPU (FlashOverlap §6.6, claim C3).
// The GEMM runs with idle hooks, and storing and signalling tiles, subtiles and subtokens in the order in
// which they are sent.
//
// Runs alternate, each after a pause, so that neither clocks nor caches favour one side. Inputs have random
// bits throughout, as their power consumption decides the clock. All results are compared element by element,
// to one rounding.
#include <CLI/CLI.hpp>

#include <chrono>
#include <cmath>
#include <numeric>

#include "base/parallel.hpp"
#include "cuda/commands/blas.hpp"
#include "hooked_gemm.hpp"
#include "rounding.hpp"

using namespace shingle;
using namespace shingle::bench;

namespace {

constexpr Granularity reordered[] = {Granularity::tile, Granularity::subtile, Granularity::subtoken};

/// GEMMs of the suite: tensor parallelism of eight, M of a prefill.
std::vector<GemmShape> suite(std::int64_t least_m) {
  std::vector<GemmShape> shapes;
  for (const auto& [n, k] : {std::pair{8192, 3584}, {8192, 1024}, {7168, 8192}, {12288, 6144}, {6144, 12288}})
    for (std::int64_t m = least_m; m <= 16384; m *= 2) shapes.push_back({m, n, k});
  return shapes;
}

/// Shapes of no model: M between 1024 and 16384, most of them small, N and K multiples of 64.
std::vector<GemmShape> random_shapes(int count) {
  std::mt19937 random(27);
  // Not a standard distribution, as libraries differ in them.
  const auto at = [&](double least, double most) { return least + (most - least) * (random() * 0x1p-32); };
  std::vector<GemmShape> shapes;
  while (std::ssize(shapes) < count)
    shapes.push_back({.m = std::llround(std::exp2(at(10, 14))),
                      .n = 64 * std::llround(at(16, 256)),
                      .k = 64 * std::llround(at(8, 224))});
  return shapes;
}

/// The range of shapes in the paper's figures on overhead.
std::vector<GemmShape> overhead_shapes() {
  std::vector<GemmShape> shapes;
  for (const std::int64_t m : {128, 512, 2048, 8192, 32768})
    for (const std::int64_t n : {1024, 8192})
      for (const std::int64_t k : {1024, 8192, 32768}) shapes.push_back({m, n, k});
  return shapes;
}

struct Operands {
  DeviceMemory a, b;

  /// Allocates enough for every shape; a shape uses a part of it.
  explicit Operands(const std::vector<GemmShape>& shapes) {
    std::int64_t most_a = 0, most_b = 0;
    for (const GemmShape& shape : shapes) {
      most_a = larger(most_a, shape.m * shape.k);
      most_b = larger(most_b, shape.n * shape.k);
    }
    a = uniform(most_a, 1), b = uniform(most_b, 2);
  }
};

/// True if every row of every tile is at its place, with cuBLASLt's values.
bool right(const HookedGemm& gemm, const DeviceMemory& out, const std::vector<std::uint16_t>& expected,
           const GemmShape& shape) {
  const std::vector<std::uint16_t> found = download(out);
  const TileGrid& grid = gemm.grid();
  std::atomic<bool> all{true};
  parallel_for(static_cast<std::size_t>(grid.positions()), [&](std::size_t i) {
    const auto position = static_cast<std::int64_t>(i);
    const Tile tile = grid.tile(position);
    if (grid.phantom(tile)) return;
    const TileRect rect = grid.rect(tile);
    for (std::int32_t row = 0; row < rect.rows; ++row) {
      const TileLayout::RowAt at = gemm.layout().at(position, row);
      const std::uint16_t* const own = found.data() + at.offset / 2;
      const std::uint16_t* const other = expected.data() + at.row * shape.n + rect.col;
      for (std::int64_t col = 0; col < rect.cols; ++col)
        if (!same(own[col], other[col], shape.k)) all = false;
    }
  });
  return all;
}

struct Best {
  const GemmInstance* instance = nullptr;
  TileOrder order;
  std::int64_t parts = 0;  ///< GemmSetup::parts
  double us = 1e30;
  /// microseconds of each tile shape, in its better order
  nlohmann::json by_tile = nlohmann::json::object();
};

Best search(const GemmShape& shape, const std::vector<std::int64_t>& parts, const Operands& operands,
            const DeviceMemory& out, Stopwatch& stopwatch) {
  Best best;
  for (const GemmInstance& instance : gemm_instances(GemmFamily::sm90)) {
    if (instance.type != Element::bf16 || instance.transpose_a || !instance.transpose_b) continue;
    for (const std::int32_t swizzle : {4, 8})
      for (const std::int64_t of : parts) {
        const TileOrder order{Raster::along_m, swizzle, instance.tile.cluster, 1, 0};
        const HookedGemm candidate(
            {.instance = instance, .shape = shape, .order = order, .parts = of, .ctas = sm_count()},
            operands.a.get(), operands.b.get(), out.get<char>());
        const auto launch = [&](cudaStream_t on) { candidate.launch(on); };
        stopwatch.time_us(launch);
        const double us = std::min(stopwatch.time_us(launch), stopwatch.time_us(launch));
        auto tile = fmt::format("{}x{}, {}", instance.tile.rows, instance.tile.cols, instance.tile.cluster);
        if (of > 0) tile += fmt::format(", K in {}", of);
        best.by_tile[tile] = std::min(us, best.by_tile.value(tile, us));
        if (us < best.us) best.instance = &instance, best.order = order, best.parts = of, best.us = us;
      }
  }
  if (best.instance == nullptr) throw Unsupported("this build has no kernels for compute capability 9.0");
  return best;
}

nlohmann::json compare(const GemmShape& shape, const std::vector<std::int64_t>& parts,
                       const Operands& operands, int repeat, int ranks) {
  const DeviceMemory out(HookedGemm::out_bytes(shape)),
      expected(static_cast<std::size_t>(shape.m * shape.n * 2));
  Stopwatch stopwatch;
  const BlasHandle handle;
  LibraryProblem problem;
  problem.m = shape.m, problem.n = shape.n, problem.k = shape.k;
  problem.transpose_b = true;
  problem.lda = problem.ldb = shape.k, problem.ldc = shape.n;
  LibraryGemm library(handle, problem);
  const LibraryOperands matrices{
      .a = operands.a.get(), .b = operands.b.get(), .bias = nullptr, .c = expected.get()};
  library.tune(stopwatch.stream(), matrices);
  const DeviceMemory workspace(library.workspace_bytes());
  const auto run_library = [&](cudaStream_t on) { library.run(on, matrices, workspace.get()); };
  const Best best = search(shape, parts, operands, out, stopwatch);
  const auto made = [&](Granularity granularity) {
    return HookedGemm({.instance = *best.instance,
                       .shape = shape,
                       .order = best.order,
                       .granularity = granularity,
                       .parts = best.parts,
                       .ranks = ranks,
                       .ctas = sm_count()},
                      operands.a.get(), operands.b.get(), out.get<char>());
  };
  std::vector<HookedGemm> kernels;
  kernels.push_back(made(Granularity::none));
  std::vector<Granularity> measured;
  for (const Granularity granularity : reordered) {
    if (granularity == Granularity::subtile && shape.m % best.instance->tile.rows != 0) continue;
    kernels.push_back(made(granularity));
    measured.push_back(granularity);
  }
  Samples theirs;
  std::vector<Samples> ours(kernels.size());
  for (int i = 0; i < repeat; ++i) {
    theirs.us.push_back(stopwatch.time_us(run_library));
    for (std::size_t j = 0; j < kernels.size(); ++j)
      ours[j].us.push_back(stopwatch.time_us([&](cudaStream_t on) { kernels[j].launch(on); }));
  }
  const std::vector<std::uint16_t> reference = download(expected);
  bool verified = true;
  for (const HookedGemm& kernel : kernels) {
    out.fill(0xff);
    stopwatch.time_us([&](cudaStream_t on) { kernel.launch(on); });
    verified = right(kernel, out, reference, shape) && verified;
  }
  const double idle_us = ours[0].median();
  nlohmann::json row{{"m", shape.m},
                     {"n", shape.n},
                     {"k", shape.k},
                     {"tile", fmt::format("{}x{}", best.instance->tile.rows, best.instance->tile.cols)},
                     {"swizzle", best.order.swizzle},
                     {"by_tile_us", best.by_tile},
                     {"library", theirs.json()},
                     {"idle", ours[0].json()},
                     {"of_library_idle", theirs.median() / idle_us},
                     {"of_library_hooks", theirs.median() / ours[1].median()},
                     {"verified", verified}};
  for (std::size_t j = 1; j < kernels.size(); ++j) {
    const std::string granularity(name(measured[j - 1]));
    row["hooks"][granularity] = ours[j].json();
    row["hooks_cost"][granularity] = ours[j].median() / idle_us - 1;
  }
  return row;
}

void print(const nlohmann::json& row) {
  fmt::print(
      "{:>5}x{:>5}x{:>5}  tile {:7} swizzle {}  library {:8.1f} us  idle {:.3f}  tiles {:.3f} of it  cost",
      row["m"].get<int>(), row["n"].get<int>(), row["k"].get<int>(), row["tile"].get<std::string>(),
      row["swizzle"].get<int>(), row["library"]["median_us"].get<double>(),
      row["of_library_idle"].get<double>(), row["of_library_hooks"].get<double>());
  for (const auto& [granularity, cost] : row["hooks_cost"].items())
    fmt::print(" {} {:+.1f}%", granularity, 100 * cost.get<double>());
  fmt::print("  right: {}\n", row["verified"].get<bool>() ? "yes" : "NO");
  std::fflush(stdout);
}

void summarize(const nlohmann::json& rows) {
  if (rows.empty()) return;
  const auto count = static_cast<double>(rows.size());
  double idle = 0, tiles = 0, worst = 10;
  for (const auto& row : rows) {
    idle += std::log(row["of_library_idle"].get<double>());
    tiles += std::log(row["of_library_hooks"].get<double>());
    worst = std::min(worst, row["of_library_hooks"].get<double>());
  }
  fmt::print(
      "geomean of {} shapes: idle {:.3f}, with slots and signals {:.3f} (target 0.97), worst {:.3f} (0.93)\n",
      rows.size(), std::exp(idle / count), std::exp(tiles / count), worst);
  for (const Granularity granularity : reordered) {
    Samples costs;
    for (const auto& row : rows)
      if (const auto cost = row["hooks_cost"].find(name(granularity)); cost != row["hooks_cost"].end())
        costs.us.push_back(cost->get<double>());
    if (costs.us.empty()) continue;
    fmt::print(
        "cost of hooks by {}: mean {:+.2f}% (target 1%), median {:+.2f}%, largest {:+.2f}%\n",
        name(granularity),
        100 * std::accumulate(costs.us.begin(), costs.us.end(), 0.0) / static_cast<double>(costs.us.size()),
        100 * costs.median(), 100 * costs.at(1));
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The instrumented GEMM beside the library's best, bf16, on one GPU");
  std::int64_t least_m = 1024;
  int repeat = 9, ranks = 4, random = 0;
  double budget_s = 0;
  bool overhead = false;
  std::string json;
  std::vector<std::string> only;
  std::vector<std::int64_t> parts{0};
  app.add_option("--shape", only, "MxNxK, instead of the suite; may be repeated");
  app.add_option("--random", random, "number of random shapes, instead of the suite; few have subtiles")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--overhead", overhead, "M,N,K from 128,1024,1024 to 32768,8192,32768, instead of the suite");
  app.add_option("--least-m", least_m, "the smallest M; it doubles up to 16384")->capture_default_str();
  app.add_option("--ranks", ranks, "to which subtiles and subtokens go")
      ->check(CLI::IsMember({2, 4, 8}))
      ->capture_default_str();
  app.add_option(
         "--parts", parts,
         "into which K of the last wave is cut: the fastest of these; 1: whole, 0: as the backend does")
      ->delimiter(',')
      ->check(CLI::Range(0, shingle::cuda::WorkCode::most_parts))
      ->capture_default_str();
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--budget", budget_s, "seconds after which no further shape begins; 0: no bound")
      ->capture_default_str();
  app.add_option("--json", json, "file for the record, written anew after each shape");
  CLI11_PARSE(app, argc, argv);
  try {
    const auto begin = std::chrono::steady_clock::now();
    auto record = bench::record(argc, argv);
    const std::vector<GemmShape> shapes = !only.empty() ? parse_shapes(only)
                                          : random > 0  ? random_shapes(random)
                                          : overhead    ? overhead_shapes()
                                                        : suite(least_m);
    const Operands operands(shapes);
    bool verified = true;
    for (const GemmShape& shape : shapes) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      if (budget_s > 0 && elapsed.count() > budget_s) {
        fmt::print("left: {}x{}x{}\n", shape.m, shape.n, shape.k);
        continue;
      }
      const auto row = compare(shape, parts, operands, repeat, ranks);
      print(row);
      verified = verified && row["verified"].get<bool>();
      record["rows"].push_back(row);
      bench::save(record, json);
    }
    summarize(record["rows"]);
    bench::write(record, json);
    return verified ? 0 : 1;
  } catch (const Error& error) {
    fmt::print(stderr, "bench_cuda_gemm: {}\n", error.what());
    return 1;
  }
}
