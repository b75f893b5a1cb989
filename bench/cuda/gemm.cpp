// The instrumented GEMM on one GPU beside the library's best: with its hooks idle, and with slots and
// signals. Runs alternate, each after a pause, so that neither clocks nor caches favour one. Inputs are
// random in all their bits, as the power that they take decides the clock; results are compared element by
// element, to one rounding.
#include <CLI/CLI.hpp>

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "../report.hpp"
#include "cuda/blas.hpp"
#include "cuda/kernels/gemm.hpp"
#include "cuda/kernels/sync.hpp"
#include "cuda/local_rank.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/raii/stream.hpp"
#include "shingle/base/error.hpp"
#include "shingle/grid/tile_grid.hpp"

using namespace shingle;
using namespace shingle::cuda;

namespace {

struct Shape {
  std::int64_t m, n, k;
};

/// The GEMMs of the suite: tensor parallelism of eight, M of a prefill.
std::vector<Shape> suite(std::int64_t least_m) {
  std::vector<Shape> shapes;
  for (const auto& [n, k] : {std::pair{8192, 3584}, {8192, 1024}, {7168, 8192}, {12288, 6144}, {6144, 12288}})
    for (std::int64_t m = least_m; m <= 16384; m *= 2) shapes.push_back({m, n, k});
  return shapes;
}

std::vector<Shape> parse(const std::vector<std::string>& words) {
  std::vector<Shape> shapes;
  for (const std::string& word : words) {
    Shape shape{};
    if (std::sscanf(word.c_str(), "%ldx%ldx%ld", &shape.m, &shape.n, &shape.k) != 3)
      throw InvalidArgument(fmt::format("'{}' is no shape MxNxK", word));
    shapes.push_back(shape);
  }
  return shapes;
}

template <class T>
DeviceMemory upload(const std::vector<T>& data) {
  DeviceMemory memory(data.size() * sizeof(T));
  check(cudaMemcpy(memory.get(), data.data(), memory.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  return memory;
}

/// Uniform in (-1, 1), all seven bits of the fraction random.
DeviceMemory uniform(std::int64_t count, unsigned seed) {
  std::vector<std::uint16_t> data(static_cast<std::size_t>(count));
  std::uint64_t state = seed;
  for (auto& x : data) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto bits = static_cast<std::uint32_t>(state >> 32);
    const std::uint32_t exponent = 126 - static_cast<std::uint32_t>(std::countr_zero(bits | 1u << 20));
    x = static_cast<std::uint16_t>(bits >> 31 << 15 | exponent << 7 | (bits >> 24 & 0x7f));
  }
  return upload(data);
}

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Whether sums of k products, in whatever order, have been rounded to the same or to neighbours.
bool same(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b, std::int64_t k) {
  const float order = static_cast<float>(k) * 0x1p-24f;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float x = from_bf16(a[i]), y = from_bf16(b[i]);
    if (!(std::fabs(x - y) <= 0x1p-7f * std::max(std::fabs(x), std::fabs(y)) + order)) return false;
  }
  return true;
}

/// One instance in one order, ready to launch.
class Candidate {
 public:
  Candidate(const GemmInstance& instance, const Shape& shape, const TileOrder& order, const DeviceMemory& a,
            const DeviceMemory& b, const DeviceMemory& out, bool hooks)
      : instance_(instance), epoch_(sizeof(std::uint32_t)) {
    const TileGrid grid = make_grid(shape.m, shape.n, instance.tile.rows, instance.tile.cols, order);
    std::vector<TileAt> tiles;
    std::vector<char*> slots;
    std::vector<std::uint32_t*> signals;
    counters_ = DeviceMemory(static_cast<std::size_t>(grid.positions()) * sizeof(std::uint32_t));
    counters_.fill(0);
    epoch_.fill(0);
    const std::int64_t slot_bytes = std::int64_t{instance.tile.rows} * instance.tile.cols * 2;
    for (std::int64_t p = 0; p < grid.positions(); ++p) {
      const Tile tile = grid.tile(p);
      tiles.push_back({static_cast<std::int32_t>(tile.m), static_cast<std::int32_t>(tile.n)});
      const bool phantom = grid.phantom(tile);
      slots.push_back(phantom ? nullptr : out.get<char>() + grid.tiles_before(p) * slot_bytes);
      signals.push_back(phantom ? nullptr : counters_.get<std::uint32_t>() + p / 132);
    }
    order_ = upload(tiles), slots_ = upload(slots), signals_ = upload(signals);
    GemmArgs args;
    args.tile = instance.tile;
    args.rows = args.a_rows = shape.m;
    args.cols = shape.n, args.k = shape.k;
    args.a = a.get(), args.lda = shape.k;
    args.b = b.get(), args.ldb = shape.k;
    args.transpose_b = true;
    args.part_rows = instance.tile.rows;
    args.order = order_.get<TileAt>();
    args.positions = static_cast<std::int32_t>(tiles.size());
    args.ctas = ctas_ = 132;
    args.watch.epoch = epoch_.get<std::uint32_t>();
    if (hooks) {
      args.out = {nullptr, slots_.get<char*>(), instance.tile.cols * 2, instance.tile.rows, 1, 1, true};
      args.notify = {signals_.get<std::uint32_t*>(), 1, false};
    } else {
      args.out.base = out.get<char>();
      args.out.row_bytes = shape.n * 2;
    }
    check(instance.load(), "load a kernel");
    check(instance.prepare(args, params_.get()), "prepare a kernel");
  }
  void launch(cudaStream_t stream) const {
    check(instance_.launch(params_.get(), ctas_, stream), "launch a kernel");
  }

