// Compares the grouped product of the instrumented GEMM with a loop of cuBLASLt's fastest algorithms, one for
// each group, on one GPU. bench/torch/grouped_mm.py adds PyTorch's.
//
// A has the rows of all groups, one group behind another, and B stacks their weights, n×k. Runs alternate,
// each after a pause. Inputs have random bits throughout. Results are compared element by element, to one
// rounding.
#include <CLI/CLI.hpp>

#include <cmath>
#include <numeric>

#include "cuda/commands/blas.hpp"
#include "hooked_gemm.hpp"
#include "rounding.hpp"
#include "shingle/plan/placement.hpp"

using namespace shingle;
using namespace shingle::bench;

namespace {

struct Case {
  std::string model;
  std::int64_t n, k;
  std::int32_t groups;
  std::int64_t rows;  ///< of all groups
  bool skewed;        ///< rows of group i as 1 / (i + 1), else as equal as can be
};

/// Both products of an expert on one of two ranks, 512 to 16384 tokens of two ranks with their choices.
std::vector<Case> suite() {
  std::vector<Case> cases;
  struct Model {
    const char* name;
    std::int64_t n, k;
    std::int32_t groups;
    std::int64_t choices;
  };
  for (const Model& model :
       {Model{"mixtral-8x7b up", 28672, 4096, 4, 2}, Model{"mixtral-8x7b down", 4096, 14336, 4, 2},
        Model{"mixtral-8x7b up", 28672, 4096, 8, 2}, Model{"deepseek-moe-16b up", 2816, 2048, 32, 6},
        Model{"deepseek-moe-16b down", 2048, 1408, 32, 6}, Model{"deepseek-moe-16b up", 2816, 2048, 64, 6}})
    for (const std::int64_t tokens : {512, 4096, 16384})
      for (const bool skewed : {false, true})
        cases.push_back({model.name, model.n, model.k, model.groups, tokens * model.choices / 2, skewed});
  return cases;
}

std::vector<std::int64_t> group_rows(const Case& of) {
  std::vector<double> share;
  for (std::int32_t i = 0; i < of.groups; ++i) share.push_back(of.skewed ? 1.0 / (i + 1) : 1.0);
  const double all = std::accumulate(share.begin(), share.end(), 0.0);
  std::vector<std::int64_t> rows;
  std::int64_t left = of.rows;
  for (const double one : share) {
    rows.push_back(smaller(left, std::llround(static_cast<double>(of.rows) * one / all)));
    left -= rows.back();
  }
  rows.front() += left;
  return rows;
}

/// A grouped product, ready to launch. Operands and output must outlive it.
class GroupedGemm {
 public:
  GroupedGemm(const GemmInstance& instance, const Case& of, TileOrder order, const void* a, const void* b,
              char* out)
      : instance_(instance), epoch_(sizeof(std::uint32_t)) {
    epoch_.fill(0);
    GemmArgs args;
    args.tile = instance.tile;
    args.ctas = sm_count();
    args.cols = of.n, args.k = of.k;
    args.a = a, args.lda = of.k, args.a_rows = of.rows;
    args.b = b, args.ldb = of.k, args.transpose_b = true;
    args.weights = of.groups;
    args.part_rows = instance.tile.rows;
    std::vector<std::int32_t> first, weight;
    std::vector<std::int64_t> rows_of;  // of a tile
    const std::int64_t tile_rows = instance.tile.rows, cluster = instance.tile.cluster;
    std::int64_t begin = 0, piece = tile_rows;
    const std::vector<std::int64_t> groups = group_rows(of);
    for (std::size_t group = 0; group < groups.size(); begin += groups[group++])
      for (std::int64_t tile = 0; tile < tiles_of_group(groups[group], tile_rows, cluster); ++tile) {
        first.push_back(static_cast<std::int32_t>(begin + tile * tile_rows));
        weight.push_back(static_cast<std::int32_t>(group));
        rows_of.push_back(larger(smaller(tile_rows, groups[group] - tile * tile_rows), 0));
        piece = std::gcd(piece, rows_of.back());
      }
    const std::int64_t row_bytes = of.n * 2, pieces = instance.tile.rows / piece;
    std::vector<char*> table;
    for (std::size_t tile = 0; tile < first.size(); ++tile)
      for (std::int64_t i = 0; i < pieces; ++i)
        table.push_back(i * piece < rows_of[tile] ? out + (first[tile] + i * piece) * row_bytes : nullptr);
    table_ = upload(table), first_ = upload(first), weight_ = upload(weight);
    args.rows = static_cast<std::int64_t>(first.size()) * instance.tile.rows;
    args.a_first = first_.get<std::int32_t>(), args.weight_of = weight_.get<std::int32_t>();
    args.out.table = table_.get<char*>(), args.out.row_bytes = row_bytes;
    args.out.piece_rows = static_cast<std::int32_t>(piece);
    args.out.pieces = static_cast<std::int32_t>(pieces);
    order.cluster_m = instance.tile.cluster;
    const TileGrid grid = make_grid(args.rows, args.cols, instance.tile.rows, instance.tile.cols, order);
    std::vector<TileAt> tiles;
    for (std::int64_t p = 0; p < grid.positions(); ++p)
      if (const Tile at = grid.tile(p); !grid.phantom(at))
        tiles.push_back({static_cast<std::int32_t>(at.m), static_cast<std::int32_t>(at.n)});
    dealt_.set(instance, args, tiles, args.ctas);
    args.watch = rank_.watch(epoch_.get<std::uint32_t>(), timeout_);
    ctas_ = args.ctas;
    check(instance.load(), "load a kernel");
    check(instance.prepare(args, params_.get()), "prepare a kernel");
  }

