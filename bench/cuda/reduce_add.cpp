// Compares two ways to sum partial products at their owner. One adds them to the sum as they arrive
// (reduce-add). The other stages them and sums in rank order. Measures time and error, without a GEMM.
#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <random>

#include "../report.hpp"
#include "cuda/peer/access.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/raii/stream.hpp"
#include "cuda/runtime/devices.hpp"
#include "shard_sums.hpp"
#include "shingle/base/dtype.hpp"

using namespace shingle;
using namespace shingle::cuda;

namespace {

constexpr std::int64_t element = 2;  // bf16
constexpr std::pair<Send, const char*> ways[] = {
    {Send::store, "staging"}, {Send::add, "reduce-add"}, {Send::add_bulk, "by TMA"}};

struct Rank {
  Rank(int number, int world, std::int64_t shard)
      : products(static_cast<std::size_t>(world * shard * element)),
        staging(products.bytes()),
        sums(static_cast<std::size_t>(shard * element)) {
    std::mt19937 random(static_cast<unsigned>(number) + 1);
    std::normal_distribution<float> normal;
    values.resize(static_cast<std::size_t>(world * shard));
    constexpr std::size_t period = (1 << 20) + 8;  // not the period of any matrix
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = i < period ? to_bf16(normal(random)) : values[i - period];
    check(cudaMemcpy(products.get(), values.data(), products.bytes(), cudaMemcpyHostToDevice), "upload");
  }

  std::vector<std::uint16_t> values;
  DeviceMemory products, staging, sums;
  Stream stream;
  Event begin{Event::Timing::on}, sending{Event::Timing::on}, sent{Event::Timing::on}, end{Event::Timing::on};
  Event zeroed, kept;
};

class Exchange {
 public:
  Exchange(int world, std::int64_t rows, std::int64_t cols) : shard_(rows / world * cols) {
    for (int r = 0; r < world; ++r) {
      const DeviceGuard guard(r);
      ranks_.push_back(std::make_unique<Rank>(r, world, shard_));
    }
  }

  struct Times {
    double sent_us = 0, all_us = 0;  ///< remote part, and everything; maximum over ranks
  };
  /// Poisons staging and sums before the run.
  Times run(Send way, int ctas) {
    const bool adds = way != Send::store;
    const int world = static_cast<int>(ranks_.size());
    for (int r = 0; r < world; ++r) {
      const DeviceGuard guard(r);
      Rank& rank = *ranks_[static_cast<std::size_t>(r)];
      rank.staging.fill(0xff);
      rank.sums.fill(0xff);
    }
    // a sum that is added to starts at zero, which is part of the time
    for (int r = 0; adds && r < world; ++r) {
      const DeviceGuard guard(r);
      Rank& rank = *ranks_[static_cast<std::size_t>(r)];
      rank.begin.record(rank.stream.get());
      check(cudaMemsetAsync(rank.sums.get(), 0, rank.sums.bytes(), rank.stream.get()), "cudaMemsetAsync");
      rank.zeroed.record(rank.stream.get());
    }
    for (int r = 0; r < world; ++r) {
      const DeviceGuard guard(r);
      Rank& rank = *ranks_[static_cast<std::size_t>(r)];
      Owners to;
      for (int owner = 0; owner < world; ++owner) {
        const Rank& at = *ranks_[static_cast<std::size_t>(owner)];
        to.at[owner] = adds ? at.sums.get() : at.staging.get<char>() + r * shard_ * element;
      }
      if (adds)
        for (const auto& other : ranks_) other->zeroed.make_wait(rank.stream.get());
      else
        rank.begin.record(rank.stream.get());
      const auto send = [&](int first, int steps) {
        check(
            launch_send(rank.products.get(), to, {world, first, steps}, shard_, way, ctas, rank.stream.get()),
            "launch_send");
      };
      rank.sending.record(rank.stream.get());
      send((r + 1) % world, world - 1);
      rank.sent.record(rank.stream.get());
      send(r, 1);  // the rank's own part
      rank.kept.record(rank.stream.get());
    }
    for (int r = 0; r < world; ++r) {
      const DeviceGuard guard(r);
      Rank& rank = *ranks_[static_cast<std::size_t>(r)];
      for (const auto& other : ranks_) other->kept.make_wait(rank.stream.get());
      if (!adds)
        check(launch_sum(rank.staging.get(), world, shard_, rank.sums.get(), rank.stream.get()),
              "launch_sum");
      rank.end.record(rank.stream.get());
    }
    Times times;
    for (int r = 0; r < world; ++r) {
      const DeviceGuard guard(r);
      Rank& rank = *ranks_[static_cast<std::size_t>(r)];
      rank.stream.synchronize();
      times.sent_us = std::max(times.sent_us, 1e3 * rank.sent.milliseconds_since(rank.sending));
      times.all_us = std::max(times.all_us, 1e3 * rank.end.milliseconds_since(rank.begin));
    }
    return times;
  }

