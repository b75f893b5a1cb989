// A pass with random hooks, its launch, and its expected results from a plain computation.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <sstream>

#include "placed.hpp"

namespace shingle::cuda::test {

struct PassShape {
  int rows = 100, cols = 200, tile_rows = 32, tile_cols = 64;
  Element source_type = Element::bf16, type = Element::bf16;
  int sources = 1;
  int wide_every = 0;  ///< of so many sources the first is f32; 0: none
  float scale = 1;     ///< a power of two: exact sums stay exact
  Activate activate = Activate::none;
  bool bias = false, norm = false, residual = false;
  bool integers = true;  ///< small integers, whose sums are exact
  int ctas = 0;          ///< limit; 0: none
  int phantoms = 3;
  LayoutChoice from{Layout::by_tile, 32};
  LayoutChoice to{};

  bool row_wise() const { return norm || activate == Activate::swiglu; }
  int out_cols() const { return activate == Activate::swiglu ? cols / 2 : cols; }
  bool wide(int source) const { return wide_every > 0 && source % wide_every == 0; }
  Element type_of(int source) const { return wide(source) ? Element::f32 : source_type; }
};

class RandomPass {
 public:
  RandomPass(unsigned seed, const PassShape& shape) : random_(seed), shape_(shape) {
    grid_ = {shape.rows, shape.cols, shape.tile_rows, shape.tile_cols, {}, {}};
    grid_.shuffle(random_, shape.phantoms);
    for (int s = 0; s < shape.sources; ++s) {
      sources_.push_back(std::make_unique<Placed>(random_, grid_, shape.type_of(s), shape.from));
      fill(*sources_.back(), shape.type_of(s));
    }
    LayoutChoice out = shape.to;
    if (shape.row_wise()) out.cols = shape.out_cols();
    to_ = std::make_unique<Placed>(random_, grid_, shape.type, out);
    LayoutChoice plain;
    plain.cols = shape.out_cols();
    residual_ = std::make_unique<Placed>(random_, grid_, shape.type, plain);
    sum_ = std::make_unique<Placed>(random_, grid_, shape.type, plain);
    fill(*residual_, shape.type);
    bias_ = numbers(shape.cols), weight_ = numbers(shape.out_cols());
  }

  /// Arguments for the whole pass. This object owns the memory that they point to.
  ElementwiseArgs args() {
    ElementwiseArgs args;
    args.source_type = shape_.source_type;
    args.type = shape_.type;
    args.rows = shape_.rows, args.cols = shape_.cols;
    args.tile_rows = shape_.tile_rows, args.tile_cols = shape_.tile_cols;
    args.tiles_n = grid_.tiles_n();
    args.last = shape_.row_wise() ? grid_.tiles_m() : static_cast<std::int64_t>(grid_.order.size());
    order_ = upload(grid_.order), position_of_ = upload(grid_.position_of);
    args.order = order_.get<TileAt>();
    args.position_of = position_of_.get<std::int32_t>();
    std::vector<Route> routes;
    for (int s = 0; s < shape_.sources; ++s) {
      routes.push_back(source(s).to_device());
      routes.back().wide = shape_.wide(s);
    }
    args.mixed = shape_.wide_every > 0;
    routes_ = upload(routes);
    args.sources = routes_.get<Route>();
    args.source_count = shape_.sources;
    args.to = to_->to_device();
    args.scale = shape_.scale;
    args.ctas = shape_.ctas;
    args.activate = shape_.activate;
    device_bias_ = upload(stored(bias_)), device_weight_ = upload(stored(weight_));
    if (shape_.bias) args.bias = device_bias_.get();
    args.norm = shape_.norm;
    args.epsilon = 1e-5f;
    args.norm_weight = device_weight_.get();
    args.has_residual = shape_.residual;
    args.residual = residual_->to_device();
    args.sum = sum_->to_device();
    return args;
  }

  /// Compares the whole output memory, including addresses that must not be written.
  void expect_done() {
    compute();
    expect_image(*to_, "to");
    if (shape_.residual) expect_image(*sum_, "sum");
  }

  const TestGrid& grid() const { return grid_; }
  Placed& source(int s) { return *sources_[static_cast<std::size_t>(s)]; }
  void poison_output() { check(cudaMemset(to_->memory.get(), 0xff, to_->memory.bytes()), "cudaMemset"); }

 private:
  float number() {
    return shape_.integers ? static_cast<float>(draw(random_, -4, 4))
                           : std::uniform_real_distribution<float>(-1, 1)(random_);
  }
  std::vector<float> numbers(int count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& v : values) {
      std::uint32_t rounded = 0;  // value that the device will read
      store_element(dtype(shape_.type), &rounded, 0, number());
      v = load_element(dtype(shape_.type), &rounded, 0);
    }
    return values;
  }
  std::vector<char> stored(const std::vector<float>& values) {
    std::vector<char> bytes(values.size() * size_bytes(dtype(shape_.type)));
    for (std::size_t i = 0; i < values.size(); ++i)
      store_element(dtype(shape_.type), bytes.data(), i, values[i]);
    return bytes;
  }
  void fill(Placed& at, Element type) {
    const std::size_t count = at.image.size() / size_bytes(dtype(type));
    for (std::size_t i = 0; i < count; ++i) store_element(dtype(type), at.image.data(), i, number());
  }

