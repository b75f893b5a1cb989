// Predicts the loop of bench/torch/fsdp.py by the co-tuner's cost model: forward and backward products of
// some layers of Llama-3 8B beside the gathers of their weights and the sums of their gradients. With a
// record of that program, the measured times and the errors too. Needs no device.
#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdio>
#include <map>

#include "records.hpp"
#include "report.hpp"
#include "shingle/base/units.hpp"
#include "shingle/machine/profile.hpp"
#include "tune/co_tuning.hpp"

using namespace shingle;
using nlohmann::json;

namespace {

constexpr double most_error = 0.04;  // that --check accepts

/// The iteration of FSDP. A layer's weights are gathered into one of two buffers, and its gradients are
/// summed from one of two: what comes into a buffer awaits what was there before.
class Loop {
 public:
  Loop(int world, int layers, std::int64_t tokens) : layers_(layers), tokens_(tokens) {
    list_ = {.world = world, .dtype = DType::bf16};
    pass(false);
    pass(true);
  }
  Workload take() && { return std::move(list_); }

 private:
  struct Weight {
    std::int64_t rows, cols;
  };
  static constexpr Weight weights[] = {{4096, 6144}, {4096, 4096}, {4096, 2 * 14336}, {14336, 4096}};

  void pass(bool backward) {
    std::map<int, std::int32_t> gathers, sums;
    const auto layer_at = [&](int turn) { return backward ? layers_ - 1 - turn : turn; };
    const auto gather = [&](int turn) {
      gathers[turn] =
          add({fmt::format("gather {}", layer_at(turn)), CollectiveKind::allgather, bytes(), last()});
    };
    gather(0);
    for (int turn = 0; turn < layers_; ++turn) {
      if (turn + 1 < layers_) gather(turn + 1);
      const std::size_t first = list_.computations.size();
      backward ? backward_of(layer_at(turn)) : forward_of(layer_at(turn));
      auto& after = list_.computations[first].after;
      after.push_back(gathers.at(turn));
      if (sums.contains(turn - 2)) after.push_back(sums.at(turn - 2));
      if (backward)
        sums[turn] =
            add({fmt::format("sum {}", layer_at(turn)), CollectiveKind::reducescatter, bytes(), last()});
    }
  }
  void forward_of(int layer) {
    for (const auto& [rows, cols] : weights)
      list_.computations.push_back({fmt::format("forward {}", layer), tokens_, cols, rows});
  }
  void backward_of(int layer) {
    for (std::size_t i = std::size(weights); i-- > 0;) {
      const auto& [rows, cols] = weights[i];
      list_.computations.push_back({fmt::format("dX {}", layer), tokens_, rows, cols});
      list_.computations.push_back({fmt::format("dW {}", layer), rows, cols, tokens_});
    }
  }
  std::int32_t add(Workload::Collective item) {
    list_.collectives.push_back(std::move(item));
    return static_cast<std::int32_t>(list_.collectives.size()) - 1;
  }
  /// The computation that was enqueued last.
  std::vector<std::int32_t> last() const {
    if (list_.computations.empty()) return {};
    return {static_cast<std::int32_t>(list_.computations.size()) - 1};
  }
  std::int64_t bytes() const {
    std::int64_t elements = 0;
    for (const auto& [rows, cols] : weights) elements += rows * cols;
    return elements * static_cast<std::int64_t>(size_bytes(list_.dtype));
  }

  Workload list_;
  int layers_;
  std::int64_t tokens_;
};

/// What shingle.torch.data_parallel takes without a table: engines, and sums of 32 SMs in four slices.
std::vector<CollectiveConfig> by_engines(const Workload& list) {
  std::vector<CollectiveConfig> configs;
  for (const Workload::Collective& item : list.collectives)
    configs.push_back(
        {.channels = 32, .chunk_bytes = item.bytes / list.world / 4, .transport = Transport::engines});
  return configs;
}

/// Times in microseconds by the way that bytes go; "none": no communication.
std::map<std::string, double> predicted(const Machine& machine, int world, int layers, std::int64_t tokens) {
  const Workload list = Loop(world, layers, tokens).take();
  std::map<std::string, double> us;
  us["none"] = simulate_overlap(Loop(1, layers, tokens).take(), machine, {}).makespan_us;
  us["nccl"] = simulate_overlap(list, machine, {}).makespan_us;
  us["shingle"] = simulate_overlap(list, machine, by_engines(list)).makespan_us;
  us["co-tuned"] =
      co_tune(list, machine, cotune::Method::together, overlap_space(machine)).measured.makespan_us;
  return us;
}

/// Medians of a record by tokens and way.
std::map<std::pair<std::int64_t, std::string>, double> measured_in(const std::string& path) {
  std::map<std::pair<std::int64_t, std::string>, double> us;
  if (path.empty()) return us;
  for (const bench::RecordRow& row : bench::read_record(path))
    us[{static_cast<std::int64_t>(row.number("tokens")), row.text("timed")}] = row.number("median_us");
  return us;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Predicted times of bench/torch/fsdp.py loop, beside a record of it");
  std::string machine_name = "h200x8", measured_path, path;
  int world = 2, layers = 4;
  std::vector<std::int64_t> tokens{2048, 4096, 8192};
  bool check = false;
  app.add_option("--machine", machine_name)->capture_default_str();
  app.add_option("--world", world)->check(CLI::Range(2, 64))->capture_default_str();
  app.add_option("--layers", layers)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--tokens", tokens, "of a rank")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--measured", measured_path, "record of bench/torch/fsdp.py loop")->check(CLI::ExistingFile);
  app.add_flag("--check", check,
               fmt::format("fail if an error exceeds {:.0f}%, or nothing was measured", 100 * most_error));
  app.add_option("--json", path, "file for the figures");
  CLI11_PARSE(app, argc, argv);

  const Machine machine = machine_from_spec(machine_name);
  const auto measured = measured_in(measured_path);
  json written = bench::record(argc, argv);
  double largest = measured.empty() ? 1 : 0;
  fmt::print("{:>6}  {:<9} {:>12} {:>12} {:>8}\n", "tokens", "way", "predicted", "measured", "error");
  for (const std::int64_t count : tokens)
    for (const auto& [way, us] : predicted(machine, world, layers, count)) {
      json row{{"tokens", count}, {"way", way}, {"predicted_us", us}};
      std::string found = "-", off = "-";
      if (const auto at = measured.find({count, way}); at != measured.end()) {
        const double error = us / at->second - 1;
        largest = std::max(largest, std::abs(error));
        row["measured_us"] = at->second, row["error"] = error;
        found = format_us(at->second), off = fmt::format("{:+.1f}%", 100 * error);
      }
      fmt::print("{:>6}  {:<9} {:>12} {:>12} {:>8}\n", count, way, format_us(us), found, off);
      written["rows"].push_back(std::move(row));
    }
  bench::write(written, path);
  if (!check || largest <= most_error) return 0;
  fmt::print(stderr, "bench_fsdp_loop: an error exceeds {:.0f}%, or --measured has none of these times\n",
             100 * most_error);
  return 1;
} catch (const Error& error) {
  fmt::print(stderr, "bench_fsdp_loop: {}\n", error.what());
  return 1;
}
