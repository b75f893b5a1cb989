// Measures the cost for RMSNorm to read its rows from a reordered buffer instead of a matrix (FlashOverlap
// §6.6). Both runs use the same kernel and values, and alternate. The buffer holds tiles (after an
// all-reduce), subtiles (a reduce-scatter) or subtokens (an all-to-all). Both outputs must be equal bit by
// bit.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

#include "base/parallel.hpp"
#include "cuda/kernels/elementwise.hpp"
#include "hooked_gemm.hpp"
#include "shingle/base/dtype.hpp"

using namespace shingle;
using namespace shingle::bench;

namespace {

constexpr int gemm_tile_rows = 128;
constexpr std::int64_t element = 2;  // bf16

/// Values uniform in (-1, 1), rounded to bf16, with a period that no matrix has.
std::vector<std::uint16_t> values(std::int64_t count) {
  std::mt19937 random(1);
  std::vector<std::uint16_t> made(static_cast<std::size_t>(count));
  constexpr std::size_t period = (1 << 20) + 8;
  for (std::size_t i = 0; i < made.size(); ++i)
    made[i] = i < period ? to_bf16(static_cast<float>(random() % 2048) / 1024.0f - 1.0f) : made[i - period];
  return made;
}

Route matrix(const DeviceMemory& memory, std::int64_t cols) {
  Route route;
  route.base = memory.get<char>();
  route.row_bytes = cols * element;
  return route;
}

/// Memory of a norm of rows × cols: a plain source, its other inputs, and its outputs.
struct Matrices {
  std::int64_t rows, cols;
  std::vector<std::uint16_t> values_of_source;
  DeviceMemory source, out, sum, extra, weight;

  Matrices(std::int64_t all_rows, std::int64_t all_cols)
      : rows(all_rows),
        cols(all_cols),
        values_of_source(values(rows * cols)),
        source(upload(values_of_source)),
        out(source.bytes()),
        sum(source.bytes()),
        extra(upload(values_of_source)),
        weight(upload(values(cols))) {}
};

/// The source in a reordered buffer, with tiles in a random order of completion.
class Reordered {
 public:
  Reordered(const Matrices& matrices, int tile_cols, Granularity granularity, int ranks)
      : matrices_(matrices),
        tile_rows_(gemm_tile_rows / (granularity == Granularity::subtile ? ranks : 1)),
        tile_cols_(tile_cols),
        piece_rows_(granularity == Granularity::subtoken ? 1 : tile_rows_),
        buffer_(matrices.source.bytes()) {
    const std::int64_t tiles = matrices.rows / tile_rows_ * tiles_n(), pieces = tile_rows_ / piece_rows_;
    std::vector<std::int32_t> position(static_cast<std::size_t>(tiles)), tile_at(position.size());
    std::iota(position.begin(), position.end(), 0);
    std::mt19937 random(2);
    std::shuffle(position.begin(), position.end(), random);
    for (std::size_t i = 0; i < position.size(); ++i)
      tile_at[static_cast<std::size_t>(position[i])] = static_cast<std::int32_t>(i);
    // Subtokens are in the pools of random ranks.
    std::vector<int> rank_of(static_cast<std::size_t>(matrices.rows / piece_rows_));
    for (int& rank : rank_of) rank = granularity == Granularity::subtoken ? random() % unsigned(ranks) : 0;
    std::vector<char*> slots(static_cast<std::size_t>(tiles * pieces));
    std::int64_t offset = 0;
    for (int rank = 0; rank < ranks; ++rank)
      for (std::int64_t p = 0; p < tiles; ++p)
        for (std::int64_t i = 0; i < pieces; ++i) {
          const std::int64_t m = tile_at[static_cast<std::size_t>(p)] / tiles_n();
          if (rank_of[static_cast<std::size_t>(m * pieces + i)] != rank) continue;
          slots[static_cast<std::size_t>(p * pieces + i)] = buffer_.get<char>() + offset;
          offset += piece_rows_ * tile_cols_ * element;
        }
    fill(tile_at, slots);
    table_ = upload(slots), positions_ = upload(position);
    Route route;
    route.table = table_.get<char*>();
    route.row_bytes = tile_cols_ * element;
    route.piece_rows = piece_rows_;
    route.pieces = static_cast<std::int32_t>(pieces);
    route.by_tile = true;
    routes_ = upload(std::vector<Route>{matrix(matrices.source, matrices.cols), route});
  }