 private:
  const GemmInstance& instance_;
  DeviceMemory epoch_, counters_, order_, slots_, signals_;
  std::unique_ptr<GemmParams> params_ = std::make_unique<GemmParams>();
  std::int32_t ctas_ = 0;
};

/// Times what is enqueued behind a wait of the device, so that no launch by the host is in the time.
class Stopwatch {
 public:
  Stopwatch() : word_(sizeof(std::uint32_t)), epoch_(sizeof(std::uint32_t)) {
    check(preload_sync(), "preload_sync");
    epoch_.fill(0);
    rank_.set_timeout_us(5e6);
  }
  template <class Launch>
  double time_us(Launch&& launch) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const SyncOp wait{SyncKind::await, word_.get<std::uint32_t>(), ++shots_, 0, true};
    check(launch_sync(&wait, 1, rank_.watch(epoch_.get<std::uint32_t>()), stream_.get()), "launch_sync");
    begin_.record(stream_.get());
    launch(stream_.get());
    end_.record(stream_.get());
    std::atomic_ref(*word_.get<std::uint32_t>()).store(shots_, std::memory_order_release);
    end_.synchronize();
    return 1e3 * static_cast<double>(end_.milliseconds_since(begin_));
  }
  cudaStream_t stream() const { return stream_.get(); }

 private:
  LocalRank rank_{0, 0};
  PinnedMemory word_;
  DeviceMemory epoch_;
  std::uint32_t shots_ = 0;
  Stream stream_;
  Event begin_{Event::Timing::on}, end_{Event::Timing::on};
};

struct Best {
  const GemmInstance* instance = nullptr;
  TileOrder order;
  double us = 1e30;
  nlohmann::json by_tile = nlohmann::json::object();  ///< microseconds of each, in its better order
};

Best search(const Shape& shape, const DeviceMemory& a, const DeviceMemory& b, const DeviceMemory& out,
            Stopwatch& stopwatch) {
  Best best;
  for (const GemmInstance& instance : gemm_instances(GemmFamily::sm90)) {
    if (instance.type != Element::bf16 || instance.transpose_a || !instance.transpose_b) continue;
    for (const std::int32_t swizzle : {4, 8}) {
      const TileOrder order{Raster::along_m, swizzle, instance.tile.cluster, 1, 0};
      const Candidate candidate(instance, shape, order, a, b, out, false);
      const auto launch = [&](cudaStream_t on) { candidate.launch(on); };
      stopwatch.time_us(launch);
      const double us = std::min(stopwatch.time_us(launch), stopwatch.time_us(launch));
      const auto tile =
          fmt::format("{}x{}, {}", instance.tile.rows, instance.tile.cols, instance.tile.cluster);
      best.by_tile[tile] = std::min(us, best.by_tile.value(tile, us));
      if (us < best.us) best.instance = &instance, best.order = order, best.us = us;
    }
  }
  return best;
}

