// Worlds of GPUs: the backend contract, and properties of CUDA worlds. Skipped with a reason if there is no
// GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "contract/backend_contract.hpp"
#include "cuda/nccl/api.hpp"
#include "shingle/api/registry.hpp"

#ifdef SHINGLE_WITH_CUDA
#include "cuda/runtime/devices.hpp"
#include "cuda/runtime/world.hpp"
#endif

namespace shingle::contract {
namespace {

#ifdef SHINGLE_WITH_CUDA

int gpus() {
  std::string why;
  return cuda::count_gpus(why);
}

/// Matches docs/backends/cuda.md.
Served served() {
  Served served;
  served.tiled_types = {DType::bf16, DType::f16};
  served.multiple = 8;
  served.tile_rows = served.tile_cols = 128;
  served.mixed_sources = served.part_rows = false;
  served.spares_phantom_rows = served.rank_order = served.group_spans = false;
  served.extra_bytes = 4096;
  return served;
}

std::vector<Backend> worlds() {
  std::vector<Backend> list;
  for (const int ranks : {1, 2, 3, 4, 8})
    if (ranks <= gpus())
      list.push_back({"gpus" + std::to_string(ranks), [ranks] { return make_cuda_world(ranks); }, served()});
  return list;
}

class CudaWorldTest : public testing::Test {
 protected:
  void SetUp() override {
    if (gpus() == 0) GTEST_SKIP() << "no GPU here";
    world = make_cuda_world(gpus());
  }
  cuda::CudaWorld& own() { return dynamic_cast<cuda::CudaWorld&>(*world); }
  std::unique_ptr<World> world;
};

TEST(CudaWorld, SaysInOneLineThatThereIsNoGpu) {
  if (gpus() > 0) GTEST_SKIP() << "there is a GPU here";
  for (const auto& make : {+[] { make_cuda_world(1); }, +[] { cuda_machine(1); }})
    EXPECT_THAT(make, testing::ThrowsMessage<Unsupported>(testing::StartsWith("no GPU here: ")));
  const CudaInfo info = cuda_info();
  EXPECT_TRUE(info.devices.empty());
  EXPECT_THAT(describe(info), testing::StartsWith("gpu: none, "));
  EXPECT_THAT(info.nccl, testing::StartsWith("2."));
}

TEST(CudaWorld, RefusesMoreRanksThanGpus) {
  if (gpus() == 0) GTEST_SKIP() << "no GPU here";
  EXPECT_THROW(make_cuda_world(gpus() + 1), Unsupported);
  EXPECT_THROW(make_cuda_world(-1), InvalidArgument);
}

TEST_F(CudaWorldTest, HasTheDevicesMachine) {
  EXPECT_FALSE(world->capabilities().tiles.empty());
  EXPECT_EQ(served_tiles({.backend = "cuda"}), world->capabilities().tiles);
  EXPECT_EQ(world->backend(), "cuda");
  EXPECT_EQ(world->machine().workers, cuda_info().devices[0].sms);
  EXPECT_EQ(world->machine().peer_memory, world->capabilities().remote_memory);
  EXPECT_FALSE(world->capabilities().host_accessible);
}

TEST_F(CudaWorldTest, KeepsCommunicators) {
  cuda::CommKey key;
  for (int rank = 0; rank < world->size(); ++rank) key.ranks.push_back(rank);
  const cuda::Communicator& all = own().communicator(key);
  EXPECT_EQ(&own().communicator(key), &all);
  key.max_ctas = 4;
  const cuda::Communicator& narrow = own().communicator(key);
  EXPECT_NE(&narrow, &all);
  key.ranks = {world->size() - 1};
  const cuda::Communicator& last = own().communicator(key);
  for (const int rank : world->local_ranks()) {
    int found = -1;
    ASSERT_EQ(cuda::nccl().ncclCommUserRank(narrow.of(rank), &found), ncclSuccess);
    EXPECT_EQ(found, rank);
    EXPECT_EQ(last.of(rank) != nullptr, rank == world->size() - 1);
  }
  EXPECT_NO_THROW(own().watch());
}

TEST_F(CudaWorldTest, AFailureBreaksItForGood) {
  const int rank = world->local_ranks()[0];
  const DeviceBuffer held = world->allocate(rank, 100);
  cuda::CommKey key;
  for (int r = 0; r < world->size(); ++r) key.ranks.push_back(r);
  own().communicator(key);
  own().fail(std::make_exception_ptr(Timeout("rank 0 has burnt its toast")));
  EXPECT_TRUE(own().local(rank).aborted());
  EXPECT_FALSE(own().health().hopeless());
  const auto broken = testing::ThrowsMessage<Timeout>(
      "the world is broken by an earlier failure: rank 0 has burnt its toast");
  EXPECT_THAT([&] { world->barrier(); }, broken);
  EXPECT_THAT([&] { world->allocate(rank, 1); }, broken);
  EXPECT_THAT([&] { own().watch(); }, broken);
  world.reset();  // another world can be made
  EXPECT_EQ(make_cuda_world(gpus())->size(), gpus());
}

TEST_F(CudaWorldTest, AdoptsCommunicators) {
  std::vector<int> devices;
  for (int device = 0; device < gpus(); ++device) devices.push_back(device);
  std::vector<ncclComm_t> comms(devices.size());
  ASSERT_EQ(cuda::nccl().ncclCommInitAll(comms.data(), gpus(), devices.data()), ncclSuccess);
  {
    const auto adopted = make_cuda_world(std::span<ncclComm* const>(comms));
    EXPECT_EQ(adopted->size(), gpus());
    cuda::CommKey key;
    for (const int rank : devices) key.ranks.push_back(rank);
    EXPECT_NE(dynamic_cast<cuda::CudaWorld&>(*adopted).communicator(key).of(0), nullptr);
  }
  for (const ncclComm_t comm : comms) EXPECT_EQ(cuda::nccl().ncclCommDestroy(comm), ncclSuccess);
}

#else

std::vector<Backend> worlds() {
  return {};
}

#endif

TEST(CudaContract, Runs) {
  if (worlds().empty()) GTEST_SKIP() << "no GPU here, or a build without CUDA";
}

}  // namespace

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackendContract);
INSTANTIATE_TEST_SUITE_P(Cuda, BackendContract, testing::ValuesIn(worlds()),
                         [](const auto& test) { return test.param.name; });

}  // namespace shingle::contract