  ElementwiseArgs args(bool fused, bool residual) const {
    const Matrices& m = matrices_;
    ElementwiseArgs args;
    args.rows = m.rows, args.cols = m.cols;
    args.tile_rows = tile_rows_;
    args.tile_cols = fused ? tile_cols_ : static_cast<std::int32_t>(m.cols);
    args.tiles_n = fused ? static_cast<std::int32_t>(tiles_n()) : 1;
    args.last = m.rows / tile_rows_;
    args.position_of = positions_.get<std::int32_t>();
    args.sources = routes_.get<Route>() + (fused ? 1 : 0);
    args.to = matrix(m.out, m.cols);
    args.norm = true;
    args.epsilon = 1e-5f;
    args.norm_weight = m.weight.get();
    args.has_residual = residual;
    args.residual = matrix(m.extra, m.cols);
    args.sum = matrix(m.sum, m.cols);
    return args;
  }

 private:
  std::int64_t tiles_n() const { return matrices_.cols / tile_cols_; }

  void fill(const std::vector<std::int32_t>& tile_at, const std::vector<char*>& slots) {
    std::vector<std::uint16_t> values(buffer_.bytes() / element);
    const std::int64_t pieces = tile_rows_ / piece_rows_;
    parallel_for(tile_at.size(), [&](std::size_t p) {
      const std::int64_t m = tile_at[p] / tiles_n(), n = tile_at[p] % tiles_n();
      for (std::int64_t row = 0; row < tile_rows_; ++row) {
        const char* const slot =
            slots[p * static_cast<std::size_t>(pieces) + static_cast<std::size_t>(row / piece_rows_)];
        std::uint16_t* const to =
            values.data() + (slot - buffer_.get<char>()) / element + row % piece_rows_ * tile_cols_;
        const std::int64_t from = (m * tile_rows_ + row) * matrices_.cols + n * tile_cols_;
        std::memcpy(to, matrices_.values_of_source.data() + from,
                    static_cast<std::size_t>(tile_cols_ * element));
      }
    });
    check(cudaMemcpy(buffer_.get(), values.data(), buffer_.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }

  const Matrices& matrices_;
  std::int32_t tile_rows_, tile_cols_, piece_rows_;
  DeviceMemory buffer_, table_, positions_, routes_;
};

double time_us(const ElementwiseArgs& args, const Stream& stream) {
  const Event begin(Event::Timing::on), end(Event::Timing::on);
  begin.record(stream.get());
  check(launch_elementwise(args, stream.get()), "launch_elementwise");
  end.record(stream.get());
  end.synchronize();
  return 1e3 * static_cast<double>(end.milliseconds_since(begin));
}

std::vector<char> output(const Matrices& matrices, const ElementwiseArgs& args, const Stream& stream) {
  matrices.out.fill(0xff);
  time_us(args, stream);
  std::vector<char> bytes(matrices.out.bytes());
  check(cudaMemcpy(bytes.data(), matrices.out.get(), bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return bytes;
}

nlohmann::json compare(const Matrices& matrices, const Reordered& reordered, bool residual, int repeat,
                       const Stream& stream) {
  const ElementwiseArgs from_matrix = reordered.args(false, residual),
                        from_tiles = reordered.args(true, residual);
  const bool equal = output(matrices, from_tiles, stream) == output(matrices, from_matrix, stream);
  Samples plain, fused;
  for (int i = 0; i < repeat; ++i) {
    plain.us.push_back(time_us(from_matrix, stream));
    fused.us.push_back(time_us(from_tiles, stream));
  }
  return {{"rows", matrices.rows}, {"hidden", matrices.cols}, {"residual", residual},
          {"plain", plain.json()}, {"fused", fused.json()},   {"cost", fused.median() / plain.median() - 1},
          {"target", 0.1},         {"verified", equal}};
}

void print(const nlohmann::json& row) {
  const double us = row["plain"]["median_us"].get<double>();
  const double bytes = row["rows"].get<double>() * row["hidden"].get<double>() * element *
                       (row["residual"].get<bool>() ? 4 : 2);
  fmt::print(
      "{:>6}x{:<6} {:8} of tiles {}x{:<3}{:10}  plain {:7.1f} us ({:4.0f} GB/s)  fused {:7.1f} us  cost "
      "{:+5.1f}% "
      "(target 10%)  equal: {}\n",
      row["rows"].get<int>(), row["hidden"].get<int>(), row["granularity"].get<std::string>(), gemm_tile_rows,
      row["tile_cols"].get<int>(), row["residual"].get<bool>() ? ", residual" : "", us, bytes / us * 1e-3,
      row["fused"]["median_us"].get<double>(), 100 * row["cost"].get<double>(),
      row["verified"].get<bool>() ? "yes" : "NO");
  std::fflush(stdout);
}

void summarize(const nlohmann::json& rows) {
  for (const Granularity granularity : {Granularity::tile, Granularity::subtile, Granularity::subtoken}) {
    Samples costs;
    for (const auto& row : rows)
      if (row["granularity"] == name(granularity)) costs.us.push_back(row["cost"].get<double>());
    if (costs.us.empty()) continue;
    fmt::print(
        "cost by {}: mean {:+.1f}%, median {:+.1f}%, largest {:+.1f}% of {}\n", name(granularity),
        100 * std::accumulate(costs.us.begin(), costs.us.end(), 0.0) / static_cast<double>(costs.us.size()),
        100 * costs.median(), 100 * costs.at(1), costs.us.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("RMSNorm fused with the restore beside plain RMSNorm, bf16, on one GPU");
  std::vector<std::int64_t> rows{8192}, hidden{4096, 8192, 16384};
  std::vector<int> tile_cols{128, 256};
  int repeat = 31, ranks = 4;
  double budget_s = 0;
  std::string json;
  app.add_option("--rows", rows, "multiples of 128")->delimiter(',')->capture_default_str();
  app.add_option("--hidden", hidden, "multiples of --tile-cols")->delimiter(',')->capture_default_str();
  app.add_option("--tile-cols", tile_cols)->delimiter(',')->capture_default_str();
  app.add_option("--ranks", ranks, "whose subtiles and subtokens these are")
      ->check(CLI::IsMember({2, 4, 8}))

      ->capture_default_str();
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--budget", budget_s, "seconds after which no further matrix is begun; 0: no bound")
      ->capture_default_str();
  app.add_option("--json", json, "file for the record, written anew after each matrix");
  CLI11_PARSE(app, argc, argv);

  try {
    const auto begin = std::chrono::steady_clock::now();
    auto record = bench::record(argc, argv);
    check(preload_elementwise(), "preload_elementwise");
    const Stream stream;
    bool all_equal = true;
    for (const std::int64_t m : rows)
      for (const std::int64_t n : hidden) {
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
        if (budget_s > 0 && elapsed.count() > budget_s) {
          fmt::print("left: {}x{}\n", m, n);
          continue;
        }
        const Matrices matrices(m, n);
        for (const int wide : tile_cols)
          for (const Granularity granularity :
               {Granularity::tile, Granularity::subtile, Granularity::subtoken}) {
            if (m % gemm_tile_rows != 0 || n % wide != 0)
              throw InvalidArgument(
                  fmt::format("{}x{} are no whole tiles of {}x{}", m, n, gemm_tile_rows, wide));
            const Reordered reordered(matrices, wide, granularity, ranks);
            for (const bool residual : {false, true}) {
              auto row = compare(matrices, reordered, residual, repeat, stream);
              row["granularity"] = name(granularity), row["tile_cols"] = wide;
              print(row);
              all_equal = all_equal && row["verified"].get<bool>();
              record["rows"].push_back(std::move(row));
            }
          }
        bench::save(record, json);
      }
    summarize(record["rows"]);
    bench::write(record, json);
    return all_equal ? 0 : 1;
  } catch (const Error& error) {
    fmt::print(stderr, "bench_cuda_rmsnorm_restore: {}\n", error.what());
    return 1;
  }
}
