// Products whose rows are counted at run time, around the limits of the lists that deal their tiles.
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <algorithm>
#include <functional>
#include <random>
#include <string>

#include "gemm_family.hpp"
#include "grid/split.hpp"
#include "shingle/base/dtype.hpp"

namespace shingle::cuda::test {
namespace {

/// Row r of A has r mod 251 in its first column and zeros behind it. B is the transpose of a row of ones. So
/// row r of the product has r mod 251 in all columns, which is exact in bf16 and f16.
class CountedProduct {
 public:
  static constexpr std::int64_t cols = 8, k = 8;

  /// `live`: rows of a cluster that have a token, of at most cluster_rows().
  CountedProduct(const GemmInstance& instance, std::int64_t clusters, std::int32_t ctas,
                 const std::function<std::int64_t(std::int64_t)>& live)
      : instance_(instance), stored_(instance.type == Element::bf16 ? DType::bf16 : DType::f16) {
    std::vector<std::int32_t> counts;
    for (std::int64_t c = 0; c < clusters; ++c) {
      live_.push_back(live(c));
      counts.push_back(static_cast<std::int32_t>(live_.back() + before));
    }
    counts_ = upload(counts);
    std::vector<LiveRows> rows;
    for (std::int64_t c = 0; c < clusters; ++c) rows.push_back({counts_.get<std::int32_t>() + c, before});
    rows_ = upload(rows);
    const std::int64_t positions = clusters * instance.tile.cluster;
    notified_ = upload(std::vector<std::uint32_t>(static_cast<std::size_t>(positions)));
    std::vector<std::uint32_t*> notifies;
    std::vector<TileAt> tiles;
    for (std::int64_t p = 0; p < positions; ++p) {
      notifies.push_back(notified_.get<std::uint32_t>() + p);
      tiles.push_back({static_cast<std::int32_t>(p), 0});
    }
    notifies_ = upload(notifies);
    a_ =
        upload(values(a_rows(), [](std::int64_t row, std::int64_t col) { return col == 0 ? row % 251 : 0; }));
    b_ = upload(values(k, [](std::int64_t, std::int64_t) { return 1; }));
    out_ = DeviceMemory(static_cast<std::size_t>(a_rows() * cols) * 2);
    out_.fill(0xff);
    args_.type = args_.out_type = instance.type;
    args_.tile = instance.tile;
    args_.rows = args_.a_rows = a_rows();
    args_.cols = cols, args_.k = k;
    args_.a = a_.get(), args_.lda = k;
    args_.b = b_.get(), args_.ldb = k;
    args_.transpose_b = true;
    args_.part_rows = instance.tile.rows;
    args_.out = {.base = out_.get<char>(), .row_bytes = cols * 2};
    args_.notify = {notifies_.get<std::uint32_t*>(), 1, false};
    args_.watch = watched_.watch();
    args_.live = rows_.get<LiveRows>();
    works_ = upload(deal(instance, args_, tiles, ctas, {}));
    args_.works = works_.get<GemmWork>();
  }

  const CountedGemmArgs& args() const { return args_; }

  void expect_done() const {
    const std::vector<std::uint32_t> notified = download<std::uint32_t>(notified_);
    for (std::size_t p = 0; p < notified.size(); ++p) ASSERT_EQ(notified[p], 1u) << "position " << p;
    const std::vector<char> out = download<char>(out_);
    for (std::int64_t row = 0; row < a_rows(); ++row) {
      const bool stored = row % cluster_rows() < live_[static_cast<std::size_t>(row / cluster_rows())];
      for (std::int64_t at = row * cols; at < (row + 1) * cols; ++at) {
        if (stored)
          ASSERT_EQ(load_element(stored_, out.data(), static_cast<std::size_t>(at)), row % 251)
              << "row " << row;
        else
          ASSERT_EQ(out[static_cast<std::size_t>(at * 2)], '\xff') << "row " << row << " has no token";
      }
    }
  }

 private:
  static constexpr std::int32_t before = 3;  // LiveRows::before

