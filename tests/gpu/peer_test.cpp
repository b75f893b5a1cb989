// Peer memory: access to it, and operators that use it for many epochs back to back. Some ranks are late, and
// two operators alternate.
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "api/workspace.hpp"
#include "backend/remote.hpp"
#include "cuda/kernels/sync.hpp"
#include "cuda/peer/access.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/runtime/devices.hpp"
#include "cuda/runtime/executable.hpp"
#include "device.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda::test {
namespace {

int gpus() {
  std::string why;
  return count_gpus(why);
}

/// Devices from 0 on if all have peer access to each other and there are at least two; else none.
std::vector<int> peers() {
  std::vector<int> devices;
  for (int device = 0; device < gpus(); ++device) devices.push_back(device);
  return devices.size() > 1 && no_peer_access(devices).empty() ? devices : std::vector<int>{};
}

TEST(PeerAccess, IsEnabledOnceAndAgain) {
  if (peers().empty()) GTEST_SKIP() << "two GPUs that reach each other are needed";
  enable_peer_access(peers());
  enable_peer_access(peers());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_TRUE(no_peer_access({0}).empty());
}

/// Data goes from device to device: each awaits a counter, copies to the next device, and notifies its
/// counter.
TEST(PeerAccess, ACountCoversACopyBeforeIt) {
  const std::vector<int> devices = peers();
  if (devices.empty()) GTEST_SKIP() << "two GPUs that reach each other are needed";
  enable_peer_access(devices);
  constexpr std::size_t bytes = 8 << 20;
  struct Device {
    Watched watched;
    DeviceMemory memory{bytes}, counter{sizeof(std::uint32_t)};
    Stream stream;
  };
  std::vector<std::unique_ptr<Device>> at;
  for (const int device : devices) {
    const DeviceGuard guard(device);
    check(preload_sync(), "preload_sync");
    at.push_back(std::make_unique<Device>());
    at.back()->memory.fill(device == 0 ? 0x5a : 0);
    at.back()->counter.fill(0);
    check(launch_begin(at.back()->watched.epoch(), at.back()->stream.get()), "launch_begin");
  }
  for (std::size_t d = devices.size() - 1; d-- > 0;) {  // the last device to wait is issued first
    const DeviceGuard guard(devices[d]);
    Device &own = *at[d], &next = *at[d + 1];
    const cudaStream_t stream = own.stream.get();
    const SyncOp arrived{SyncKind::await, own.counter.get<std::uint32_t>(), d == 0 ? 0u : 1u, 0};
    const SyncOp tell{SyncKind::add, next.counter.get<std::uint32_t>(), 1, 0, true};
    check(launch_sync(&arrived, 1, own.watched.watch(), stream), "launch_sync");
    check(cudaMemcpyAsync(next.memory.get(), own.memory.get(), bytes, cudaMemcpyDefault, stream), "copy");
    check(launch_sync(&tell, 1, own.watched.watch(), stream), "launch_sync");
  }
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const DeviceGuard guard(devices[d]);
    at[d]->stream.synchronize();
    EXPECT_EQ(at[d]->watched.shared().abort, 0u);
  }
  const DeviceGuard guard(devices.back());
  const auto got = download<std::uint8_t>(at.back()->memory);
  EXPECT_EQ(std::count(got.begin(), got.end(), 0x5a), std::ptrdiff_t{bytes});
  for (std::size_t d = 0; d < devices.size(); ++d) {  // memory is freed with its own device current
    const DeviceGuard own(devices[d]);
    at[d].reset();
  }
}

/// An operator with two alternating sets of inputs, and a record of every epoch's outputs.
class Recorded {
 public:
  static constexpr int variants = 2;

