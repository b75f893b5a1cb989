// Times of passes that only reorder rows, beside one copy of as many bytes by the driver. `sort` gives each
// token to its experts, as before a grouped GEMM: tiles of complete rows, whose sources are random. `fetch`
// loads a matrix with few CTAs, as copies between processes do; from a second GPU that the first one reaches.
// Caches hold nothing of the matrices when a run begins.
#include <CLI/CLI.hpp>
#include <numeric>
#include <random>

#include "cuda/commands/command.hpp"
#include "cuda/kernels/elementwise.hpp"
#include "cuda/raii/device_guard.hpp"
#include "hooked_gemm.hpp"
#include "planner/common/builder.hpp"

using namespace shingle;
using namespace shingle::bench;

namespace {

constexpr std::int64_t element = 2;  // bf16

/// Random values, each row with its own.
std::vector<std::uint16_t> random_values(std::int64_t count) {
  std::mt19937 random(1);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (auto& value : values) value = static_cast<std::uint16_t>(random());
  return values;
}

struct Sizes {
  std::int64_t rows, cols;  ///< of the output
  std::int32_t tile_rows, tile_cols, ctas;
};

/// A pass from rows of a source on a device to all rows of a matrix on the current one.
class RowCopies {
 public:
  /// `source_row`: the row of the source for each row of the output. `in_order`: each row has its own place.
  RowCopies(const Sizes& sizes, std::int64_t source_rows, std::vector<std::int32_t> source_row, bool in_order,
            int device)
      : sizes_(sizes),
        source_row_(std::move(source_row)),
        values_(random_values(source_rows * sizes.cols)),
        out_(static_cast<std::size_t>(sizes.rows * sizes.cols * element)) {
    {
      const DeviceGuard on(device);
      source_ = upload(values_);
      as_many_ = DeviceMemory(out_.bytes());
      as_many_.fill(1);
    }
    const std::int64_t row_bytes = sizes.cols * element;
    const std::int64_t tiles_m = (sizes.rows + sizes.tile_rows - 1) / sizes.tile_rows;
    const std::int64_t tiles_n = (sizes.cols + sizes.tile_cols - 1) / sizes.tile_cols;
    std::vector<char*> from(static_cast<std::size_t>(tiles_m * sizes.tile_rows), nullptr);
    for (std::size_t row = 0; row < source_row_.size(); ++row)
      from[row] = source_.get<char>() + source_row_[row] * row_bytes;
    std::vector<TileAt> order;
    for (std::int32_t m = 0; m < tiles_m; ++m)
      for (std::int32_t n = 0; n < tiles_n; ++n) order.push_back({m, n});
    // As the CUDA backend orders tiles that are free in their order: tiles with the same source rows follow
    // each other.
    std::ranges::stable_sort(order, {}, [&](const TileAt& tile) {
      return source_row_[static_cast<std::size_t>(tile.m) * static_cast<std::size_t>(sizes.tile_rows)];
    });
    table_ = upload(from), order_ = upload(order);
    Route source;
    source.row_bytes = row_bytes;
    if (in_order) {
      source.base = source_.get<char>();
    } else {
      source.table = table_.get<char*>();
      source.piece_rows = 1;
      source.pieces = sizes.tile_rows;
    }
    routes_ = upload(std::vector<Route>{source});
    args_.rows = sizes.rows, args_.cols = sizes.cols;
    args_.tile_rows = sizes.tile_rows, args_.tile_cols = sizes.tile_cols;
    args_.tiles_n = static_cast<std::int32_t>(tiles_n);
    args_.order = order_.get<TileAt>();
    args_.last = tiles_m * tiles_n;
    args_.sources = routes_.get<Route>();
    args_.source_count = 1;
    args_.to.base = out_.get<char>();
    args_.to.row_bytes = row_bytes;
    args_.ctas = sizes.ctas;
  }

