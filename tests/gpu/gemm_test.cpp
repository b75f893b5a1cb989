// The instrumented GEMM with random hooks, compared with a plain computation. Covers every kernel of every
// family that this GPU can run.
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <functional>

#include "gemm_family.hpp"
#include "lower/launch_rules.hpp"
#include "random_gemm.hpp"

namespace shingle::cuda::test {
namespace {

class GemmTest : public GemmFamilyTest {
 protected:
  /// Tests one problem for each kernel of the family; `shape` draws it.
  void expect_each(const std::function<ProductShape(Random&, const GemmInstance&)>& shape,
                   GemmKind kind = GemmKind::plain) const {
    Random random(1);
    unsigned seed = 0;
    for (const GemmInstance& instance : gemm_instances(GetParam(), kind)) {
      RandomGemm product(++seed, instance, shape(random, instance));
      const Stream stream;
      launch(instance, product.args(), stream);
      stream.synchronize();
      product.expect_done();
      if (HasFatalFailure()) return;
    }
  }

  /// Draws sizes with ragged edges: less than a tile, whole tiles, a little more.
  static ProductShape ragged(Random& random, const GemmInstance& instance) {
    ProductShape shape;
    shape.rows = draw(random, 1, instance.tile.rows * 3);
    shape.cols = 8 * draw(random, 1, instance.tile.cols * 5 / 16);
    shape.k = 8 * draw(random, 1, 60);
    return shape;
  }
};
INSTANTIATE_TEST_SUITE_P(Families, GemmTest, testing::ValuesIn(gemm_families), GemmFamilyTest::name_of);

TEST_P(GemmTest, MultipliesInAllLayouts) {
  for (const bool f32 : {false, true})
    expect_each([&](Random& random, const GemmInstance& instance) {
      ProductShape shape = ragged(random, instance);
      shape.f32 = f32;
      return shape;
    });
}

TEST_P(GemmTest, MultipliesWholeTiles) {
  expect_each([](Random&, const GemmInstance& instance) {
    return ProductShape{.rows = 4 * instance.tile.rows, .cols = 2 * instance.tile.cols, .k = 512};
  });
}

TEST_P(GemmTest, AddsCAndBias) {
  for (const bool bias : {false, true})
    expect_each([&](Random& random, const GemmInstance& instance) {
      ProductShape shape = ragged(random, instance);
      shape.c = true;
      shape.bias = bias;
      shape.activate = draw(random, 0, 1) ? Activate::relu : Activate::none;
      shape.f32 = draw(random, 0, 1) == 1;
      return shape;
    });
}

TEST_P(GemmTest, Activates) {
  for (const Activate activate : {Activate::gelu, Activate::silu, Activate::swiglu})
    expect_each([&](Random& random, const GemmInstance& instance) {
      ProductShape shape = ragged(random, instance);
      // If columns of B are contiguous in memory, halves are loaded in boxes of 64 columns.
      const bool halves = instance.transpose_b || instance.tile.cols % 128 == 0;
      shape.activate = activate == Activate::swiglu && !halves ? Activate::silu : activate;
      shape.integers = false;
      shape.bias = draw(random, 0, 1) == 1;
      shape.c = draw(random, 0, 1) == 1;
      shape.f32 = draw(random, 0, 1) == 1;
      return shape;
    });
}

TEST_P(GemmTest, StoresAlongRoutes) {
  for (const Layout layout : {Layout::by_tile, Layout::by_row})
    for (const int piece_rows : {0, 16, 1})
      expect_each([&](Random& random, const GemmInstance& instance) {
        ProductShape shape = ragged(random, instance);
        const bool whole = piece_rows == 0;
        shape.out = {.layout = layout,
                     .piece_rows = whole ? instance.tile.rows : piece_rows,
                     .dests = whole ? 1 : 3,
                     .alike = true,
                     .holes_percent = whole ? 0 : 25};
        if (draw(random, 0, 2) == 0) shape.activate = Activate::relu;
        shape.f32 = draw(random, 0, 3) == 0;
        return shape;
      });
}

TEST_P(GemmTest, TakesRowsOfAFromManyPlaces) {
  for (const int parts : {1, 2, 3, 8})
    expect_each([&](Random& random, const GemmInstance& instance) {
      ProductShape shape = ragged(random, instance);
      if (instance.transpose_a) return shape;
      shape.parts = parts;
      shape.part_rows = draw(random, 1, instance.tile.rows / parts);
      shape.rows = draw(random, 1, 4 * shape.part_rows);
      shape.rows_anywhere = parts == 1;
      shape.out = {.layout = Layout::by_tile, .piece_rows = 1};
      return shape;
    });
}

/// Split-K of all tiles or of the last ones, in one round or several, also with K too short for all parts.
/// Every launch leaves the `arrived` words at zero.
TEST_P(GemmTest, SumsKInParts) {
  Random random(2);
  unsigned seed = 0;
  for (const int parts : {2, 3, 4, 5, 6, 8})
    for (const GemmInstance& instance : gemm_instances(GetParam())) {
      if (instance.splits == KSplit::none) continue;
      ProductShape shape = ragged(random, instance);
      shape.k = 8 * draw(random, 1, 150);
      shape.k_parts = parts;
      shape.f32 = draw(random, 0, 2) == 0;
      shape.c = draw(random, 0, 2) == 0;
      if (draw(random, 0, 2) == 0) shape.rows = draw(random, 1, instance.tile.rows);
      if (draw(random, 0, 2) == 0) shape.activate = Activate::relu;
      RandomGemm product(++seed, instance, shape);
      const GemmArgs args = product.args();
      const Stream stream;
      for (int run = 0; run < 3; ++run) {
        launch(instance, args, stream);
        stream.synchronize();
        ASSERT_EQ(product.watched().shared().abort, 0u)
            << "a wait passed its deadline: " << product.describe();
        product.expect_done();
        if (HasFatalFailure()) return;
      }
    }
}

/// Own tiles add parts of other ranks before bias and activation; the other tiles are stored as they are.
TEST_P(GemmTest, AddsPartsToOwnTiles) {
  for (const int parts : {1, 2, 7})
    for (const int k_parts : {1, 3})
      expect_each(
          [&](Random& random, const GemmInstance& instance) {
            ProductShape shape = ragged(random, instance);
            shape.summed = parts;
            if (instance.splits != KSplit::none && k_parts > 1)
              shape.k = 8 * draw(random, 1, 150), shape.k_parts = k_parts;
            shape.bias = draw(random, 0, 2) == 0;
            if (draw(random, 0, 2) == 0) shape.activate = Activate::relu;
            const bool apart = draw(random, 0, 1) == 1;
            shape.out = {.layout = apart ? Layout::by_row : Layout{},
                         .piece_rows = 16,
                         .dests = apart ? 3 : 1,
                         .alike = true};
            return shape;
          },
          GemmKind::sums);
}

TEST(GemmInstances, CutKAsTheSimulatorAssumes) {
  for (const GemmInstance& instance : gemm_instances(GemmFamily::sm90)) {
    Gemm step;
    step.grid = make_grid(1024, 1024, instance.tile.rows, instance.tile.cols, {});
    EXPECT_EQ(instance.splits, k_split(step)) << instance.tile.rows << "x" << instance.tile.cols;
  }
}

/// Kernels of sm90 without the code of sums refuse them.
TEST_P(GemmTest, RefusesSumsInOtherKernels) {
  if (GetParam() == GemmFamily::sm80) GTEST_SKIP() << "plain kernels of sm80 serve sums";
  const GemmInstance& instance = gemm_instances(GetParam()).front();
  ProductShape shape;
  shape.summed = 1;
  RandomGemm product(1, instance, shape);
  GemmParams params;
  EXPECT_EQ(instance.prepare(product.args(), &params), cudaErrorInvalidValue);
}

TEST_P(GemmTest, RefusesPiecesOfATransposedA) {
  for (const GemmInstance& instance : gemm_instances(GetParam())) {
    if (!instance.transpose_a) continue;
    RandomGemm product(1, instance, {});
    GemmArgs args = product.args();
    args.a_parts = 2;
    args.part_rows = 16;
    GemmParams params;
    EXPECT_EQ(instance.prepare(args, &params), cudaErrorInvalidValue) << product.describe();
  }
}

/// A product whose tiles await and notify counters.
class HookedProduct {
 public:
  static constexpr int groups = 5;

