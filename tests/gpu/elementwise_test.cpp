// The elementwise kernels with random hooks, compared with a plain computation.
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cuda/kernels/sync.hpp"
#include "random_pass.hpp"

namespace shingle::cuda::test {
namespace {

class ElementwiseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_here()) GTEST_SKIP() << "no GPU here: /dev/nvidia0 does not exist";
    check(preload_elementwise(), "preload_elementwise");
    check(preload_sync(), "preload_sync");
  }

  static void expect(unsigned seed, const PassShape& shape) {
    RandomPass pass(seed, shape);
    const Stream stream;
    check(launch_elementwise(pass.args(), stream.get()), "launch_elementwise");
    stream.synchronize();
    pass.expect_done();
  }
};

constexpr Element every_type[] = {Element::f32, Element::bf16, Element::f16};

TEST_F(ElementwiseTest, ReordersSlots) {
  for (const Element type : every_type) {
    PassShape shape{.rows = 333, .cols = 1000, .tile_rows = 64, .tile_cols = 128, .integers = false};
    shape.type = shape.source_type = type;
    shape.from.piece_rows = shape.tile_rows;
    expect(1, shape);
  }
}

TEST_F(ElementwiseTest, ReordersSubtilesToSeveralDestinationsWithHoles) {
  PassShape shape{.rows = 300, .cols = 520, .tile_rows = 64, .tile_cols = 128};
  shape.from = {.layout = Layout::by_tile, .piece_rows = 16, .holes_percent = 20};
  shape.to = {.layout = Layout::by_row, .piece_rows = 1, .dests = 3, .holes_percent = 30};
  expect(2, shape);
}

/// Rows of 1 KiB and more, which bulk copies move: of a slot, of several slots, and with a last part. With
/// few CTAs the slots turn many times; small tiles use the copy warps in turn. With an odd address all rows
/// go through registers.
TEST_F(ElementwiseTest, ReordersLongRows) {
  struct Cut {
    int tile_rows, ctas;
  };
  for (const Element type : every_type)
    for (const int cols : {512, 2048, 7176})
      for (const int tile_cols : {1024, cols})
        for (const Cut cut : {Cut{64, 0}, Cut{64, 2}, Cut{3, 2}})
          for (const int odd : {0, 1}) {
            PassShape shape{.rows = 333,
                            .cols = cols,
                            .tile_rows = cut.tile_rows,
                            .tile_cols = tile_cols,
                            .integers = false,
                            .ctas = cut.ctas};
            shape.type = shape.source_type = type;
            shape.from = {.layout = Layout::by_tile, .piece_rows = 16, .holes_percent = 10, .odd = odd};
            shape.to = {.layout = Layout::by_row, .piece_rows = 1, .holes_percent = 20};
            expect(22, shape);
            shape.from = {.layout = Layout::matrix};
            shape.to.dests = 3, shape.to.odd = odd;
            expect(23, shape);
          }
}

TEST_F(ElementwiseTest, SumsSourcesInTheirOrder) {
  for (const Element type : every_type)
    for (const Element source : {type, Element::f32})
      for (const int sources : {1, 2, 3, 8, 19}) {
        PassShape shape{
            .rows = 150, .cols = 328, .tile_rows = 32, .tile_cols = 64, .sources = sources, .bias = true};
        shape.type = type;
        shape.source_type = source;
        shape.from = {.layout = Layout::matrix};
        shape.to = {.layout = Layout::by_tile, .piece_rows = 32};
        expect(3, shape);
        shape.integers = false;
        shape.activate = Activate::gelu;
        expect(4, shape);
      }
}

/// Buckets of data parallelism: scaled sums, of narrow sources also in f32. Rows of complete chunks are
/// loaded ahead, others are not.
TEST_F(ElementwiseTest, ScalesAndWidensSums) {
  for (const Element source : every_type)
    for (const Element type : {source, Element::f32})
      for (const int sources : {1, 2, 8, 19})
        for (const int cols : {64, 100})
          for (const float scale : {1.0f, 0.25f}) {
            PassShape shape{
                .rows = 150, .cols = cols, .tile_rows = 40, .tile_cols = cols, .sources = sources};
            shape.type = type;
            shape.source_type = source;
            shape.scale = scale;
            shape.from = {.layout = Layout::matrix};
            shape.to = {.layout = Layout::matrix};
            expect(21, shape);
          }
}