  Recorded(World& world, const Problem& problem, const Params& params, int epochs)
      : world_(world), op_(world, problem, {.params = params}) {
    for (int v = 0; v < variants; ++v) {
      inputs_.push_back(random_inputs(problem, static_cast<std::uint64_t>(v) + 5, Values::integers));
      workspaces_.push_back(std::make_unique<Workspace>(world, *inputs_.back()));
    }
    for (const int rank : world.local_ranks()) {
      a_.push_back(world.allocate(rank, static_cast<std::size_t>(bytes_of(problem, Role::a, rank))));
      out_bytes_.push_back(static_cast<std::size_t>(bytes_of(problem, Role::out, rank)));
      record_.push_back(world.allocate(rank, out_bytes_.back() * static_cast<std::size_t>(epochs)));
    }
  }

  /// Computes and checks the outputs of each variant. Afterwards all inputs except A are those of the first
  /// variant, and each epoch copies its variant's A.
  void expect() {
    for (int v = 0; v < variants; ++v) {
      Workspace& workspace = *workspaces_[static_cast<std::size_t>(v)];
      for (const Role role : roles_of(op_.problem()))
        for (const int rank : world_.local_ranks())
          op_.bind(
              rank, role,
              const_cast<void*>(
                  (role == Role::a || role == Role::out ? workspace : *workspaces_[0]).data(rank, role)));
      workspace.poison_outputs();
      op_.run();
      if (v == 0) {
        ASSERT_TRUE(shingle::check(*inputs_[0], workspace.outputs()).passed);
      }
      for (const Output& output : workspace.outputs()) {
        const auto* bytes = static_cast<const std::byte*>(output.memory);
        expected_[v].emplace_back(bytes, bytes + out_bytes_[static_cast<std::size_t>(output.rank)]);
      }
    }
    ASSERT_NE(expected_[0], expected_[1]);
    for (const int rank : world_.local_ranks())
      op_.bind(rank, Role::a, a_[static_cast<std::size_t>(rank)].data());
    op_.run();
  }

  /// Enqueues one epoch on the streams of all ranks.
  void enqueue(int epoch, const std::vector<Stream>& streams) {
    Workspace& variant = *workspaces_[static_cast<std::size_t>(epoch % variants)];
    std::vector<void*> handles;
    for (std::size_t r = 0; r < streams.size(); ++r) {
      const DeviceGuard guard(static_cast<int>(r));
      handles.push_back(streams[r].get());
      check(cudaMemcpyAsync(a_[r].data(), variant.data(static_cast<int>(r), Role::a), a_[r].bytes(),
                            cudaMemcpyDefault, streams[r].get()),
            "copy");
    }
    op_.enqueue(handles);
    for (std::size_t r = 0; r < streams.size(); ++r) {
      const DeviceGuard guard(static_cast<int>(r));
      void* const out = const_cast<void*>(workspaces_.back()->data(static_cast<int>(r), Role::out));
      check(cudaMemcpyAsync(
                static_cast<std::byte*>(record_[r].data()) + out_bytes_[r] * static_cast<std::size_t>(epoch),
                out, out_bytes_[r], cudaMemcpyDefault, streams[r].get()),
            "copy");
      check(cudaMemsetAsync(out, 0xff, out_bytes_[r], streams[r].get()), "poison");
    }
  }

  void synchronize() { op_.synchronize(); }

  /// Number of outputs, over ranks and epochs, that differ from those of their variant.
  int wrong(int epochs) {
    int count = 0;
    for (const int rank : world_.local_ranks()) {
      const auto r = static_cast<std::size_t>(rank);
      std::vector<std::byte> got(record_[r].bytes());
      world_.download(rank, got.data(), record_[r].data(), got.size());
      for (int epoch = 0; epoch < epochs; ++epoch)
        if (std::memcmp(got.data() + out_bytes_[r] * static_cast<std::size_t>(epoch),
                        expected_[epoch % variants][r].data(), out_bytes_[r]) != 0)
          ++count;
    }
    return count;
  }

 private:
  World& world_;
  Operator op_;
  std::vector<std::unique_ptr<Inputs>> inputs_;
  std::vector<std::unique_ptr<Workspace>> workspaces_;
  std::vector<DeviceBuffer> a_, record_;
  std::vector<std::size_t> out_bytes_;
  std::vector<std::vector<std::byte>> expected_[variants];
};

void be_late(void*) {
  std::this_thread::sleep_for(std::chrono::microseconds(400));
}