  explicit HookedProduct(const GemmInstance& instance)
      : instance_(instance),
        product_(13, instance, {.rows = 700, .cols = 520, .k = 136, .phantoms = 4}),
        args_(product_.args()),
        counters_(upload(std::vector<std::uint32_t>(2 * groups))) {  // ready, done
    std::vector<Target> targets;
    std::vector<std::uint32_t*> notifies;
    const std::size_t positions = product_.grid().order.size();
    for (std::size_t p = 0; p < positions; ++p) {
      const std::size_t group = p * groups / positions;
      const bool phantom = product_.phantom(p);
      if (!phantom) ++tiles_[group];
      targets.push_back({});
      targets.push_back(phantom ? Target{} : Target{counter(group), 1, 1});
      notifies.push_back(phantom ? nullptr : counter(groups + group));
      notifies.push_back(nullptr);
    }
    targets_ = upload(targets), notifies_ = upload(notifies);
    args_.gate = {targets_.get<Target>(), 2};
    args_.notify = {notifies_.get<std::uint32_t*>(), 2, true};
  }

  RandomGemm& product() { return product_; }
  const GemmArgs& args() const { return args_; }
  std::uint32_t* counter(std::size_t i) const { return counters_.get<std::uint32_t>() + i; }
  Watched::Shared& shared() const { return product_.watched().shared(); }