  /// A row of the sum of sources, and whether any source has the row.
  bool sum_row(int m, int row, int first, int count, std::vector<double>& x) const {
    bool there = false;
    for (int s = 0; s < shape_.sources; ++s)
      for (int i = 0; i < count; ++i) {
        const Placed& source = *sources_[static_cast<std::size_t>(s)];
        const int n = (first + i) / shape_.tile_cols;
        const std::int64_t at = source.at(m, n, row);
        if (at < 0) continue;
        there = true;
        const int col = source.by_tile() ? first + i - n * shape_.tile_cols : first + i;
        x[static_cast<std::size_t>(i)] +=
            load_element(dtype(shape_.type_of(s)), source.image.data(), at + col);
      }
    return there;
  }

  static double silu(double x) { return x / (1 + std::exp(-x)); }
  double activated(double x) const {
    if (shape_.activate == Activate::relu) return std::max(x, 0.0);
    if (shape_.activate == Activate::gelu) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    return shape_.activate == Activate::silu ? silu(x) : x;
  }

  void compute() {
    for (int row = 0; row < shape_.rows; ++row) {
      const int m = row / shape_.tile_rows, in_tile = row % shape_.tile_rows;
      if (shape_.row_wise()) {
        compute_row(m, in_tile);
      } else {
        for (int n = 0; n < grid_.tiles_n(); ++n) compute_tile_row(m, n, in_tile);
      }
    }
  }
  void compute_tile_row(int m, int n, int row) {
    const int first = n * shape_.tile_cols, count = std::min(shape_.tile_cols, shape_.cols - first);
    std::vector<double> x(static_cast<std::size_t>(count));
    const bool there = sum_row(m, row, first, count, x);
    const bool reorder = shape_.sources == 1 && shape_.source_type == shape_.type && shape_.scale == 1 &&
                         !shape_.bias && shape_.activate == Activate::none;
    if (reorder && !there) return;
    for (int i = 0; i < count; ++i)
      x[i] = activated(x[i] * shape_.scale + (shape_.bias ? bias_[first + i] : 0));
    put(*to_, m, n, row, to_->by_tile() ? 0 : first, x);
  }
  void compute_row(int m, int row) {
    const int out = shape_.out_cols();
    if (!goes_somewhere(m, row)) return;
    std::vector<double> x(static_cast<std::size_t>(shape_.cols));
    sum_row(m, row, 0, shape_.cols, x);
    for (int i = 0; i < shape_.cols; ++i) x[i] += shape_.bias ? bias_[i] : 0;
    for (int i = 0; i < out; ++i)
      x[i] = shape_.activate == Activate::swiglu ? silu(x[i]) * x[out + i] : activated(x[i]);
    x.resize(static_cast<std::size_t>(out));
    if (shape_.residual) {
      const std::int64_t at = residual_->at(m, 0, row);
      for (int i = 0; i < out; ++i) x[i] += load_element(dtype(shape_.type), residual_->image.data(), at + i);
      put(*sum_, m, 0, row, 0, x);
    }
    if (shape_.norm) {
      double squares = 0;
      for (const double v : x) squares += v * v;
      for (int i = 0; i < out; ++i) x[i] *= weight_[i] / std::sqrt(squares / out + 1e-5);
    }
    put(*to_, m, 0, row, 0, x);
  }
  bool goes_somewhere(int m, int row) const {
    for (int d = 0; d < shape_.to.dests; ++d)
      if (to_->at(m, 0, row, d) >= 0) return true;
    return false;
  }
  void put(Placed& where, int m, int n, int row, int col, const std::vector<double>& x) {
    const int dests = &where == to_.get() ? shape_.to.dests : 1;
    for (int d = 0; d < dests; ++d)
      if (const std::int64_t at = where.at(m, n, row, d); at >= 0)
        for (std::size_t i = 0; i < x.size(); ++i)
          store_element(dtype(shape_.type), where.image.data(), at + col + i, static_cast<float>(x[i]));
  }

  void expect_image(const Placed& where, const char* what) {
    const std::vector<char> seen = download<char>(where.memory);
    const DType type = dtype(shape_.type);
    const bool exact = shape_.integers && !shape_.norm && shape_.activate != Activate::gelu &&
                       shape_.activate != Activate::silu && shape_.activate != Activate::swiglu;
    const std::size_t count = seen.size() / size_bytes(type);
    for (std::size_t i = 0; i < count; ++i) {
      if (std::memcmp(&seen[i * size_bytes(type)], &where.image[i * size_bytes(type)], size_bytes(type)) == 0)
        continue;
      const double value = load_element(type, seen.data(), i),
                   wanted = load_element(type, where.image.data(), i);
      // Allows one step of the type, as fp32 and fp64 may round to different sides, and the rounding errors
      // of fp32.
      const double slack = exact ? 0 : epsilon(type) * std::abs(wanted) + 2e-5 * (1 + std::abs(wanted));
      ASSERT_LE(std::abs(value - wanted), slack) << what << ", element " << i << " of " << count;
    }
  }

  Random random_;
  PassShape shape_;
  TestGrid grid_;
  std::vector<std::unique_ptr<Placed>> sources_;
  std::unique_ptr<Placed> to_, residual_, sum_;
  std::vector<float> bias_, weight_;
  DeviceMemory order_, position_of_, routes_, device_bias_, device_weight_;
};

}  // namespace shingle::cuda::test