struct Case {
  const char* name;
  Op op;
  Params params;
};
constexpr TileParams tile{128, 128}, tile_along_m{128, 128, {.raster = Raster::along_m}};

CopyEngineParams engines(CopyVariant variant, EngineTrigger trigger, bool prelaunch) {
  return {.variant = variant, .prelaunch = prelaunch, .trigger = trigger};
}

/// A shape whose tiles are a CTA's only ones: all data leaves right before its counts.
Problem small(Op op, int ranks) {
  return {.op = op, .world = ranks, .m = 500, .n = 384, .k = 256, .dtype = DType::bf16};
}

std::vector<Stream> stream_of_each(int ranks) {
  std::vector<Stream> streams;
  for (int rank = 0; rank < ranks; ++rank) {
    const DeviceGuard guard(rank);
    streams.emplace_back();
  }
  return streams;
}

class BackToBack : public testing::TestWithParam<Case> {};

/// Runs 300 epochs of an operator, alternating with epochs of another operator on the same streams. The host
/// never waits, and two of the ranks are repeatedly late. SHINGLE_GPU_REPETITIONS repeats it.
TEST_P(BackToBack, NobodyIsOverwrittenOrReadTooSoon) {
  constexpr int epochs = 300;
  const int ranks = std::min(static_cast<int>(peers().size()), 4);
  if (ranks < 2) GTEST_SKIP() << "two GPUs that reach each other are needed";
  const auto world = make_cuda_world(ranks);
  const Problem problem = small(GetParam().op, ranks);
  Problem sums = problem;
  sums.op = Op::gemm_reducescatter, sums.m = 260;
  Recorded first(*world, problem, GetParam().params, epochs);
  Recorded second(*world, sums, FusedParams{.tile = tile}, epochs);
  ASSERT_NO_FATAL_FAILURE(first.expect());
  ASSERT_NO_FATAL_FAILURE(second.expect());
  const std::vector<Stream> streams = stream_of_each(ranks);
  const auto delay = [&](int rank) {
    const DeviceGuard guard(rank);
    check(cudaLaunchHostFunc(streams[static_cast<std::size_t>(rank)].get(), be_late, nullptr), "delay");
  };
  const char* const set = std::getenv("SHINGLE_GPU_REPETITIONS");
  const int repetitions = set != nullptr ? std::atoi(set) : 1;
  for (int repetition = 0; repetition < repetitions && !HasFailure(); ++repetition) {
    for (int epoch = 0; epoch < epochs; ++epoch) {
      if (epoch % 7 == 0) delay(1);
      first.enqueue(epoch, streams);
      if (epoch % 11 == 0) delay(0);
      second.enqueue(epoch, streams);
    }
    first.synchronize(), second.synchronize();
    for (const Stream& stream : streams) stream.synchronize();
    EXPECT_EQ(first.wrong(epochs), 0) << "repetition " << repetition;
    EXPECT_EQ(second.wrong(epochs), 0) << "repetition " << repetition;
  }
}

class AfterIdleLinks : public testing::TestWithParam<Case> {};

/// Links without traffic sleep, and wake at the first stores, some lanes later than others. Counts must not
/// overtake their data then either. On one machine of seven they did, so this also tests the machine: all of
/// its GPUs.
TEST_P(AfterIdleLinks, NoCountComesBeforeItsData) {
  constexpr int epochs = 10;
  const int ranks = static_cast<int>(peers().size());
  if (ranks < 2) GTEST_SKIP() << "two GPUs that reach each other are needed";
  const auto world = make_cuda_world(ranks);
  Recorded op(*world, small(GetParam().op, ranks), GetParam().params, epochs);
  ASSERT_NO_FATAL_FAILURE(op.expect());
  const std::vector<Stream> streams = stream_of_each(ranks);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    op.enqueue(epoch, streams);
    op.synchronize();
    for (const Stream& stream : streams) stream.synchronize();
  }
  EXPECT_EQ(op.wrong(epochs), 0);
}

