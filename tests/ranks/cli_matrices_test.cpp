// shingle run on the user's own matrices: whatever the operator splits, the result is A·B.
#include <limits>

#include "cli_program.hpp"

#include "check/npy.hpp"

namespace shingle::cli_matrices_test {
namespace {

/// M×K times K×N of small integers, as files.
struct Product {
  std::int64_t m, n, k;
  float a(std::int64_t i, std::int64_t j) const { return static_cast<float>((i * 3 + j * 5) % 7 - 3); }
  float b(std::int64_t i, std::int64_t j) const { return static_cast<float>((i * 2 + j * 11) % 5 - 2); }
  float c(std::int64_t i, std::int64_t j) const {
    float sum = 0;
    for (std::int64_t x = 0; x < k; ++x) sum += a(i, x) * b(x, j);
    return sum;
  }
  template <class Element>
  static void save(const std::string& path, DType dtype, std::int64_t rows, std::int64_t cols,
                   Element element) {
    NpyArray array{dtype, rows, cols,
                   std::vector<std::byte>(static_cast<std::size_t>(rows * cols) * size_bytes(dtype))};
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j)
        store_element(dtype, array.data.data(), static_cast<std::size_t>(i * cols + j), element(i, j));
    write_npy(path, array);
  }
};

TEST_F(Cli, MultipliesTheUsersMatrices) {
  const Product whole{37, 29, 23};  // divides among no number of ranks
  Product::save(path("a.npy"), DType::f32, 37, 23, [&](auto i, auto j) { return whole.a(i, j); });
  Product::save(path("b.npy"), DType::f32, 23, 29, [&](auto i, auto j) { return whole.b(i, j); });
  Product::save(path("bt.npy"), DType::f32, 29, 23, [&](auto i, auto j) { return whole.b(j, i); });
  const std::string files = "--a " + path("a.npy") + " --out " + path("y.npy") + " ";
  const auto expect_product = [&](const std::string& flags) {
    std::filesystem::remove(path("y.npy"));
    EXPECT_EQ(rows(files + flags)[0].at("verified"), true) << flags;
    const NpyArray y = read_npy(path("y.npy"));
    ASSERT_EQ(y.rows, 37) << flags;
    ASSERT_EQ(y.cols, 29) << flags;
    for (std::int64_t i = 0; i < 37; ++i)
      for (std::int64_t j = 0; j < 29; ++j)
        ASSERT_EQ(load_element(y.dtype, y.data.data(), static_cast<std::size_t>(i * 29 + j)), whole.c(i, j))
            << flags << i << "," << j;
  };
  for (const std::string op :
       {"gemm", "gemm+allreduce", "gemm+reducescatter", "allgather+gemm", "gemm+alltoall"}) {
    expect_product("--world 4 --b " + path("b.npy") + " --op " + op);
    expect_product("--world 3 --transpose-b --b " + path("bt.npy") + " --op " + op);
  }
  expect_refused("run --op gemm " + files + "--b " + path("bt.npy"), "cannot be multiplied");
  expect_refused("run --op gemm " + files, "--b");
  expect_refused("run --op gemm --m 8 " + files + "--b " + path("b.npy"), "--m");
  expect_refused("run --op gemm --epilogue bias " + files + "--b " + path("b.npy"), "bias");
}

TEST_F(Cli, MultipliesTheUsersMatricesInBf16) {
  Product::save(path("a.npy"), DType::bf16, 16, 8, [](auto i, auto j) { return static_cast<float>(i == j); });
  Product::save(path("b.npy"), DType::bf16, 8, 12,
                [](auto i, auto j) { return static_cast<float>(i + 8 * j); });
  EXPECT_EQ(rows("--op gemm+allreduce --world 2 --epilogue relu --a " + path("a.npy") + " --b " +
                 path("b.npy") + " --out " + path("y.npy"))[0]
                .at("dtype"),
            "bf16");
  const NpyArray y = read_npy(path("y.npy"));
  EXPECT_EQ(y.dtype, DType::bf16);
  EXPECT_EQ(load_element(y.dtype, y.data.data(), 5 * 12 + 3), 29.0f);
}

TEST_F(Cli, NamesElementsThatAreNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const auto save = [&](const char* name, std::int64_t rows, std::int64_t cols, float value, std::int64_t row,
                        std::int64_t col) {
    Product::save(path(name), DType::f32, rows, cols,
                  [&](auto i, auto j) { return i == row && j == col ? value : 1.0f; });
  };
  const auto multiply = [&](const std::string& op) {
    return "run --world 2 --op " + op + " --a " + path("a.npy") + " --b " + path("b.npy") + " ";
  };
  save("a.npy", 6, 8, nan, 3, 5);
  save("b.npy", 8, 4, 1, 0, 0);
  // Its place in the file, and the rank whose part it is: of the inner dimension, of the rows, or all.
  const std::string a = "a.npy: row 3, column 5 of A is nan (of ";
  expect_refused(multiply("gemm+allreduce"), a + "rank 1); results can be checked for finite matrices only");
  expect_refused(multiply("allgather+gemm"), a + "rank 1)");
  expect_refused(multiply("gemm+alltoall"), a + "rank 1)");
  expect_refused(multiply("gemm"), a + "all ranks)");
  save("a.npy", 6, 8, 1, 0, 0);
  save("b.npy", 8, 4, -inf, 2, 1);
  expect_refused(multiply("gemm+reducescatter"), "b.npy: row 2, column 1 of B is -inf (of rank 0)");
  expect_refused(multiply("allgather+gemm"), "row 2, column 1 of B is -inf (of rank 0)");
  Product::save(path("b.npy"), DType::f32, 8, 4, [&](auto, auto j) { return j == 3 ? nan : 1.0f; });
  expect_refused(multiply("allgather+gemm"),
                 "row 0, column 3 of B is nan (of rank 1), and 7 more elements are not finite");
}

TEST_F(Cli, MatricesOfTwoTypesAreNamed) {
  Product::save(path("a.npy"), DType::f16, 4, 4, [](auto, auto) { return 1.0f; });
  Product::save(path("b.npy"), DType::f32, 4, 4, [](auto, auto) { return 1.0f; });
  expect_refused("run --op gemm --a " + path("a.npy") + " --b " + path("b.npy"),
                 "a.npy holds f16, but " + path("b.npy") + " holds f32: both need one element type");
}

TEST_F(Cli, SavesTheUsersResultUnderMpirun) {
  const Product whole{20, 12, 9};
  Product::save(path("a.npy"), DType::f32, 20, 9, [&](auto i, auto j) { return whole.a(i, j); });
  Product::save(path("b.npy"), DType::f32, 9, 12, [&](auto i, auto j) { return whole.b(i, j); });
  const Outcome outcome = mpirun(2, "run --repeat 1 --op gemm+reducescatter --a " + path("a.npy") + " --b " +
                                        path("b.npy") + " --out " + path("y.npy"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const NpyArray y = read_npy(path("y.npy"));
  for (std::int64_t i = 0; i < 20; ++i)
    EXPECT_EQ(load_element(y.dtype, y.data.data(), static_cast<std::size_t>(i * 12 + 7)), whole.c(i, 7));
}

}  // namespace
}  // namespace shingle::cli_matrices_test
