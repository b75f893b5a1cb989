// Products of few rows: every kernel with ragged shapes, compared with a plain computation; and chains in
// which the weights come early, or are what the kernel ahead writes.
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <cmath>

#include "cuda/commands/written.hpp"
#include "cuda/kernels/skinny.hpp"
#include "random_gemm.hpp"

namespace shingle::cuda::test {
namespace {

struct Shape {
  Element type = Element::bf16;
  bool transpose_b = false;
  int m = 1, n = 8, k = 64;
};

class Product {
 public:
  Product(unsigned seed, const Shape& shape)
      : random_(seed),
        shape_(shape),
        a_(random_, shape.type, shape.m, shape.k, true),
        b_(random_, shape.type, shape.transpose_b ? shape.n : shape.k, shape.transpose_b ? shape.k : shape.n,
           true),
        c_pitch_((shape.n + 7) / 8 * 8 + 8 * draw(random_, 0, 2)),
        c_(static_cast<std::size_t>(shape.m * c_pitch_) * 2) {
    problem_ = {shape.type, shape.m, shape.n, shape.k, a_.pitch(), b_.pitch(), c_pitch_, shape.transpose_b};
    c_.fill(0xff);
    operands_ = {a_.to_device(), b_.to_device(), c_.get()};
  }

  const SkinnyProblem& problem() const { return problem_; }
  SkinnyOperands& operands() { return operands_; }
  void expect_right() const {
    const auto image = download<char>(c_);
    for (int row = 0; row < shape_.m; ++row)
      for (int col = 0; col < c_pitch_; ++col) {
        const auto at = static_cast<std::size_t>(row * c_pitch_ + col);
        const auto got = static_cast<float>(load_element(dtype(shape_.type), image.data(), at));
        if (col >= shape_.n) {
          ASSERT_TRUE(std::isnan(got)) << "behind the end of row " << row;
          continue;
        }
        float sum = 0;
        for (int k = 0; k < shape_.k; ++k)
          sum += a_.at(row, k) * (shape_.transpose_b ? b_.at(col, k) : b_.at(k, col));
        ASSERT_NEAR(got, sum, std::abs(sum) * 0x1p-8)
            << row << ", " << col << " of " << shape_.m << "x" << shape_.n << "x" << shape_.k;
      }
  }

 private:
  Random random_;
  Shape shape_;
  RandomMatrix a_, b_;
  int c_pitch_;
  DeviceMemory c_;
  SkinnyProblem problem_;
  SkinnyOperands operands_;
};

class Skinny : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_here()) GTEST_SKIP() << "no GPU here: /dev/nvidia0 does not exist";
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "cudaDeviceGetAttribute");
    if (major != 9) GTEST_SKIP() << "these kernels are for compute capability 9.0";
    check(preload_skinny(), "preload_skinny");
  }

  static SkinnyLaunch found(const SkinnyProblem& problem, std::int32_t most_ctas = 0) {
    SkinnyLaunch launch;
    check(find_skinny(problem, most_ctas, launch), "find_skinny");
    return launch;
  }
};

TEST_F(Skinny, MultipliesInAllLayouts) {
  unsigned seed = 0;
  Random random(7);
  const Stream stream;
  for (const Element type : {Element::bf16, Element::f16})
    for (const bool transpose_b : {true, false})
      for (const int most : {1, 9, 16, 32, 64, 128})
        for (const bool early : {false, true}) {
          // 4 or 5 CTAs with two tiles each; the last tile is not whole.
          Shape shape{type, transpose_b, draw(random, (most + 1) / 2, most), 8 * draw(random, 57, 79),
                      64 * draw(random, 1, 24)};
          Product product(++seed, shape);
          SkinnyLaunch launch = found(product.problem(), 5);
          ASSERT_NE(launch.kernel, nullptr) << shape.n;
          ASSERT_GE(launch.kernel->rows, shape.m);
          check(set_skinny_operands(product.problem(), product.operands(), launch.params),
                "set the operands");
          check(launch_skinny(launch, early, stream.get()), "launch");
          stream.synchronize();
          product.expect_right();
          if (HasFatalFailure()) return;
        }
}