const Case cases[] = {
    {"reducescatter", Op::gemm_reducescatter, FusedParams{.tile = tile}},
    {"reducescatter_by_columns", Op::gemm_reducescatter, FusedParams{.tile = tile_along_m, .helpers = 4}},
    {"reducescatter_fp32", Op::gemm_reducescatter, FusedParams{.tile = tile, .stage_fp32 = true}},
    {"allreduce", Op::gemm_allreduce, FusedParams{.tile = tile, .helpers = 12}},
    {"allreduce_unregistered", Op::gemm_allreduce,
     FusedParams{.tile = tile, .helpers = 12, .comm_order = CommOrder::interleaved, .unregistered = true}},
    {"allreduce_in_epilogue", Op::gemm_allreduce, FusedParams{.tile = tile, .sums = SumsIn::epilogue}},
    {"allreduce_in_epilogue_unregistered", Op::gemm_allreduce,
     FusedParams{.tile = tile, .helpers = 12, .sums = SumsIn::epilogue, .unregistered = true}},
    {"allreduce_one_shot", Op::gemm_allreduce, FusedParams{.tile = tile, .one_shot = true}},
    {"allgather", Op::allgather_gemm, FusedParams{.tile = tile}},
    {"allgather_pull", Op::allgather_gemm, FusedParams{.tile = tile, .pull = true}},
    {"allgather_store", Op::allgather_gemm, FusedParams{.tile = tile, .helpers = 4, .mover = Mover::store}},
    {"allgather_interleaved", Op::allgather_gemm,
     FusedParams{.tile = {64, 128}, .comm_rows = 64, .comm_order = CommOrder::interleaved}},
};
const Case engine_cases[] = {
    {"ring", Op::allgather_gemm, engines(CopyVariant::ring, EngineTrigger::direct, true)},
    {"in_step", Op::gemm_reducescatter, engines(CopyVariant::ring, EngineTrigger::direct, true)},
    {"ring_both_ways", Op::gemm_allreduce, engines(CopyVariant::ring, EngineTrigger::direct, false)},
    {"parallel", Op::gemm_allreduce, engines(CopyVariant::pcpy, EngineTrigger::direct, true)},
    {"swap", Op::gemm_allreduce, engines(CopyVariant::swap, EngineTrigger::direct, true)},
    {"swap_by_host", Op::gemm_allreduce, engines(CopyVariant::swap, EngineTrigger::host, true)},
    {"in_step_by_host", Op::gemm_reducescatter, engines(CopyVariant::ring, EngineTrigger::host, false)},
};
/// Memory of a pool, to which peers have no access.
class PoolMemory {
 public:
  PoolMemory(int device, std::size_t bytes) : device_(device) {
    const DeviceGuard guard(device);
    check(cudaMallocAsync(&data_, std::max<std::size_t>(bytes, 1), cudaStreamLegacy), "cudaMallocAsync");
    check(cudaStreamSynchronize(cudaStreamLegacy), "cudaMallocAsync");
  }
  ~PoolMemory() {
    const DeviceGuard guard(device_);
    cudaFreeAsync(data_, cudaStreamLegacy);
  }
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;
  void* get() const { return data_; }

 private:
  int device_;
  void* data_ = nullptr;
};

class UnsharedMemory : public testing::TestWithParam<Case> {};