  void begin(const Stream& stream) {
    check(cudaMemset(product_.a().memory.get(), 0x55, product_.a().memory.bytes()), "cudaMemset");
    product_.poison_output();
    check(launch_begin(product_.watched().epoch(), stream.get()), "launch_begin");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  /// Uploads A, then opens the gates, the last one first.
  void feed(const Stream& stream) {
    RandomMatrix& a = product_.a();
    check(cudaMemcpyAsync(a.memory.get(), a.image.data(), a.memory.bytes(), cudaMemcpyHostToDevice,
                          stream.get()),
          "cudaMemcpyAsync");
    for (std::size_t g = groups; g-- > 0;) {
      const SyncOp add{SyncKind::add, counter(g), 1, 0, true};
      check(launch_sync(&add, 1, product_.watched().watch(), stream.get()), "launch_sync");
    }
  }
  void expect_done(std::uint32_t epoch) {
    ASSERT_EQ(shared().abort, 0u) << "a wait passed its deadline: " << product_.describe();
    product_.expect_done();
    const auto counts = download<std::uint32_t>(counters_);
    for (std::size_t g = 0; g < groups; ++g)
      EXPECT_EQ(counts[groups + g], (epoch + 1) * tiles_[g]) << "group " << g << ": " << product_.describe();
  }

 private:
  const GemmInstance& instance_;
  RandomGemm product_;
  GemmArgs args_;
  DeviceMemory counters_, targets_, notifies_;
  std::uint32_t tiles_[groups] = {};
};

/// Several epochs. In some the gates are open already, in others they open while the kernel waits.
TEST_P(GemmTest, AwaitsGatesAndCountsTiles) {
  for (const GemmInstance& instance : gemm_instances(GetParam())) {
    HookedProduct hooked(instance);
    const Stream stream, other;
    for (std::uint32_t epoch = 0; epoch < 3; ++epoch) {
      hooked.begin(other);
      if (epoch == 1) hooked.feed(other), other.synchronize();
      launch(instance, hooked.args(), stream);
      if (epoch != 1) hooked.feed(other);
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      hooked.expect_done(epoch);
      if (HasFailure()) return;
    }
  }
}

TEST_P(GemmTest, WaitsEndAtTheDeadline) {
  const GemmInstance& instance = gemm_instances(GetParam()).front();
  HookedProduct hooked(instance);
  hooked.shared().timeout_ns = 50'000'000;
  const Stream stream;
  hooked.begin(stream);
  launch(instance, hooked.args(), stream);
  stream.synchronize();
  const Watched::Shared& left = hooked.shared();
  EXPECT_EQ(left.abort, 1u);
  EXPECT_EQ(left.stall.seen, 0u);
  EXPECT_EQ(left.stall.wanted, 1u);
  EXPECT_GE(left.stall.counter, hooked.counter(0));
  EXPECT_LT(left.stall.counter, hooked.counter(HookedProduct::groups));
}

}  // namespace
}  // namespace shingle::cuda::test

#else
TEST(Gemm, NeedsCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