nlohmann::json compare(const Shape& shape, int repeat) {
  const DeviceMemory a = uniform(shape.m * shape.k, 1), b = uniform(shape.n * shape.k, 2);
  const auto slots_rows = static_cast<std::size_t>((shape.m + 512) * (shape.n + 512) * 2);
  const DeviceMemory out(slots_rows), expected(slots_rows);
  Stopwatch stopwatch;
  const BlasHandle handle;
  LibraryProblem problem;
  problem.m = shape.m, problem.n = shape.n, problem.k = shape.k;
  problem.transpose_b = true;
  problem.lda = problem.ldb = shape.k, problem.ldc = shape.n;
  LibraryGemm library(handle, problem);
  library.tune(stopwatch.stream(), a.get(), b.get());
  const DeviceMemory workspace(library.workspace_bytes());
  const Best best = search(shape, a, b, out, stopwatch);
  const Candidate idle(*best.instance, shape, best.order, a, b, out, false);
  const Candidate hooked(*best.instance, shape, best.order, a, b, out, true);
  bench::Samples theirs, ours, signalled;
  for (int i = 0; i < repeat; ++i) {
    theirs.us.push_back(stopwatch.time_us(
        [&](cudaStream_t on) { library.run(on, a.get(), b.get(), expected.get(), workspace.get()); }));
    signalled.us.push_back(stopwatch.time_us([&](cudaStream_t on) { hooked.launch(on); }));
    ours.us.push_back(stopwatch.time_us([&](cudaStream_t on) { idle.launch(on); }));
  }
  out.fill(0xff);
  stopwatch.time_us([&](cudaStream_t on) { idle.launch(on); });
  const auto bytes = static_cast<std::size_t>(shape.m * shape.n * 2);
  std::vector<std::uint16_t> own(bytes / 2), library_own(bytes / 2);
  check(cudaMemcpy(own.data(), out.get(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  check(cudaMemcpy(library_own.data(), expected.get(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return {{"m", shape.m},
          {"n", shape.n},
          {"k", shape.k},
          {"tile", fmt::format("{}x{}", best.instance->tile.rows, best.instance->tile.cols)},
          {"swizzle", best.order.swizzle},
          {"by_tile_us", best.by_tile},
          {"library", theirs.json()},
          {"idle", ours.json()},
          {"hooks", signalled.json()},
          {"of_library_idle", theirs.median() / ours.median()},
          {"of_library_hooks", theirs.median() / signalled.median()},
          {"hooks_cost", signalled.median() / ours.median() - 1},
          {"verified", same(own, library_own, shape.k)}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The instrumented GEMM beside the library's best, bf16, on one GPU");
  std::int64_t least_m = 1024;
  int repeat = 9;
  std::string json;
  std::vector<std::string> only;
  app.add_option("--shape", only, "MxNxK, instead of the suite; may be repeated");
  app.add_option("--least-m", least_m, "the smallest M; it doubles up to 16384")->capture_default_str();
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);
  try {
    auto record = bench::record(argc, argv);
    double idle = 0, hooks = 0, worst = 10;
    bool verified = true;
    for (const Shape& shape : only.empty() ? suite(least_m) : parse(only)) {
      const auto row = compare(shape, repeat);
      fmt::print(
          "{:>5}x{:>5}x{:>5}  tile {:7} swizzle {}  library {:7.1f} us  idle {:.3f}  hooks {:.3f} of it  "
          "cost of "
          "hooks {:+.1f}%  right: {}\n",
          shape.m, shape.n, shape.k, row["tile"].get<std::string>(), row["swizzle"].get<int>(),
          row["library"]["median_us"].get<double>(), row["of_library_idle"].get<double>(),
          row["of_library_hooks"].get<double>(), 100 * row["hooks_cost"].get<double>(),
          row["verified"].get<bool>() ? "yes" : "NO");
      std::fflush(stdout);
      idle += std::log(row["of_library_idle"].get<double>());
      hooks += std::log(row["of_library_hooks"].get<double>());
      worst = std::min(worst, row["of_library_hooks"].get<double>());
      verified = verified && row["verified"].get<bool>();
      record["rows"].push_back(row);
    }
    const auto count = static_cast<double>(record["rows"].size());
    fmt::print(
        "geomean of {} shapes: idle {:.3f}, with slots and signals {:.3f} (target 0.96), worst {:.3f} "
        "(0.90)\n",
        record["rows"].size(), std::exp(idle / count), std::exp(hooks / count), worst);
    bench::write(record, json);
    return verified ? 0 : 1;
  } catch (const Error& error) {
    fmt::print(stderr, "bench_cuda_gemm: {}\n", error.what());
    return 1;
  }
}
