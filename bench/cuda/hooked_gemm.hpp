// Helpers for benchmarks of the instrumented GEMM: shapes, random operands, a stopwatch. Also a prepared
// kernel for each layout in which `signal` stores tiles.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <memory>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "../report.hpp"
#include "cuda/kernels/gemm.hpp"
#include "cuda/kernels/sync.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/raii/stream.hpp"
#include "cuda/runtime/local_rank.hpp"
#include "grid/split.hpp"
#include "shingle/base/error.hpp"

namespace shingle::bench {

using namespace shingle::cuda;

struct GemmShape {
  std::int64_t m, n, k;
};

inline std::vector<GemmShape> parse_shapes(const std::vector<std::string>& words) {
  std::vector<GemmShape> shapes;
  for (const std::string& word : words) {
    GemmShape shape{};
    if (std::sscanf(word.c_str(), "%ldx%ldx%ld", &shape.m, &shape.n, &shape.k) != 3)
      throw InvalidArgument(fmt::format("'{}' is no shape MxNxK", word));
    shapes.push_back(shape);
  }
  return shapes;
}

/// Number of SMs of the current device.
inline std::int32_t sm_count() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

template <class T>
DeviceMemory upload(const std::vector<T>& data) {
  DeviceMemory memory(data.size() * sizeof(T));
  check(cudaMemcpy(memory.get(), data.data(), memory.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  // our streams do not wait for copies of small data
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return memory;
}

/// bf16 values, uniform in (-1, 1), with all seven bits of the fraction random. They repeat after about 67
/// million elements, with a period that is no multiple of a row.
inline DeviceMemory uniform(std::int64_t count, unsigned seed) {
  constexpr std::int64_t period = (std::int64_t{1} << 26) + 8;
  std::vector<std::uint16_t> data(static_cast<std::size_t>(smaller(count, period)));
  std::uint64_t state = seed;
  for (auto& x : data) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto bits = static_cast<std::uint32_t>(state >> 32);
    const std::uint32_t exponent = 126 - static_cast<std::uint32_t>(std::countr_zero(bits | 1u << 20));
    x = static_cast<std::uint16_t>(bits >> 31 << 15 | exponent << 7 | (bits >> 24 & 0x7f));
  }
  DeviceMemory memory(static_cast<std::size_t>(count) * sizeof(data[0]));
  for (std::size_t at = 0, block = data.size() * sizeof(data[0]); at < memory.bytes(); at += block)
    check(cudaMemcpy(memory.get<char>() + at, data.data(), std::min(block, memory.bytes() - at),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
  return memory;
}

/// Layouts in which `signal` makes the GEMM store its tiles (docs/mechanisms/signal.md).
enum class Granularity : std::uint8_t {
  none,  ///< at their places in the output, with idle hooks
  tile,  ///< for an all-reduce: tile by tile in the order of execution
  /// For a reduce-scatter: rank by rank within each wave. A tile takes rows of A from the shards of all
  /// ranks.
  subtile,
  subtoken,  ///< for an all-to-all: rank by rank within each wave
};

inline std::string_view name(Granularity granularity) {
  constexpr std::string_view names[] = {"none", "tile", "subtile", "subtoken"};
  return names[static_cast<std::size_t>(granularity)];
}

/// Addresses of a grid's rows in an output of two-byte elements, in waves of `wave` tiles.
class TileLayout {
 public:
  TileLayout(const TileGrid& grid, Granularity granularity, int ranks, std::int32_t wave)
      : grid_(grid), granularity_(granularity), ranks_(ranks) {
    if (granularity == Granularity::subtile && grid.rows % grid.tile_rows != 0)
      throw InvalidArgument(fmt::format("{} rows are no whole tiles of {}", grid.rows, grid.tile_rows));
    if (granularity != Granularity::none) place(wave);
  }

  /// Number of contiguous rows in a piece of a tile.
  std::int32_t piece_rows() const {
    if (granularity_ == Granularity::subtoken) return 1;
    return granularity_ == Granularity::subtile ? grid_.tile_rows / ranks_ : grid_.tile_rows;
  }
  std::int32_t pieces() const { return grid_.tile_rows / piece_rows(); }
  std::int64_t row_bytes() const { return std::int64_t{grid_.tile_cols} * 2; }
  /// Byte offsets by [position · pieces + piece]; negative if the position has no tile.
  const std::vector<std::int64_t>& offsets() const { return offsets_; }

  /// Byte offset of a tile's row, and its row in the result.
  struct RowAt {
    std::int64_t offset, row;
  };
  RowAt at(std::int64_t position, std::int32_t row) const {
    const Tile tile = grid_.tile(position);
    const std::int32_t piece = row / piece_rows(), in_piece = row % piece_rows();
    std::int64_t of_result = tile.m * grid_.tile_rows + row;
    if (granularity_ == Granularity::none)
      return {(of_result * grid_.cols + tile.n * grid_.tile_cols) * 2, of_result};
    if (granularity_ == Granularity::subtile)
      of_result = piece * (grid_.rows / ranks_) + tile.m * piece_rows() + in_piece;
    return {offsets_[static_cast<std::size_t>(position * pieces() + piece)] + in_piece * row_bytes(),
            of_result};
  }

 private:
  /// Assigns offsets wave by wave, within a wave the pieces of rank 0 first.
  void place(std::int32_t wave) {
    const std::int32_t count = pieces();
    offsets_.assign(static_cast<std::size_t>(grid_.positions() * count), -1);
    std::mt19937 random(1);
    // By row of tiles and piece: a tile stays whole, each rank gets one subtile of it, subtokens go to random
    // ranks.
    std::vector<std::size_t> rank_of(static_cast<std::size_t>(grid_.tiles_m() * count), 0);
    const auto ranks = static_cast<std::size_t>(ranks_);
    for (std::size_t i = 0; i < rank_of.size() && granularity_ != Granularity::tile; ++i)
      rank_of[i] = (granularity_ == Granularity::subtoken ? random() : i) % ranks;
    std::int64_t offset = 0;
    for (std::int64_t begin = 0; begin < grid_.positions(); begin += wave)
      for (std::size_t rank = 0; rank < ranks; ++rank)
        for (std::int64_t p = begin; p < smaller(begin + wave, grid_.positions()); ++p) {
          const Tile tile = grid_.tile(p);
          for (std::int32_t i = 0; i < count && !grid_.phantom(tile); ++i) {
            if (rank_of[static_cast<std::size_t>(tile.m * count + i)] != rank) continue;
            offsets_[static_cast<std::size_t>(p * count + i)] = offset;
            offset += piece_rows() * row_bytes();
          }
        }
  }

  TileGrid grid_;
  Granularity granularity_;
  int ranks_;
  std::vector<std::int64_t> offsets_;
};

/// The works of a kernel, and the memory of its split-K.
class DealtWorks {
 public:
  /// Deals the tiles to at most `ctas` CTAs. `parts`: of the tiles that CTAs share; 0: as the backend
  /// decides. All other arguments must be set.
  void set(const GemmInstance& instance, GemmArgs& args, const std::vector<TileAt>& tiles, std::int32_t ctas,
           std::int64_t parts = 0) {
    SharedTiles shared = shared_tiles(instance, instance.splits, args, tiles.size(), ctas);
    if (parts > 0) {
      const std::int64_t cluster = instance.tile.cluster, units = std::ssize(tiles) / cluster;
      shared = {instance.splits == KSplit::all ? units : units % (ctas / cluster), parts};
    }
    works_ = upload(deal(instance, args, tiles, ctas, shared));
    args.works = works_.get<GemmWork>();
    sums_ = DeviceMemory(args.split.sum_bytes(args));
    arrived_ = upload(std::vector<std::uint32_t>(args.split.arrived_words(args)));
    args.split.sums = sums_.get<float>(), args.split.arrived = arrived_.get<std::uint32_t>();
  }

 private:
  DeviceMemory works_, sums_, arrived_;
};

struct GemmSetup {
  const GemmInstance& instance;
  GemmShape shape;
  TileOrder order;
  Granularity granularity = Granularity::none;
  std::int64_t parts = 0;  ///< of tiles that CTAs share (DealtWorks)
  int ranks = 4;           ///< ranks that receive subtiles and subtokens
  std::int32_t ctas = 0;   ///< SMs, and thus tiles in a wave
  /// Each tile has its own counter, by position; else `ctas` positions have one.
  bool count_tiles = false;
};

/// A kernel that is ready to launch. Operands and output must outlive it. A is m×k, B is n×k.
class HookedGemm {
 public:
  HookedGemm(const GemmSetup& setup, const void* a, const void* b, char* out)
      : instance_(setup.instance),
        ctas_(setup.ctas),
        grid_(make_grid(setup.shape.m, setup.shape.n, instance_.tile.rows, instance_.tile.cols, setup.order)),
        layout_(grid_, setup.granularity, setup.ranks, setup.ctas),
        counts_(static_cast<std::size_t>(grid_.positions() + 1) * sizeof(std::uint32_t)),
        epoch_(sizeof(std::uint32_t)) {
    const GemmShape& shape = setup.shape;
    counts_.fill(0), epoch_.fill(0);
    GemmArgs args;
    args.tile = instance_.tile;
    args.rows = args.a_rows = shape.m;
    args.cols = shape.n, args.k = shape.k;
    args.a = a, args.lda = shape.k;
    args.b = b, args.ldb = shape.k;
    args.transpose_b = true;
    args.part_rows = instance_.tile.rows;
    args.out.base = out;
    args.out.row_bytes = shape.n * 2;
    if (setup.granularity == Granularity::subtile) {
      args.a_parts = setup.ranks;
      args.part_rows = layout_.piece_rows();
      args.a_stride = args.rows = shape.m / setup.ranks;
    }
    std::vector<TileAt> tiles;
    std::vector<std::uint32_t*> signals;
    std::vector<char*> table;
    for (const std::int64_t p : positions_with_output()) {
      const Tile at = grid_.tile(p);
      tiles.push_back({static_cast<std::int32_t>(at.m), static_cast<std::int32_t>(at.n)});
      signals.push_back(grid_.phantom(at) ? nullptr : counts() + (setup.count_tiles ? p : p / ctas_));
      for (std::int32_t i = 0; setup.granularity != Granularity::none && i < layout_.pieces(); ++i) {
        const std::int64_t offset = layout_.offsets()[static_cast<std::size_t>(p * layout_.pieces() + i)];
        table.push_back(offset < 0 ? nullptr : out + offset);
      }
    }
    if (setup.granularity != Granularity::none) {
      table_ = upload(table);
      args.out = {.table = table_.get<char*>(), .row_bytes = layout_.row_bytes()};
      args.out.piece_rows = layout_.piece_rows(), args.out.pieces = layout_.pieces();
      args.out.by_tile = true;
    }
    signals_ = upload(signals);
    dealt_.set(instance_, args, tiles, ctas_, setup.parts);
    args.watch = rank_.watch(epoch_.get<std::uint32_t>(), timeout_);
    if (setup.granularity != Granularity::none) args.notify = {signals_.get<std::uint32_t*>(), 1, false};
    launched_ = args.ctas;
    check(instance_.load(), "load a kernel");
    check(instance_.prepare(args, params_.get()), "prepare a kernel");
  }

  void launch(cudaStream_t stream) const {
    check(instance_.launch(params_.get(), launched_, stream), "launch a kernel");
  }

  const TileGrid& grid() const { return grid_; }
  const TileLayout& layout() const { return layout_; }
  /// Counters by position with count_tiles, else by wave. The kernel does not use the last one.
  std::uint32_t* counts() const { return counts_.get<std::uint32_t>(); }

  /// Bytes of the output in any granularity: whole tiles of at most 256 rows and columns.
  static std::size_t out_bytes(const GemmShape& shape) {
    return static_cast<std::size_t>((shape.m + 512) * (shape.n + 512) * 2);
  }

 private:
  /// Positions without the clusters that have phantom tiles only, as the backend launches them.
  std::vector<std::int64_t> positions_with_output() const {
    const std::int32_t cluster = instance_.tile.cluster;
    std::vector<std::int64_t> positions;
    for (std::int64_t first = 0; first < grid_.positions(); first += cluster) {
      bool any = false;
      for (std::int64_t p = first; p < first + cluster; ++p) any = any || !grid_.phantom(grid_.tile(p));
      for (std::int64_t p = first; any && p < first + cluster; ++p) positions.push_back(p);
    }
    return positions;
  }

  const GemmInstance& instance_;
  std::int32_t ctas_;
  std::int32_t launched_ = 0;  // of these, if there are too few tiles for all
  TileGrid grid_;
  TileLayout layout_;
  LocalRank rank_{0, 0};
  WaitTimeout timeout_{5e6};
  DeviceMemory counts_, epoch_, signals_, table_;
  DealtWorks dealt_;
  std::unique_ptr<GemmParams> params_ = std::make_unique<GemmParams>();
};

/// Times work that is enqueued after a wait on the device, so that the time includes no launch by the host.
class Stopwatch {
 public:
  Stopwatch() : word_(sizeof(std::uint32_t)), epoch_(sizeof(std::uint32_t)) {
    check(preload_sync(), "preload_sync");
    epoch_.fill(0);
  }
  template <class Launch>
  double time_us(Launch&& launch) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const SyncOp wait{SyncKind::await, word_.get<std::uint32_t>(), ++shots_, 0, true};
    check(launch_sync(&wait, 1, rank_.watch(epoch_.get<std::uint32_t>(), timeout_), stream_.get()),
          "launch_sync");
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
  WaitTimeout timeout_{5e6};
  PinnedMemory word_;
  DeviceMemory epoch_;
  std::uint32_t shots_ = 0;
  Stream stream_;
  Event begin_{Event::Timing::on}, end_{Event::Timing::on};
};

}  // namespace shingle::bench