  void launch(cudaStream_t stream) const {
    check(instance_.launch(params_.get(), ctas_, stream), "launch a kernel");
  }

 private:
  const GemmInstance& instance_;
  std::int32_t ctas_ = 0;
  LocalRank rank_{0, 0};
  WaitTimeout timeout_{5e6};
  DeviceMemory epoch_, table_, first_, weight_;
  DealtWorks dealt_;
  std::unique_ptr<GemmParams> params_ = std::make_unique<GemmParams>();
};

/// One tuned product of cuBLASLt for each group.
class Loop {
 public:
  Loop(const Case& of, cudaStream_t stream, const char* a, const char* b, char* out) {
    std::int64_t begin = 0, weight = 0;
    std::size_t workspace_bytes = 0;
    for (const std::int64_t rows : group_rows(of)) {
      if (rows > 0) {
        LibraryProblem problem;
        problem.m = rows, problem.n = of.n, problem.k = of.k;
        problem.transpose_b = true;
        problem.lda = problem.ldb = of.k, problem.ldc = of.n;
        LibraryGemm gemm(handle_, problem);
        const LibraryOperands matrices{a + begin * of.k * 2, b + weight * of.n * of.k * 2, nullptr,
                                       out + begin * of.n * 2};
        gemm.tune(stream, matrices);
        workspace_bytes = std::max(workspace_bytes, gemm.workspace_bytes());
        products_.push_back({std::move(gemm), matrices});
      }
      begin += rows, ++weight;
    }
    workspace_ = DeviceMemory(workspace_bytes);
  }
  void run(cudaStream_t stream) {
    for (Product& one : products_) one.gemm.run(stream, one.matrices, workspace_.get());
  }

