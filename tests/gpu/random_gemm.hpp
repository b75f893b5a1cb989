// A product with random hooks, ready to launch, and its expected results from a plain computation.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <sstream>

#include "cuda/kernels/gemm.hpp"
#include "grid/split.hpp"
#include "placed.hpp"

namespace shingle::cuda::test {

/// Row-major random numbers, rounded to their type; NaN between the end of a row and the next row.
class RandomMatrix {
 public:
  RandomMatrix(Random& random, Element type, int rows, int cols, bool integers)
      : cols_(cols), pitch_((cols + 7) / 8 * 8 + 8 * draw(random, 0, 2)) {
    const DType stored = dtype(type);
    image.resize(static_cast<std::size_t>(rows) * pitch_ * size_bytes(stored), '\xff');
    values_.reserve(static_cast<std::size_t>(rows) * cols);
    std::uniform_real_distribution<float> real(-1, 1);
    for (int row = 0; row < rows; ++row)
      for (int col = 0; col < cols; ++col) {
        const std::size_t at = static_cast<std::size_t>(row) * pitch_ + col;
        store_element(stored, image.data(), at,
                      integers ? static_cast<float>(draw(random, -4, 4)) : real(random));
        values_.push_back(static_cast<float>(load_element(stored, image.data(), at)));
      }
  }

  float at(int row, int col) const { return values_[static_cast<std::size_t>(row) * cols_ + col]; }
  int pitch() const { return pitch_; }
  const void* to_device() {
    memory = upload(image);
    return memory.get();
  }

  std::vector<char> image;
  DeviceMemory memory;

 private:
  int cols_, pitch_;
  std::vector<float> values_;
};

struct ProductShape {
  int rows = 300, cols = 264, k = 200;
  bool f32 = false;  ///< output type is fp32
  bool c = false, bias = false;
  Activate activate = Activate::none;
  bool integers = true;        ///< small integers, whose sums are exact
  int parts = 1;               ///< GemmArgs::a_parts
  int part_rows = 0;           ///< GemmArgs::part_rows; 0: the tile rows of the kernel
  bool rows_anywhere = false;  ///< a table gives the first row of A for each row of tiles
  int k_parts = 1;             ///< of shared tiles
  int summed = 0;              ///< GemmSums::count; some rows of tiles are sums
  int phantoms = 2;            ///< positions, or clusters of positions, without a tile
  LayoutChoice out{};
};

class RandomGemm {
 public:
  RandomGemm(unsigned seed, const GemmInstance& instance, const ProductShape& shape)
      : random_(seed),
        instance_(instance),
        shape_(shape),
        part_rows_(shape.part_rows > 0 ? shape.part_rows : instance.tile.rows),
        part_stride_(shape.rows + draw(random_, 0, 40)),
        a_rows_(shape.rows_anywhere ? shape.rows + part_rows_
                                    : (shape.parts - 1) * part_stride_ + shape.rows),
        a_(random_, instance.type, instance.transpose_a ? shape.k : a_rows_,
           instance.transpose_a ? a_rows_ : shape.k, shape.integers),
        b_(random_, instance.type, instance.transpose_b ? b_cols() : shape.k,
           instance.transpose_b ? shape.k : b_cols(), shape.integers),
        c_(random_, instance.type, shape.rows, shape.cols, shape.integers),
        bias_(random_, instance.type, 1, b_cols(), shape.integers),
        owners_(draw(random_, 1, 3)),
        turn_(draw(random_, 1, 2)),
        ctas_(shape.k_parts > 1 ? draw(random_, 2, 40) : 6) {
    for (int part = 0; part < shape.summed; ++part)
      parts_.emplace_back(random_, instance.type, shape.rows, shape.cols, shape.integers);
    const int tile_rows = shape.parts * part_rows_, tiles_m = (shape.rows + part_rows_ - 1) / part_rows_;
    grid_ = {shape.parts > 1 ? tiles_m * tile_rows : shape.rows,
             shape.cols,
             tile_rows,
             instance.tile.cols / (gated() ? 2 : 1),
             {},
             {}};
    order_tiles();
    for (int m = 0; shape.rows_anywhere && m < tiles_m + instance.tile.cluster; ++m)
      a_first_.push_back(draw(random_, 0, a_rows_ - part_rows_));
    out_ = std::make_unique<Placed>(random_, grid_, out_type(), shape.out);
  }