  std::int64_t cluster_rows() const { return std::int64_t{instance_.tile.rows} * instance_.tile.cluster; }
  std::int64_t a_rows() const { return std::ssize(live_) * cluster_rows(); }
  std::vector<char> values(std::int64_t rows,
                           const std::function<std::int64_t(std::int64_t, std::int64_t)>& at) const {
    std::vector<char> image(static_cast<std::size_t>(rows * k) * 2);
    for (std::int64_t i = 0; i < rows * k; ++i)
      store_element(stored_, image.data(), static_cast<std::size_t>(i), static_cast<float>(at(i / k, i % k)));
    return image;
  }

  const GemmInstance& instance_;
  DType stored_;
  std::vector<std::int64_t> live_;
  Watched watched_;
  DeviceMemory counts_, rows_, notified_, notifies_, a_, b_, out_, works_;
  CountedGemmArgs args_;
};

class CountedGemmTest : public GemmFamilyTest {
 protected:
  static constexpr std::int32_t hands = 2, list = 512;  // DealtTiles::most

  /// Products of the first kernel of each tile shape, on `hands` clusters of CTAs.
  static void expect_each(std::int64_t clusters,
                          const std::function<std::int64_t(std::int64_t cluster, std::int64_t rows)>& live) {
    std::vector<std::string> seen;
    for (const GemmInstance& instance : gemm_instances(GetParam(), GemmKind::counted)) {
      const GemmTile& tile = instance.tile;
      std::string shape = std::to_string(tile.rows) + "x" + std::to_string(tile.cols) + ", cluster " +
                          std::to_string(tile.cluster);
      if (instance.transpose_a || !instance.transpose_b || std::ranges::count(seen, shape) > 0) continue;
      SCOPED_TRACE(shape);
      seen.push_back(std::move(shape));
      const std::int64_t rows = std::int64_t{tile.rows} * tile.cluster;
      expect(instance, clusters, hands * tile.cluster, [&](std::int64_t c) { return live(c, rows); });
      if (HasFatalFailure()) return;
    }
    EXPECT_FALSE(seen.empty());
  }

  static void expect(const GemmInstance& instance, std::int64_t clusters, std::int32_t ctas,
                     const std::function<std::int64_t(std::int64_t)>& live) {
    const CountedProduct product(instance, clusters, ctas, live);
    const Stream stream;
    launch(instance, product.args(), stream);
    stream.synchronize();
    product.expect_done();
  }
};
INSTANTIATE_TEST_SUITE_P(Families, CountedGemmTest, testing::ValuesIn(gemm_families),
                         GemmFamilyTest::name_of);

TEST_P(CountedGemmTest, WithoutAnyRowOnlyNotifies) {
  for (const std::int64_t clusters : {1, 5, 77}) expect_each(clusters, [](auto, auto) { return 0; });
}

TEST_P(CountedGemmTest, RowsOfAnyClusters) {
  std::mt19937 random(1);
  const auto some = [&](std::int64_t, std::int64_t rows) {
    const auto drawn = static_cast<std::int64_t>(random());
    return drawn % 3 > 0 ? 0 : drawn / 3 % (rows + 1);
  };
  for (const std::int64_t clusters : {1, 3, 64, 500}) expect_each(clusters, some);
}

/// One cluster more than lists hold makes the kernel go without lists.
TEST_P(CountedGemmTest, AsManyClustersAsListsHold) {
  for (const std::int64_t more : {-1, 0, 1})
    expect_each(hands * list + more, [](auto, std::int64_t rows) { return rows; });
}

/// Numbers of clusters in a list have 16 bits.
TEST_P(CountedGemmTest, AsManyClustersAsAListCanName) {
  int sms = 0;
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  constexpr std::int64_t most = 1 << 16;
  if (most > std::int64_t{list} * sms) GTEST_SKIP() << "lists of " << sms << " SMs hold fewer clusters";
  const std::vector<GemmInstance>& instances = gemm_instances(GetParam(), GemmKind::counted);
  const auto instance = std::ranges::find_if(instances, [](const GemmInstance& one) {
    return one.tile.cluster == 1 && !one.transpose_a && one.transpose_b;
  });
  ASSERT_NE(instance, instances.end());
  for (const std::int64_t clusters : {most, most + 1})
    expect(*instance, clusters, sms, [&](std::int64_t c) { return c < clusters - 3 ? c % 2 : 5; });
}

}  // namespace
}  // namespace shingle::cuda::test

#else
TEST(CountedGemm, NeedsCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