/// Of sources of mixed types the first is f32, and every second or fourth one.
TEST_F(ElementwiseTest, SumsSourcesOfMixedTypes) {
  for (const Element source : {Element::bf16, Element::f16})
    for (const Element type : {source, Element::f32})
      for (const int sources : {2, 3, 5, 19})
        for (const int wide_every : {2, 4}) {
          PassShape shape{.rows = 150, .cols = 328, .tile_rows = 32, .tile_cols = 64, .sources = sources};
          shape.wide_every = wide_every;
          shape.type = type;
          shape.source_type = source;
          shape.bias = sources == 3;
          shape.from = {.layout = sources == 5 ? Layout::by_tile : Layout::matrix, .piece_rows = 8};
          if (sources == 5) shape.from.holes_percent = 20;
          expect(14, shape);
          shape.integers = false;
          expect(15, shape);
          shape.cols = 203, shape.from.odd = shape.to.odd = 1;
          expect(16, shape);
        }
}

TEST_F(ElementwiseTest, WidensSources) {
  for (const Element source : {Element::bf16, Element::f16})
    for (const int sources : {1, 4, 9}) {
      PassShape shape{.rows = 150, .cols = 328, .tile_rows = 32, .tile_cols = 64, .sources = sources};
      shape.type = Element::f32;
      shape.source_type = source;
      shape.integers = false;
      expect(17, shape);
    }
}

/// As plans add to running sums.
TEST_F(ElementwiseTest, AddsToAWideSourceInPlace) {
  PassShape shape{.rows = 150, .cols = 328, .tile_rows = 32, .tile_cols = 64, .sources = 4};
  shape.wide_every = 4;
  shape.type = Element::f32;
  shape.from.layout = Layout::matrix;
  RandomPass pass(18, shape);
  ElementwiseArgs args = pass.args();
  const Placed& sums = pass.source(0);
  args.to = {};
  args.to.base = sums.memory.get<char>();
  args.to.row_bytes = (sums.at(0, 0, 1) - sums.at(0, 0, 0)) * std::int64_t{sizeof(float)};
  const Stream stream;
  check(launch_elementwise(args, stream.get()), "launch_elementwise");
  stream.synchronize();
  const std::vector<float> added = download<float>(sums.memory);
  for (int row = 0; row < shape.rows; ++row)
    for (int col = 0; col < shape.cols; ++col) {
      float wanted = 0;
      const auto at = [&](int s) {
        return static_cast<std::size_t>(pass.source(s).at(row / shape.tile_rows, 0, row % shape.tile_rows) +
                                        col);
      };
      for (int s = 0; s < shape.sources; ++s)
        wanted += load_element(dtype(shape.type_of(s)), pass.source(s).image.data(), at(s));
      ASSERT_EQ(added[at(0)], wanted) << "row " << row << ", column " << col;
    }
}

TEST_F(ElementwiseTest, ActivatesTiles) {
  for (const Activate activate : {Activate::relu, Activate::gelu, Activate::silu}) {
    PassShape shape{.sources = 2, .activate = activate, .bias = true, .integers = false};
    expect(5, shape);
  }
}

/// Every bf16 number: within 2^-17 of the exact value where |x| < 40, as activation.cuh says, and not far
/// from it elsewhere.
TEST_F(ElementwiseTest, SiluOfEveryNumber) {
  constexpr int side = 256;
  std::vector<std::uint16_t> numbers(side * side);
  std::iota(numbers.begin(), numbers.end(), std::uint16_t{0});
  const DeviceMemory from = upload(numbers);
  DeviceMemory to(numbers.size() * sizeof(float));
  const Watched watched;
  const DeviceMemory order = upload(std::vector<TileAt>{{0, 0}}),
                     sources = upload(std::vector<Route>{{.base = from.get<char>(), .row_bytes = side * 2}});
  ElementwiseArgs args;
  args.source_type = Element::bf16, args.type = Element::f32;
  args.rows = args.cols = args.tile_rows = args.tile_cols = side;
  args.tiles_n = 1, args.last = 1;
  args.order = order.get<TileAt>();
  args.sources = sources.get<Route>();
  args.to = {.base = to.get<char>(), .row_bytes = side * sizeof(float)};
  args.activate = Activate::silu;
  args.watch = watched.watch();
  const Stream stream;
  check(launch_elementwise(args, stream.get()), "launch_elementwise");
  stream.synchronize();
  const std::vector<float> found = download<float>(to);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double x = load_element(DType::bf16, numbers.data(), i), exact = x / (1 + std::exp(-x));
    if (std::isnan(x) || x == -INFINITY) continue;
    const double bound = std::abs(x) < 40 ? 0x1p-17 * std::abs(exact) : 1e-15 + 1e-6 * std::abs(exact);
    if (x == INFINITY)
      ASSERT_EQ(found[i], INFINITY);
    else
      ASSERT_LE(std::abs(found[i] - exact), bound) << "silu(" << x << ") is " << found[i];
  }
}