  /// Arguments for the whole product. This object owns the memory that they point to.
  GemmArgs args() {
    GemmArgs args;
    args.type = instance_.type, args.out_type = out_type();
    args.tile = instance_.tile;
    args.rows = shape_.rows, args.cols = shape_.cols, args.k = shape_.k;
    args.a = a_.to_device(), args.lda = a_.pitch(), args.a_rows = a_rows_;
    args.b = b_.to_device(), args.ldb = b_.pitch();
    args.transpose_a = instance_.transpose_a, args.transpose_b = instance_.transpose_b;
    if (shape_.c) args.c = c_.to_device(), args.ldc = c_.pitch();
    if (shape_.bias) args.bias = bias_.to_device();
    args.activate = shape_.activate;
    args.a_parts = shape_.parts, args.part_rows = part_rows_;
    args.a_stride = shape_.parts > 1 ? part_stride_ : 0;
    first_ = upload(a_first_);
    if (shape_.rows_anywhere) args.a_first = first_.get<std::int32_t>();
    // Sums of a call's matrix are at a distance from the addresses in the table.
    const std::int64_t shift = shape_.summed > 0 ? 1 << 20 : 0;
    const int moved = draw(random_, 0, shape_.out.dests);
    args.out =
        out_->to_device([&](int m, int d) { return !is_part(m) && d < moved ? shift : std::int64_t{0}; });
    if (shape_.summed > 0) {
      std::vector<Route> routes;
      for (RandomMatrix& part : parts_)
        routes.push_back(
            {.base = const_cast<char*>(static_cast<const char*>(part.to_device())),
             .row_bytes = static_cast<std::int64_t>(part.pitch() * size_bytes(dtype(instance_.type)))});
      routes_ = upload(routes);
      args.sums = {.count = shape_.summed,
                   .parts = routes_.get<Route>(),
                   .shift = shift,
                   .moved = args.out.table != nullptr ? moved : 0,
                   .owners = owners_,
                   .turn = turn_,
                   .own = owners_ - 1};
    }
    args.watch = watched_.watch();
    works_ = upload(deal(instance_, args, grid_.order, ctas_, shared()));
    args.works = works_.get<GemmWork>();
    sums_ = DeviceMemory(args.split.sum_bytes(args));
    sums_.fill(0xff);
    arrived_ = upload(std::vector<std::uint32_t>(args.split.arrived_words(args)));
    args.split.sums = sums_.get<float>(), args.split.arrived = arrived_.get<std::uint32_t>();
    return args;
  }

  /// Compares the whole output memory, including addresses that must not be written.
  void expect_done() {
    if (!computed_) compute();
    computed_ = true;
    const std::vector<char> seen = download<char>(out_->memory);
    const DType type = dtype(out_type());
    const std::size_t size = size_bytes(type);
    for (std::size_t i = 0; i < seen.size() / size; ++i) {
      if (std::memcmp(&seen[i * size], &out_->image[i * size], size) == 0) continue;
      const double value = load_element(type, seen.data(), i),
                   wanted = load_element(type, out_->image.data(), i);
      // Allows one step of the type, as fp32 and fp64 may round to different sides, and the rounding errors
      // of fp32.
      const double slack = exact() ? 0 : epsilon(type) * std::abs(wanted) + 1e-4 * (1 + std::abs(wanted));
      ASSERT_LE(std::abs(value - wanted), slack)
          << "element " << i << " is " << value << " instead of " << wanted << ": " << describe();
    }
  }

  std::string describe() const {
    std::ostringstream text;
    text << shape_.rows << "x" << shape_.cols << "x" << shape_.k << ", tiles of " << instance_.tile.rows
         << "x" << instance_.tile.cols << ", cluster " << instance_.tile.cluster
         << (instance_.type == Element::bf16 ? ", bf16" : ", f16") << (instance_.transpose_a ? ", A^T" : "")
         << (instance_.transpose_b ? ", B^T" : "") << ", activation " << static_cast<int>(shape_.activate)
         << (shape_.bias ? ", bias" : "") << (shape_.c ? ", C" : "") << ", " << shape_.parts << " parts of "
         << part_rows_ << " rows" << (shape_.rows_anywhere ? " anywhere" : "") << ", K in " << shape_.k_parts
         << " parts on " << ctas_ << " CTAs";
    return text.str();
  }

  const TestGrid& grid() const { return grid_; }
  bool phantom(std::size_t position) const { return grid_.order[position].m >= grid_.tiles_m(); }
  RandomMatrix& a() { return a_; }
  const Watched& watched() const { return watched_; }
  void poison_output() { check(cudaMemset(out_->memory.get(), 0xff, out_->memory.bytes()), "cudaMemset"); }

 private:
  bool gated() const { return shape_.activate == Activate::swiglu; }
  int b_cols() const { return gated() ? 2 * shape_.cols : shape_.cols; }
  Element out_type() const { return shape_.f32 ? Element::f32 : instance_.type; }
  bool exact() const {
    return shape_.integers && (shape_.activate == Activate::none || shape_.activate == Activate::relu);
  }