  void run(const Stream& stream) const {
    check(launch_elementwise(args_, stream.get()), "launch_elementwise");
  }
  /// The driver copies as many bytes from the source's device.
  void run_driver(const Stream& stream) const {
    check(cudaMemcpyAsync(out_.get(), as_many_.get(), out_.bytes(), cudaMemcpyDefault, stream.get()),
          "cudaMemcpyAsync");
  }
  bool correct(const Stream& stream) const {
    out_.fill(0xff);
    run(stream);
    stream.synchronize();
    std::vector<std::uint16_t> seen(out_.bytes() / element);
    check(cudaMemcpy(seen.data(), out_.get(), out_.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    const auto cols = static_cast<std::size_t>(sizes_.cols);
    for (std::size_t row = 0; row < source_row_.size(); ++row)
      if (!std::equal(&seen[row * cols], &seen[row * cols] + cols,
                      &values_[static_cast<std::size_t>(source_row_[row]) * cols]))
        return false;
    return true;
  }
  std::size_t bytes() const { return out_.bytes(); }

 private:
  Sizes sizes_;
  std::vector<std::int32_t> source_row_;
  std::vector<std::uint16_t> values_;
  DeviceMemory source_, as_many_, out_, table_, order_, routes_;
  ElementwiseArgs args_;
};

/// The token of each row, sorted by expert. Each token has `choices` random experts.
std::vector<std::int32_t> sorted_tokens(std::int32_t tokens, int choices, int experts) {
  std::mt19937 random(2);
  std::vector<std::vector<std::int32_t>> of_expert(static_cast<std::size_t>(experts));
  std::vector<int> all(static_cast<std::size_t>(experts));
  std::iota(all.begin(), all.end(), 0);
  for (std::int32_t token = 0; token < tokens; ++token)
    for (int choice = 0; choice < choices; ++choice) {
      const auto left = static_cast<std::uint32_t>(experts - choice);
      std::swap(all[static_cast<std::size_t>(choice)],
                all[static_cast<std::size_t>(choice) + random() % left]);
      of_expert[static_cast<std::size_t>(all[static_cast<std::size_t>(choice)])].push_back(token);
    }
  std::vector<std::int32_t> rows;
  for (const auto& mine : of_expert) rows.insert(rows.end(), mine.begin(), mine.end());
  return rows;
}

class Bench {
 public:
  explicit Bench(int repeat) : repeat_(repeat) {
    int devices = 0, reached = 0;
    check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    if (devices > 1) check(cudaDeviceCanAccessPeer(&reached, 0, 1), "cudaDeviceCanAccessPeer");
    if (reached != 0) check(cudaDeviceEnablePeerAccess(1, 0), "cudaDeviceEnablePeerAccess");
    far_ = reached;
    for (int device = 0; device <= far_; ++device) {
      const DeviceGuard on(device);
      flush_.emplace_back(std::size_t{256} << 20);
    }
    check(preload_elementwise(), "preload_elementwise");
  }
  /// The device whose memory `fetch` reads.
  int far() const { return far_; }

  nlohmann::json measure(const RowCopies& pass) const {
    const bool correct = pass.correct(stream_);
    Samples ours, driver;
    for (int i = 0; i < repeat_; ++i) {
      ours.us.push_back(time_us([&] { pass.run(stream_); }));
      driver.us.push_back(time_us([&] { pass.run_driver(stream_); }));
    }
    return {{"bytes", pass.bytes()},
            {"pass", ours.json()},
            {"driver", driver.json()},
            {"gbps", static_cast<double>(pass.bytes()) * 1e-3 / ours.median()},
            {"over_driver", driver.median() / ours.median()},
            {"verified", correct}};
  }

 private:
  template <class Run>
  double time_us(const Run& run) const {
    if (far_ > 0) {
      const DeviceGuard on(far_);
      flush_.back().fill(0);
    }
    // Last and without a wait, so that the run is launched while the device is busy.
    check(cudaMemsetAsync(flush_.front().get(), 0, flush_.front().bytes(), stream_.get()), "cudaMemsetAsync");
    const Event begin(Event::Timing::on), end(Event::Timing::on);
    begin.record(stream_.get());
    run();
    end.record(stream_.get());
    end.synchronize();
    return 1e3 * static_cast<double>(end.milliseconds_since(begin));
  }

  int repeat_, far_ = 0;
  std::vector<DeviceMemory> flush_;  // by device: more than its caches hold
  Stream stream_;
};

void print(const nlohmann::json& row) {
  fmt::print(
      "{:5} {:>6}x{:<6} by {:>2}x{:<5} {:>3} CTAs  pass {:7.1f} us ({:4.0f} GB/s)  driver {:7.1f} us  "
      "{:4.2f}x  correct: {}\n",
      row["kind"].get<std::string>(), row["rows"].get<int>(), row["cols"].get<int>(),
      row["tile_rows"].get<int>(), row["tile_cols"].get<int>(), row["ctas"].get<int>(),
      row["pass"]["median_us"].get<double>(), row["gbps"].get<double>(),
      row["driver"]["median_us"].get<double>(), row["over_driver"].get<double>(),
      row["verified"].get<bool>() ? "yes" : "NO");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Passes that only reorder rows, bf16, beside the driver's copies");
  std::vector<std::int32_t> tokens{128, 512, 4096, 16384};
  std::vector<std::int64_t> hidden{2048, 4096}, fetched{64, 512, 4096, 16384};
  std::vector<std::int32_t> fetch_rows{fetch_tile_rows};
  int choices = 6, experts = 64, repeat = 21;
  std::string json;
  app.add_option("--tokens", tokens, "tokens to sort")
      ->check(CLI::PositiveNumber)
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--hidden", hidden, "columns of all matrices")
      ->check(CLI::PositiveNumber)
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--fetch", fetched, "rows of the matrices to fetch")
      ->check(CLI::PositiveNumber)
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--fetch-tile-rows", fetch_rows)
      ->check(CLI::PositiveNumber)
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--choices", choices, "experts of a token")->capture_default_str();
  app.add_option("--experts", experts)->capture_default_str();
  app.add_option("--repeat", repeat)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--json", json, "file for the record, written anew after each case");
  CLI11_PARSE(app, argc, argv);

  try {
    if (choices < 1 || choices > experts)
      throw InvalidArgument(fmt::format("--choices is {}; expected 1 to {}, the experts", choices, experts));
    auto record = bench::record(argc, argv);
    const Bench bench(repeat);
    bool all_correct = true;
    const auto measure = [&](const char* kind, const Sizes& sizes, const RowCopies& pass, int source) {
      auto row = bench.measure(pass);
      row["kind"] = kind, row["source_device"] = source;
      row["rows"] = sizes.rows, row["cols"] = sizes.cols;
      row["tile_rows"] = sizes.tile_rows, row["tile_cols"] = sizes.tile_cols, row["ctas"] = sizes.ctas;
      print(row);
      all_correct = all_correct && row["verified"].get<bool>();
      record["rows"].push_back(std::move(row));
      bench::save(record, json);
    };
    for (const std::int64_t cols : hidden) {
      for (const std::int32_t count : tokens) {
        const std::int64_t rows = std::int64_t{count} * choices;
        const Sizes sizes{rows, cols, planner::row_block_height(rows, sm_count()),
                          static_cast<std::int32_t>(cols), 0};
        measure("sort", sizes, RowCopies(sizes, count, sorted_tokens(count, choices, experts), false, 0), 0);
      }
      for (const std::int64_t rows : fetched) {
        std::vector<std::int32_t> same(static_cast<std::size_t>(rows));
        std::iota(same.begin(), same.end(), 0);
        for (const std::int32_t tall : fetch_rows) {
          const Sizes sizes{rows, cols, tall, fetch_tile_cols, fetch_ctas};
          measure("fetch", sizes, RowCopies(sizes, rows, same, true, bench.far()), bench.far());
        }
      }
    }
    bench::write(record, json);
    return all_correct ? 0 : 1;
  } catch (const Error& error) {
    fmt::print(stderr, "bench_cuda_row_copies: {}\n", error.what());
    return 1;
  }
}