TEST_F(ElementwiseTest, AnyAlignment) {
  for (const Element type : every_type)
    for (const int cols : {1, 7, 65, 203})
      for (const int tile_cols : {5, 64, 300}) {
        PassShape shape{.rows = 37, .cols = cols, .tile_rows = 10, .tile_cols = tile_cols, .sources = 2};
        shape.type = shape.source_type = type;
        shape.from = {.layout = Layout::by_tile, .piece_rows = 3, .odd = 1};
        shape.to = {.layout = Layout::by_row, .piece_rows = 4, .odd = 1};
        expect(6, shape);
        shape.sources = 1;
        expect(7, shape);
        shape.norm = true;
        expect(8, shape);
      }
}

TEST_F(ElementwiseTest, NormalisesRows) {
  for (const Element type : every_type)
    for (const int cols : {64, 1000, 4096, 5120, 8192, 16384, 20000})
      for (const bool residual : {false, true}) {
        PassShape shape{.rows = 150, .cols = cols, .tile_rows = 64, .tile_cols = 128};
        shape.type = shape.source_type = type;
        shape.from.piece_rows = shape.tile_rows;
        shape.norm = true;
        shape.residual = residual;
        shape.integers = false;
        expect(9, shape);
      }
}

TEST_F(ElementwiseTest, NormalisesSumsOfWideSourcesScatteredByRow) {
  for (const Element type : {Element::bf16, Element::f16})
    for (const Activate activate : {Activate::silu, Activate::none})
      for (const int ctas : {0, 1, 3}) {
        PassShape shape{.rows = 200, .cols = 2056, .tile_rows = 64, .tile_cols = 256, .sources = 3};
        shape.type = type;
        shape.source_type = Element::f32;
        shape.activate = activate;
        shape.bias = shape.norm = shape.residual = true;
        shape.integers = false;
        shape.from = {.layout = Layout::by_tile, .piece_rows = 1, .holes_percent = 10};
        shape.to = {.layout = Layout::by_row, .piece_rows = 1, .dests = 2, .holes_percent = 40};
        shape.ctas = ctas;
        expect(10, shape);
      }
}

/// Few CTAs, so that the rings of shared memory turn many times; of the widest rows they hold less than one.
TEST_F(ElementwiseTest, NormalisesManyRowsInFewCtas) {
  for (const int cols : {256, 2048, 5120, 8192, 16384})
    for (const int sources : {1, 2, 3})
      for (const bool wide : {false, true}) {
        PassShape shape{.rows = 150, .cols = cols, .tile_rows = 64, .tile_cols = 128, .sources = sources};
        shape.source_type = wide ? Element::f32 : shape.type;
        shape.from.piece_rows = shape.tile_rows;
        shape.norm = shape.residual = true;
        shape.integers = false;
        shape.ctas = 2;
        expect(13, shape);
        shape.from = {};
        shape.to = {.layout = Layout::by_row, .piece_rows = 1, .dests = 2, .holes_percent = 10};
        expect(14, shape);
      }
}

TEST_F(ElementwiseTest, GatesRows) {
  for (const Element type : every_type)
    for (const int cols : {128, 2000, 11008, 28672})
      for (const bool norm : {false, true}) {
        PassShape shape{.rows = 70, .cols = cols, .tile_rows = 32, .tile_cols = 192};
        shape.type = shape.source_type = type;
        shape.activate = Activate::swiglu;
        shape.bias = true;
        shape.norm = shape.residual = norm;
        shape.integers = false;
        expect(11, shape);
        shape.ctas = 1;
        expect(11, shape);
      }
}

TEST_F(ElementwiseTest, RefusesWhatItCannotDo) {
  PassShape shape;
  shape.source_type = Element::f16;
  RandomPass pass(12, shape);
  EXPECT_EQ(launch_elementwise(pass.args(), nullptr), cudaErrorInvalidValue);
  PassShape normed{.norm = true};
  normed.wide_every = 2, normed.sources = 2;
  RandomPass mixed(12, normed);
  EXPECT_EQ(launch_elementwise(mixed.args(), nullptr), cudaErrorInvalidValue) << "row-wise, of mixed types";
  ElementwiseArgs nothing = pass.args();
  nothing.last = nothing.first;
  EXPECT_EQ(launch_elementwise(nothing, nullptr), cudaSuccess);
}

/// A reorder whose tiles await and notify counters, over several epochs.
class HooksTest : public ElementwiseTest {
 protected:
  static constexpr int groups = 5;
  static constexpr int epochs = 4;