  /// Error of the sums in rank 0's memory. `relative`: root mean square, relative to that of the exact sums.
  /// `not_nearest`: share of sums that are not the nearest bf16.
  struct Error {
    double relative = 0, not_nearest = 0;
  };
  Error error() const {
    constexpr std::int64_t sample = 1 << 20;
    const DeviceGuard guard(0);
    const std::int64_t count = std::min(sample, shard_);
    std::vector<std::uint16_t> got(static_cast<std::size_t>(count));
    check(cudaMemcpy(got.data(), ranks_[0]->sums.get(), got.size() * element, cudaMemcpyDeviceToHost),
          "download");
    double squares = 0, errors = 0, off = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      double exact = 0;
      for (const auto& rank : ranks_) exact += from_bf16(rank->values[i]);
      const double value = from_bf16(got[i]);
      squares += exact * exact;
      errors += (value - exact) * (value - exact);
      off += got[i] != to_bf16(static_cast<float>(exact)) ? 1 : 0;
    }
    return {std::sqrt(errors / squares), off / static_cast<double>(count)};
  }

  double bytes_sent() const {
    return static_cast<double>(shard_ * element) * static_cast<double>(ranks_.size() - 1);
  }

 private:
  std::int64_t shard_;  // elements of one shard
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Partial products that are added where they belong, against staging and a sum");
  std::int64_t rows = 8192, cols = 8192;
  std::vector<int> ctas{8, 16, 32, 64, 132};
  int repeat = 9;
  std::string json;
  app.add_option("--rows", rows, "of the whole matrix")->capture_default_str();
  app.add_option("--cols", cols)->capture_default_str();
  app.add_option("--ctas", ctas, "that send")->delimiter(',')->capture_default_str();
  app.add_option("--repeat", repeat)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  std::string why;
  const int world = std::min(count_gpus(why), most_owners);
  std::vector<int> devices;
  for (int device = 0; device < world; ++device) devices.push_back(device);
  if (world < 2 || !no_peer_access(devices).empty()) {
    fmt::print(stderr, "two GPUs that reach each other are needed\n");
    return 1;
  }
  if (rows < 1 || cols < 1 || rows % world != 0 || cols % 8 != 0) {
    fmt::print(stderr, "{} rows are not equal parts for {} GPUs, or {} columns no multiple of 8\n", rows,
               world, cols);
    return 1;
  }
  enable_peer_access(devices);
  auto record = bench::record(argc, argv);
  fmt::print("{} GPUs, {}x{} bf16, median of {}\n{:>5} {:<11} {:>9} {:>7} {:>9} {:>14} {:>12}\n", world, rows,
             cols, repeat, "CTAs", "way", "sent us", "GB/s", "all us", "error rel. rms", "not nearest");
  Exchange exchange(world, rows, cols);
  for (const int count : ctas)
    for (const auto& [way, name] : ways) {
      bench::Samples sent, all;
      exchange.run(way, count);
      for (int i = 0; i < repeat; ++i) {
        const Exchange::Times times = exchange.run(way, count);
        sent.us.push_back(times.sent_us), all.us.push_back(times.all_us);
      }
      const Exchange::Error error = exchange.error();
      const double gbps = exchange.bytes_sent() / sent.median() * 1e-3;
      fmt::print("{:>5} {:<11} {:>9.1f} {:>7.1f} {:>9.1f} {:>14.2e} {:>11.1f}%\n", count, name, sent.median(),
                 gbps, all.median(), error.relative, 100 * error.not_nearest);
      record["rows"].push_back({{"ctas", count},
                                {"way", name},
                                {"world", world},
                                {"sent", sent.json()},
                                {"all", all.json()},
                                {"gbps", gbps},
                                {"error", error.relative},
                                {"not_nearest", error.not_nearest}});
    }
  bench::write(record, json);
}