/// Runs several epochs, with streams and graphs, on matrices that peers cannot access. `registered`: the plan
/// is for matrices that peers can access, so that the backend copies whole matrices.
void run_on_pools(const Case& given, bool registered) {
  const int ranks = std::min(static_cast<int>(peers().size()), 4);
  if (ranks < 2) GTEST_SKIP() << "two GPUs that reach each other are needed";
  const auto world = make_cuda_world(ranks);
  const Problem problem = small(given.op, ranks);
  const auto inputs = random_inputs(problem, 5, Values::integers);
  Workspace workspace(*world, *inputs);
  Operator direct(*world, problem, {.params = given.params});
  const bool used = !remote_user_buffers(direct.plan()).empty();
  const std::int64_t direct_bytes = direct.memory_bytes(0);
  Operator op = registered ? std::move(direct)
                           : Operator(*world, problem, {.params = given.params, .registered = false});
  workspace.bind(op);
  op.run();
  const std::int64_t shared_bytes = op.memory_bytes(0);
  std::vector<std::unique_ptr<PoolMemory>> pools;
  const auto place_of = [&](int rank, Role role) { return const_cast<void*>(workspace.data(rank, role)); };
  const auto copy = [&](int rank, Role role, void* to, const void* from) {
    const DeviceGuard guard(rank);
    check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes_of(problem, role, rank)), cudaMemcpyDefault),
          "copy");
  };
  for (int rank = 0; rank < ranks; ++rank)
    for (const Role role : roles_of(problem)) {
      pools.push_back(
          std::make_unique<PoolMemory>(rank, static_cast<std::size_t>(bytes_of(problem, role, rank))));
      EXPECT_FALSE(shared_with_peers(pools.back()->get()));
      EXPECT_TRUE(shared_with_peers(place_of(rank, role)));
      if (role != Role::out) copy(rank, role, pools.back()->get(), place_of(rank, role));
      op.bind(rank, role, pools.back()->get());
    }
  for (int epoch = 0; epoch < 3; ++epoch) {
    workspace.poison_outputs();
    op.run();
    std::size_t pool = 0;
    for (int rank = 0; rank < ranks; ++rank)
      for (const Role role : roles_of(problem)) {
        void* const at = pools[pool++]->get();
        if (role != Role::out) continue;
        copy(rank, role, place_of(rank, role), at);
        const DeviceGuard guard(rank);
        check(cudaMemset(at, 0xff, static_cast<std::size_t>(bytes_of(problem, role, rank))), "poison");
      }
    const auto checked = shingle::check(*inputs, workspace.outputs());
    EXPECT_TRUE(checked.passed) << "epoch " << epoch;
  }
  EXPECT_EQ(remote_user_buffers(op.plan()).empty(), !registered || !used);
  if (registered && used) {
    EXPECT_GT(op.memory_bytes(0), shared_bytes) << "copies of the matrices are counted";
  } else {
    EXPECT_EQ(op.memory_bytes(0), shared_bytes) << "peers access no matrix of the user";
  }
  if (!registered && used && given.op != Op::allgather_gemm) {  // gathered shards are sent without staging
    EXPECT_GT(shared_bytes, direct_bytes) << "staging memory is counted";
  }
}

TEST_P(UnsharedMemory, IsFilledFromTheOperators) {
  run_on_pools(GetParam(), false);
}
TEST_P(UnsharedMemory, IsCopiedIfThePlanIsForSharedMemory) {
  run_on_pools(GetParam(), true);
}

const Case unshared_cases[] = {
    // Two ranks use the one-shot variant, which accesses no user memory of peers.
    {"allreduce", Op::gemm_allreduce, FusedParams{.tile = tile}},
    {"allreduce_by_bands", Op::gemm_allreduce,
     FusedParams{.tile = tile_along_m, .helpers = 12, .comm_order = CommOrder::ring}},
    {"allgather_pull", Op::allgather_gemm, FusedParams{.tile = tile, .pull = true}},
    {"copy_engine_ring", Op::gemm_allreduce, engines(CopyVariant::ring, EngineTrigger::direct, false)},
    {"copy_engine", Op::gemm_allreduce, engines(CopyVariant::pcpy, EngineTrigger::direct, false)},
};

const auto name_of = [](const auto& test) { return std::string(test.param.name); };
INSTANTIATE_TEST_SUITE_P(Fused, BackToBack, testing::ValuesIn(cases), name_of);
INSTANTIATE_TEST_SUITE_P(CopyEngines, BackToBack, testing::ValuesIn(engine_cases), name_of);
INSTANTIATE_TEST_SUITE_P(Fused, AfterIdleLinks, testing::ValuesIn(cases), name_of);
INSTANTIATE_TEST_SUITE_P(Peers, UnsharedMemory, testing::ValuesIn(unshared_cases), name_of);

}  // namespace
}  // namespace shingle::cuda::test

#else
TEST(Peers, NeedCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
