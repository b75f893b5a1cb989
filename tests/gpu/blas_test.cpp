// cuBLASLt products, compared with a plain computation.
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <random>

#include "cuda/commands/blas.hpp"
#include "device.hpp"

namespace shingle::cuda::test {
namespace {

class BlasTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_here()) GTEST_SKIP() << "no GPU here: /dev/nvidia0 does not exist";
  }
};

struct Matrix {
  std::vector<char> bytes;
  DType type;

  Matrix(DType of, std::int64_t count) : bytes(static_cast<std::size_t>(count) * size_bytes(of)), type(of) {}
  void fill(std::mt19937& random) {
    std::uniform_int_distribution<int> digit(-3, 3);
    for (std::size_t i = 0; i < bytes.size() / size_bytes(type); ++i)
      store_element(type, bytes.data(), i, static_cast<float>(digit(random)));
  }
  float at(std::int64_t i) const { return load_element(type, bytes.data(), static_cast<std::size_t>(i)); }
};

/// Small integers, so that every sum is exact.
void expect_product(LibraryProblem p) {
  std::mt19937 random(1);
  p.lda = (p.transpose_a ? p.m : p.k) + 8, p.ldb = (p.transpose_b ? p.k : p.n) + 8, p.ldc = p.n + 8;
  Matrix a(p.type, (p.transpose_a ? p.k : p.m) * p.lda), b(p.type, (p.transpose_b ? p.n : p.k) * p.ldb);
  Matrix bias(p.type, p.n), c(p.out_type, p.m * p.ldc);
  for (Matrix* matrix : {&a, &b, &bias}) matrix->fill(random);
  const DeviceMemory at_a = upload(a.bytes), at_b = upload(b.bytes), at_c = upload(c.bytes);
  const DeviceMemory at_bias = upload(bias.bytes);

  const BlasHandle handle;
  const Stream stream;
  const LibraryOperands operands{at_a.get(), at_b.get(), p.bias ? at_bias.get() : nullptr, at_c.get()};
  LibraryGemm product(handle, p);
  EXPECT_GE(product.candidates(), 1u);
  EXPECT_GT(product.tune(stream.get(), operands), 0);
  check(cudaMemset(at_c.get(), 0xff, at_c.bytes()), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const DeviceMemory workspace(product.workspace_bytes());
  product.run(stream.get(), operands, workspace.get());
  stream.synchronize();
  c.bytes = download<char>(at_c);
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      float sum = p.bias ? bias.at(j) : 0;
      for (std::int64_t k = 0; k < p.k; ++k)
        sum += a.at(p.transpose_a ? k * p.lda + i : i * p.lda + k) *
               b.at(p.transpose_b ? j * p.ldb + k : k * p.ldb + j);
      ASSERT_EQ(c.at(i * p.ldc + j), p.relu ? std::max(sum, 0.0f) : sum) << i << ", " << j;
    }
}

TEST_F(BlasTest, EveryLayoutAndType) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const DType out : {type, DType::f32})
      for (const bool transpose_a : {false, true})
        for (const bool transpose_b : {false, true})
          expect_product({.type = type,
                          .out_type = out,
                          .m = 40,
                          .n = 72,
                          .k = 16,
                          .transpose_a = transpose_a,
                          .transpose_b = transpose_b});
}

TEST_F(BlasTest, BiasReluAndFewSms) {
  for (const bool relu : {false, true}) {
    LibraryProblem problem{.m = 40, .n = 72, .k = 16, .bias = true, .relu = relu};
    problem.sms = 16;
    expect_product(problem);
    problem.bias = false;
    expect_product(problem);
  }
}

TEST_F(BlasTest, NothingToMultiply) {
  const BlasHandle handle;
  LibraryGemm product(handle, {.m = 0, .n = 8, .k = 8, .lda = 8, .ldb = 8, .ldc = 8});
  EXPECT_EQ(product.tune(nullptr, {}), 0);
  product.run(nullptr, {}, nullptr);
}

}  // namespace
}  // namespace shingle::cuda::test

#else
TEST(Blas, NeedsCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