 private:
  struct Product {
    LibraryGemm gemm;
    LibraryOperands matrices;
  };
  BlasHandle handle_;
  std::vector<Product> products_;
  DeviceMemory workspace_;
};

nlohmann::json compare(const Case& of, int repeat) {
  const DeviceMemory a = uniform(of.rows * of.k, 1), b = uniform(of.groups * of.n * of.k, 2);
  const auto out_bytes = static_cast<std::size_t>(of.rows * of.n * 2);
  const DeviceMemory out(out_bytes), expected(out_bytes);
  Stopwatch stopwatch;
  Loop loop(of, stopwatch.stream(), a.get<char>(), b.get<char>(), expected.get<char>());
  std::unique_ptr<GroupedGemm> best;
  double best_us = 1e30;
  std::string tile;
  const TileOrder orders[] = {{Raster::along_m, 8}, {Raster::along_n, 8}, {Raster::along_n, 4}};
  for (const GemmInstance& instance : gemm_instances(GemmFamily::sm90)) {
    if (instance.type != Element::bf16 || instance.transpose_a || !instance.transpose_b) continue;
    for (const TileOrder& order : orders) {
      auto candidate = std::make_unique<GroupedGemm>(instance, of, order, a.get(), b.get(), out.get<char>());
      const auto launch = [&](cudaStream_t on) { candidate->launch(on); };
      stopwatch.time_us(launch);
      if (const double us = std::min(stopwatch.time_us(launch), stopwatch.time_us(launch)); us < best_us)
        best = std::move(candidate), best_us = us,
        tile = fmt::format("{}x{}, {}{}", instance.tile.rows, instance.tile.cols, instance.tile.cluster,
                           order.raster == Raster::along_m ? ", along m" : "");
    }
  }
  if (best == nullptr) throw Unsupported("this build has no kernels for compute capability 9.0");
  Samples ours, theirs;
  for (int i = 0; i < repeat; ++i) {
    theirs.us.push_back(stopwatch.time_us([&](cudaStream_t on) { loop.run(on); }));
    ours.us.push_back(stopwatch.time_us([&](cudaStream_t on) { best->launch(on); }));
  }
  out.fill(0xff);
  stopwatch.time_us([&](cudaStream_t on) { best->launch(on); });
  return {{"model", of.model},
          {"n", of.n},
          {"k", of.k},
          {"group_rows", group_rows(of)},
          {"rows", of.rows},
          {"skewed", of.skewed},
          {"tile", tile},
          {"cublaslt_loop", theirs.json()},
          {"shingle", ours.json()},
          {"verified", all_same(download(out), download(expected), of.k)}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The grouped product beside a loop of cuBLASLt, bf16, on one GPU");
  int repeat = 9;
  std::string json;
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--json", json, "file for the record, written anew after each case");
  CLI11_PARSE(app, argc, argv);
  try {
    auto record = bench::record(argc, argv);
    bool verified = true;
    double sum = 0, least = 1e30;
    for (const Case& one : suite()) {
      const auto row = compare(one, repeat);
      const double ratio =
          row["cublaslt_loop"]["median_us"].get<double>() / row["shingle"]["median_us"].get<double>();
      fmt::print(
          "{:22} {:>5}x{:>5} {:>2} groups {:>6} rows {:8} tile {:17} loop {:8.1f} us  {:.3f} of it  right: "
          "{}\n",
          one.model, one.n, one.k, one.groups, one.rows, one.skewed ? "skewed" : "balanced",
          row["tile"].get<std::string>(), row["cublaslt_loop"]["median_us"].get<double>(), ratio,
          row["verified"].get<bool>() ? "yes" : "NO");
      std::fflush(stdout);
      verified = verified && row["verified"].get<bool>();
      sum += std::log(ratio), least = std::min(least, ratio);
      record["rows"].push_back(row);
      bench::save(record, json);
    }
    fmt::print("geomean {:.3f}, least {:.3f} (target 0.97)\n",
               std::exp(sum / static_cast<double>(record["rows"].size())), least);
    bench::write(record, json);
    return verified ? 0 : 1;
  } catch (const Error& error) {
    fmt::print(stderr, "bench_cuda_grouped_gemm: {}\n", error.what());
    return 1;
  }
}