TEST_F(Skinny, LeavesOtherProductsToTheLibrary) {
  const SkinnyProblem good{Element::bf16, 16, 8192, 1024, 1024, 1024, 8192, true};
  EXPECT_NE(found(good).kernel, nullptr);
  const auto refused = [](SkinnyProblem problem) { return found(problem).kernel == nullptr; };
  const auto with = [&](auto&& change) {
    SkinnyProblem problem = good;
    change(problem);
    return problem;
  };
  EXPECT_TRUE(refused(with([](SkinnyProblem& p) { p.m = 129; })));
  EXPECT_TRUE(refused(with([](SkinnyProblem& p) { p.m = 0; })));
  EXPECT_TRUE(refused(with([](SkinnyProblem& p) { p.k = 1000; })));
  EXPECT_TRUE(refused(with([](SkinnyProblem& p) { p.n = 8191; })));
  EXPECT_TRUE(refused(with([](SkinnyProblem& p) { p.n = 1024; }))) << "few tiles do not keep the SMs busy";
  EXPECT_TRUE(refused(with([](SkinnyProblem& p) { p.ldb = 1028; })));
  EXPECT_TRUE(refused(with([](SkinnyProblem& p) { p.type = Element::f32; })));
}

/// Each product's rows are the result of the one before it, and all but the first may load their weights
/// early.
TEST_F(Skinny, AwaitsItsRowsInAChain) {
  constexpr int size = 4608, links = 6, m = 16;
  Random random(3);
  const Stream stream;
  std::vector<RandomMatrix> weights;
  std::vector<DeviceMemory> rows;
  // A permutation of columns is a product whose result is known.
  std::vector<std::vector<int>> sources;
  for (int i = 0; i < links; ++i) {
    RandomMatrix& matrix = weights.emplace_back(random, Element::bf16, size, size, true);
    std::fill(matrix.image.begin(), matrix.image.end(), '\0');
    std::vector<int>& source = sources.emplace_back(size);
    for (int col = 0; col < size; ++col) source[static_cast<std::size_t>(col)] = col;
    std::shuffle(source.begin(), source.end(), random);
    for (int col = 0; col < size; ++col)
      store_element(DType::bf16, matrix.image.data(),
                    static_cast<std::size_t>(col) * static_cast<std::size_t>(matrix.pitch()) +
                        static_cast<std::size_t>(source[static_cast<std::size_t>(col)]),
                    1.0f);
  }
  std::vector<std::uint16_t> first(static_cast<std::size_t>(m) * size);
  for (auto& one : first)
    one = static_cast<std::uint16_t>(0x3f80 + draw(random, 0, 100));  // finite bf16 numbers
  rows.push_back(upload(first));
  for (int i = 0; i < links; ++i) rows.emplace_back(first.size() * 2).fill(0xff);
  std::vector<SkinnyLaunch> launches;
  for (int i = 0; i < links; ++i) {
    RandomMatrix& matrix = weights[static_cast<std::size_t>(i)];
    const SkinnyProblem problem{Element::bf16, m, size, size, size, matrix.pitch(), size, true};
    launches.push_back(found(problem));
    check(set_skinny_operands(problem,
                              {rows[static_cast<std::size_t>(i)].get(), matrix.to_device(),
                               rows[static_cast<std::size_t>(i) + 1].get()},
                              launches.back().params),
          "set the operands");
  }
  for (SkinnyLaunch& launch : launches)
    check(launch_skinny(launch, &launch != launches.data(), stream.get()), "launch");
  stream.synchronize();
  const auto last = download<std::uint16_t>(rows.back());
  for (int row = 0; row < m; ++row)
    for (int col = 0; col < size; ++col) {
      int at = col;
      for (int i = links - 1; i >= 0; --i)
        at = sources[static_cast<std::size_t>(i)][static_cast<std::size_t>(at)];
      const auto begin = static_cast<std::size_t>(row) * size;
      ASSERT_EQ(last[begin + static_cast<std::size_t>(col)], first[begin + static_cast<std::size_t>(at)])
          << row << ", " << col;
    }
}

TEST_F(Skinny, WhatCallsInFlightWriteIsKnown) {
  const DeviceMemory memory(4096);
  char* const at = memory.get<char>();
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const auto written = [&](int on) { return is_written(on, at + 1024, 1); };
  Outputs outputs, others;
  outputs.add(at + 1024, 1024);
  others.add(at + 3000, 1);
  {
    Written queue(2), other_queue(2);
    queue.note(outputs);
    EXPECT_TRUE(written(device));
    EXPECT_FALSE(written(device + 1));
    for (int i = 0; i < 1000; ++i) {
      other_queue.note(others);
      queue.note_captured(others);
    }
    EXPECT_TRUE(written(device)) << "only calls of its own queue show that it has ended";
    queue.note(others);
    EXPECT_TRUE(written(device));
    queue.note(others);
    EXPECT_FALSE(written(device));
    queue.note_captured(outputs);
    EXPECT_TRUE(written(device));
  }
  EXPECT_FALSE(written(device)) << "a queue ends after its calls";
}

}  // namespace
}  // namespace shingle::cuda::test

#else
TEST(Skinny, NeedsCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