  /// Of clusters.
  SharedTiles shared() const {
    const std::int64_t cluster = instance_.tile.cluster, units = std::ssize(grid_.order) / cluster;
    const std::int64_t workers = larger(ctas_ / cluster, std::int64_t{1});
    if (instance_.splits == KSplit::none || shape_.k_parts == 1) return {};
    return {instance_.splits == KSplit::all ? units : units % workers, shape_.k_parts};
  }
  /// Shuffles clusters of tiles. Tiles below the grid are phantoms.
  void order_tiles() {
    const int cluster = instance_.tile.cluster, below = (grid_.tiles_m() + cluster - 1) / cluster * cluster;
    std::vector<TileAt> firsts(static_cast<std::size_t>(shape_.phantoms), {below, 0});
    for (int m = 0; m < grid_.tiles_m(); m += cluster)
      for (int n = 0; n < grid_.tiles_n(); ++n) firsts.push_back({m, n});
    std::shuffle(firsts.begin(), firsts.end(), random_);
    grid_.position_of.resize(static_cast<std::size_t>(grid_.tiles_m()) * grid_.tiles_n());
    for (const TileAt& first : firsts)
      for (int i = 0; i < cluster; ++i) {
        const TileAt tile{first.m + i, first.n};
        if (tile.m < grid_.tiles_m())
          grid_.position_of[static_cast<std::size_t>(tile.m) * grid_.tiles_n() + tile.n] =
              static_cast<std::int32_t>(grid_.order.size());
        grid_.order.push_back(tile);
      }
  }

  void compute() {
    std::vector<float> b;  // op(B)
    for (int k = 0; k < shape_.k; ++k)
      for (int j = 0; j < b_cols(); ++j) b.push_back(instance_.transpose_b ? b_.at(j, k) : b_.at(k, j));
    for (int m = 0; m < grid_.tiles_m(); ++m)
      for (int row = 0; row < grid_.tile_rows; ++row) {
        const int in_part = m * part_rows_ + row % part_rows_;
        if (in_part >= shape_.rows) continue;
        const int first = shape_.rows_anywhere ? a_first_[static_cast<std::size_t>(m)] - m * part_rows_ : 0;
        put(m, row, finished(m, in_part, product(in_part + first + row / part_rows_ * part_stride_, b)));
      }
  }
  std::vector<double> product(int row, const std::vector<float>& b) const {
    std::vector<double> sums(static_cast<std::size_t>(b_cols()));
    for (int k = 0; k < shape_.k; ++k) {
      const float x = instance_.transpose_a ? a_.at(k, row) : a_.at(row, k);
      const float* const y = &b[static_cast<std::size_t>(k) * sums.size()];
      for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += static_cast<double>(x) * y[j];
    }
    return sums;
  }
  static double silu(double x) { return x / (1 + std::exp(-x)); }
  /// True if the tiles in row m of the grid are parts of sums, which have one destination.
  bool is_part(int m) const { return shape_.summed > 0 && m / turn_ % owners_ != owners_ - 1; }
  /// A row of row m of tiles.
  std::vector<double> finished(int m, int row, std::vector<double> x) const {
    const auto cols = static_cast<std::size_t>(shape_.cols);
    if (is_part(m)) return x;
    for (const RandomMatrix& part : parts_)
      for (std::size_t j = 0; j < cols; ++j) x[j] += part.at(row, static_cast<int>(j));
    for (std::size_t j = 0; j < x.size(); ++j) {
      if (shape_.c && j < cols) x[j] += c_.at(row, static_cast<int>(j));
      if (shape_.bias) x[j] += bias_.at(0, static_cast<int>(j));
    }
    for (std::size_t j = 0; j < cols; ++j) {
      if (shape_.activate == Activate::relu) x[j] = std::max(x[j], 0.0);
      if (shape_.activate == Activate::gelu) x[j] = 0.5 * x[j] * (1 + std::erf(x[j] / std::sqrt(2.0)));
      if (shape_.activate == Activate::silu) x[j] = silu(x[j]);
      if (gated()) x[j] = silu(x[j]) * x[cols + j];
    }
    x.resize(cols);
    return x;
  }
  void put(int m, int row, const std::vector<double>& x) {
    for (int n = 0; n < grid_.tiles_n(); ++n)
      for (int d = 0; d < (is_part(m) ? 1 : shape_.out.dests); ++d) {
        const std::int64_t at = out_->at(m, n, row, d);
        if (at < 0) continue;
        const int first = n * grid_.tile_cols, last = std::min(first + grid_.tile_cols, shape_.cols);
        for (int j = first; j < last; ++j)
          store_element(dtype(out_type()), out_->image.data(), at + (out_->by_tile() ? j - first : j),
                        static_cast<float>(x[static_cast<std::size_t>(j)]));
      }
  }

  Random random_;
  const GemmInstance& instance_;
  ProductShape shape_;
  int part_rows_, part_stride_, a_rows_;
  RandomMatrix a_, b_, c_, bias_;
  int owners_, turn_;  // GemmSums
  int ctas_;
  std::vector<RandomMatrix> parts_;
  TestGrid grid_{};
  std::vector<std::int32_t> a_first_;
  std::unique_ptr<Placed> out_;
  bool computed_ = false;
  Watched watched_;
  DeviceMemory first_, works_, sums_, arrived_, routes_;
};

}  // namespace shingle::cuda::test
