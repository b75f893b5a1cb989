// What it costs RMSNorm on a GPU to take its rows from the slots of a reordered buffer instead of from a
// matrix: the same kernel, the same values, in turn. Both outputs must be equal bit by bit.
#include <CLI/CLI.hpp>
#include <cstring>
#include <random>

#include "../report.hpp"
#include "cuda/kernels/elementwise.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/raii/stream.hpp"
#include "shingle/base/dtype.hpp"
#include "shingle/base/error.hpp"

using namespace shingle;
using namespace shingle::cuda;

namespace {

constexpr int tile_rows = 128;
constexpr std::int64_t element = 2;  // bf16

template <class T>
DeviceMemory upload(const std::vector<T>& data) {
  DeviceMemory memory(data.size() * sizeof(T));
  check(cudaMemcpy(memory.get(), data.data(), memory.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  return memory;
}

Route matrix(const DeviceMemory& memory, std::int64_t cols) {
  Route route;
  route.base = memory.get<char>();
  route.row_bytes = cols * element;
  return route;
}

/// A pass whose source is a matrix, and one whose tiles lie in slots at random, of the same values.
struct Passes {
  std::int64_t rows, cols;
  int tile_cols;
  bool residual;
  std::vector<std::int32_t> position;  ///< of a tile, [m · tiles_n + n]
  std::vector<char*> slot;             ///< by position
  DeviceMemory source, slots, out, sum, extra, weight, routes, table, positions;

  Passes(std::int64_t all_rows, std::int64_t all_cols, int wide, bool with_residual)
      : rows(all_rows),
        cols(all_cols),
        tile_cols(wide),
        residual(with_residual),
        slots(static_cast<std::size_t>(rows * cols * element)),
        out(slots.bytes()),
        sum(slots.bytes()) {
    source = upload(values(rows * cols)), extra = upload(values(rows * cols)), weight = upload(values(cols));
    const std::int64_t tiles = rows / tile_rows * (cols / tile_cols);
    for (std::int32_t i = 0; i < tiles; ++i) position.push_back(i);
    std::shuffle(position.begin(), position.end(), std::mt19937(2));
    const std::int64_t tile_bytes = tile_rows * tile_cols * element;
    for (std::int64_t i = 0; i < tiles; ++i) slot.push_back(slots.get<char>() + i * tile_bytes);
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::int64_t m = i / (cols / tile_cols), n = i % (cols / tile_cols);
      check(cudaMemcpy2D(slot[position[i]], tile_cols * element,
                         source.get<char>() + (m * tile_rows * cols + n * tile_cols) * element,
                         cols * element, tile_cols * element, tile_rows, cudaMemcpyDeviceToDevice),
            "cudaMemcpy2D");
    }
    table = upload(slot), positions = upload(position);
    Route reordered;
    reordered.table = table.get<char*>();
    reordered.row_bytes = tile_cols * element;
    reordered.piece_rows = tile_rows;
    reordered.by_tile = true;
    routes = upload(std::vector<Route>{matrix(source, cols), reordered});
  }

  static std::vector<std::uint16_t> values(std::int64_t count) {
    std::mt19937 random(1);
    std::vector<std::uint16_t> made(static_cast<std::size_t>(count));
    for (auto& v : made) v = to_bf16(static_cast<float>(random() % 2048) / 1024.0f - 1.0f);
    return made;
  }

  ElementwiseArgs args(bool fused) const {
    ElementwiseArgs args;
    args.rows = rows, args.cols = cols;
    args.tile_rows = tile_rows;
    args.tile_cols = fused ? tile_cols : static_cast<std::int32_t>(cols);
    args.tiles_n = fused ? static_cast<std::int32_t>(cols / tile_cols) : 1;
    args.last = rows / tile_rows;
    args.position_of = positions.get<std::int32_t>();
    args.sources = routes.get<Route>() + (fused ? 1 : 0);
    args.to = matrix(out, cols);
    args.norm = true;
    args.epsilon = 1e-5f;
    args.norm_weight = weight.get();
    args.has_residual = residual;
    args.residual = matrix(extra, cols);
    args.sum = matrix(sum, cols);
    return args;
  }
};

double time_us(const ElementwiseArgs& args, const Stream& stream) {
  const Event begin(Event::Timing::on), end(Event::Timing::on);
  begin.record(stream.get());
  check(launch_elementwise(args, stream.get()), "launch_elementwise");
  end.record(stream.get());
  end.synchronize();
  return 1e3 * static_cast<double>(end.milliseconds_since(begin));
}

std::vector<char> output(const Passes& passes, bool fused, const Stream& stream) {
  check(cudaMemset(passes.out.get(), 0xff, passes.out.bytes()), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  time_us(passes.args(fused), stream);
  std::vector<char> bytes(passes.out.bytes());
  check(cudaMemcpy(bytes.data(), passes.out.get(), bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return bytes;
}

/// Measures all shapes; whether every pair of outputs was equal.
bool compare(std::int64_t rows, int repeat, nlohmann::json& record) {
  check(preload_elementwise(), "preload_elementwise");
  const Stream stream;
  bool all_equal = true;
  for (const bool residual : {false, true})
    for (const int hidden : {4096, 8192, 16384})
      for (const int tile_cols : {128, 256}) {
        const Passes passes(rows, hidden, tile_cols, residual);
        const bool equal = output(passes, true, stream) == output(passes, false, stream);
        all_equal = all_equal && equal;
        bench::Samples plain, fused;
        for (int i = 0; i < repeat; ++i) {
          plain.us.push_back(time_us(passes.args(false), stream));
          fused.us.push_back(time_us(passes.args(true), stream));
        }
        const double cost = fused.median() / plain.median() - 1;
        const double bytes = static_cast<double>(rows * hidden * element) * (residual ? 4 : 2);
        fmt::print(
            "{:>6} columns, tiles {}x{:<3}{}  plain {:7.1f} us ({:4.0f} GB/s)  fused {:7.1f} us  cost "
            "{:+5.1f}% (target "
            "10%)  equal: {}\n",
            hidden, tile_rows, tile_cols, residual ? ", residual" : "", plain.median(),
            bytes / plain.median() * 1e-3, fused.median(), cost * 100, equal ? "yes" : "NO");
        record["rows"].push_back({{"rows", rows},
                                  {"hidden", hidden},
                                  {"residual", residual},
                                  {"tile_cols", tile_cols},
                                  {"plain", plain.json()},
                                  {"fused", fused.json()},
                                  {"cost", cost},
                                  {"target", 0.1},
                                  {"verified", equal}});
      }
  return all_equal;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("RMSNorm fused with the restore beside plain RMSNorm, bf16, on one GPU");
  std::int64_t rows = 8192;
  int repeat = 31;
  std::string json;
  app.add_option("--rows", rows, "a multiple of 128")->capture_default_str();
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  try {
    auto record = bench::record(argc, argv);
    const bool all_equal = compare(rows, repeat, record);
    bench::write(record, json);
    return all_equal ? 0 : 1;
  } catch (const Error& error) {
    fmt::print(stderr, "bench_cuda_rmsnorm_restore: {}\n", error.what());
    return 1;
  }
}