  void SetUp() override {
    ElementwiseTest::SetUp();
    if (IsSkipped()) return;
    pass_ = std::make_unique<RandomPass>(13, shape_);
    args_ = pass_->args();
    watched_ = std::make_unique<Watched>();
    counters_ = upload(std::vector<std::uint32_t>(3 * groups));  // ready, done, ticket
    const int positions = static_cast<int>(pass_->grid().order.size());
    std::vector<Target> targets;
    std::vector<std::uint32_t*> notifies;
    tiles_.resize(groups);
    for (int p = 0; p < positions; ++p) {
      const int group = p * groups / positions;
      targets.push_back({counters_.get<std::uint32_t>() + group, 1, 1});
      targets.push_back({});
      notifies.push_back(nullptr);
      notifies.push_back(counters_.get<std::uint32_t>() + groups + group);
      if (pass_->grid().order[static_cast<std::size_t>(p)].m >= 0) ++tiles_[static_cast<std::size_t>(group)];
    }
    targets_ = upload(targets), notifies_ = upload(notifies);
    args_.gate = {targets_.get<Target>(), 2};
    args_.notify = {notifies_.get<std::uint32_t*>(), 2, true};
    args_.watch = watched_->watch();
    args_.ctas = 7;
  }

  /// Uploads the input and opens the gates while the kernels wait.
  void feed(const Stream& other) const {
    Placed& source = pass_->source(0);
    check(cudaMemcpyAsync(source.memory.get(), source.image.data(), source.memory.bytes(),
                          cudaMemcpyHostToDevice, other.get()),
          "cudaMemcpyAsync");
    for (int g = groups - 1; g >= 0; --g) {
      const SyncOp add{SyncKind::add, counters_.get<std::uint32_t>() + g, 1, 0, true};
      check(launch_sync(&add, 1, watched_->watch(), other.get()), "launch_sync");
    }
  }

  void expect_counts(std::uint32_t epoch) const {
    const auto counts = download<std::uint32_t>(counters_);
    for (int g = 0; g < groups; ++g) EXPECT_EQ(counts[groups + g], (epoch + 1) * tiles_[g]) << "group " << g;
  }

  /// Runs epochs in which `kernels` kernels share the tiles.
  void run_epochs(int kernels) {
    std::vector<Stream> streams(static_cast<std::size_t>(kernels));
    const Stream other;
    for (std::uint32_t epoch = 0; epoch < epochs; ++epoch) {
      check(cudaMemset(pass_->source(0).memory.get(), 0x55, pass_->source(0).memory.bytes()), "cudaMemset");
      pass_->poison_output();
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      check(launch_begin(watched_->epoch(), other.get()), "launch_begin");
      other.synchronize();
      for (const Stream& stream : streams)
        check(launch_elementwise(args_, stream.get()), "launch_elementwise");
      feed(other);
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      ASSERT_EQ(watched_->shared().abort, 0u) << "a wait passed its deadline";
      pass_->expect_done();
      expect_counts(epoch);
    }
  }

  PassShape shape_{.rows = 700, .cols = 1500, .tile_rows = 64, .tile_cols = 128, .phantoms = 9};
  std::unique_ptr<RandomPass> pass_;
  ElementwiseArgs args_;
  std::unique_ptr<Watched> watched_;
  DeviceMemory counters_, targets_, notifies_;
  std::vector<std::uint32_t> tiles_;
};

TEST_F(HooksTest, TilesAwaitTheirGatesAndAreCounted) {
  run_epochs(1);
}

/// Bulk copies move the rows.
class LongRowHooksTest : public HooksTest {
 protected:
  LongRowHooksTest() { shape_.cols = 2048, shape_.tile_cols = 1024; }
};

TEST_F(LongRowHooksTest, TilesAwaitTheirGatesAndAreCounted) {
  run_epochs(1);
}
/// Without notifies, a tile may be stored after the next tile's loads have started.
TEST_F(LongRowHooksTest, TilesAwaitTheirGatesAndAreNotCounted) {
  args_.notify = {};
  std::ranges::fill(tiles_, 0);
  run_epochs(1);
}

TEST_F(HooksTest, KernelsShareAQueue) {
  args_.queue = counters_.get<std::uint32_t>() + 2 * groups;
  run_epochs(3);
  EXPECT_EQ(download<std::uint32_t>(counters_)[2 * groups],
            static_cast<std::uint32_t>(epochs * pass_->grid().order.size()));
}

TEST_F(HooksTest, WaitsEndAtTheDeadline) {
  watched_->shared().timeout_ns = 50'000'000;
  const Stream stream;
  check(launch_begin(watched_->epoch(), stream.get()), "launch_begin");
  check(launch_elementwise(args_, stream.get()), "launch_elementwise");
  stream.synchronize();
  const Watched::Shared& left = watched_->shared();
  EXPECT_EQ(left.abort, 1u);
  EXPECT_EQ(left.stall.seen, 0u);
  EXPECT_EQ(left.stall.wanted, 1u);
  EXPECT_GE(left.stall.counter, counters_.get<std::uint32_t>());
  EXPECT_LT(left.stall.counter, counters_.get<std::uint32_t>() + groups);
}

}  // namespace
}  // namespace shingle::cuda::test

#else
TEST(Elementwise, NeedsCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
