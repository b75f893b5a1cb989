#include "world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "arena.hpp"
#include "backend/agreement.hpp"
#include "backend/alarm.hpp"
#include "backend/neighbours.hpp"
#include "base/log.hpp"
#include "cuda/memory/heap.hpp"
#include "cuda/nccl/processes.hpp"
#include "cuda/nccl/tuner_settings.hpp"
#include "cuda/peer/access.hpp"
#include "cuda/peer/mapping.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "deadline.hpp"
#include "devices.hpp"
#include "executable.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"
#include "shingle/plan/json.hpp"

namespace shingle::cuda {
namespace {

ncclUniqueId agreed_id(Processes& processes, bool first, double timeout_us) {
  ncclUniqueId id{};
  if (first) id = new_unique_id();
  const std::string agreed =
      processes.from_first({reinterpret_cast<const char*>(&id), sizeof id}, timeout_us);
  if (agreed.size() != sizeof id)
    throw Timeout(
        fmt::format("rank 0 sent {} bytes as NCCL's unique id; expected {}", agreed.size(), sizeof id));
  std::memcpy(&id, agreed.data(), sizeof id);
  return id;
}

DeviceBuffer allocate_on(int device, int rank, std::size_t bytes, std::shared_ptr<Health> health) {
  if (bytes == 0) return {};
  const DeviceGuard guard(device);
  void* memory = nullptr;
  if (const cudaError_t result = cudaMalloc(&memory, bytes); result != cudaSuccess) {
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    cudaGetLastError();
    throw CudaError(
        fmt::format("rank {} has no {} of device memory: {} ({} of {} are free)", rank,
                    format_bytes(static_cast<double>(bytes)), cudaGetErrorString(result),
                    format_bytes(static_cast<double>(free)), format_bytes(static_cast<double>(total))),
        result, rank);
  }
  return {std::shared_ptr<void>(memory,
                                [device, health = std::move(health)](void* owned) {
                                  if (health->hopeless()) return;
                                  int before = 0;
                                  cudaGetDevice(&before);
                                  cudaSetDevice(device);
                                  cudaFree(owned);
                                  cudaSetDevice(before);
                                }),
          bytes};
}

/// Logs a failure, for threads that nobody would catch an exception of. Calls report the failure too.
void warn(int rank, const char* what, const Health& health) noexcept try {
  log_line(LogLevel::warning, fmt::format("rank {}{}: {}", rank, what, health.reason()));
} catch (...) {  // no memory
}

}  // namespace

CudaWorld::CudaWorld(Parts parts, std::span<ncclComm* const> adopted) : parts_(std::move(parts)) {
  const double timeout_us = parts_.options.timeout_us;
  const LocalRank& first = parts_.local.front();
  const double connect_us = std::max(timeout_us, least_connect_us);
  if (adopted.empty()) {
    const ncclUniqueId id = agreed_id(processes(), first.rank() == 0, timeout_us);
    in_step([&] { communicators_ = std::make_unique<Communicators>(parts_.local, size(), id, connect_us); });
  } else {
    const std::vector<ncclComm_t> parent(adopted.begin(), adopted.end());
    communicators_ = std::make_unique<Communicators>(parts_.local, size(), parent, connect_us);
    if (!is_alone()) parts_.processes = connect_by_nccl(*communicators_, first, size());
  }
  for (const LocalRank& rank : parts_.local) dnn_[rank.rank()];
  machine_ = cuda_machine(size(), {.first_device = first.device()});
  // All processes must make the same plans, so all take the smallest number of SMs.
  machine_.workers = -static_cast<int>(all_max({-double(machine_.workers)})[0]);
  join_memory();
  // The processes of adopted communicators have no connections. The communicators may end before the world.
  if (!is_alone() && adopted.empty()) start_watcher();
}

CudaWorld::~CudaWorld() {
  watcher_.stop();
  if (!is_alone() && std::uncaught_exceptions() > exceptions_)
    fail(std::make_exception_ptr(
        Error(fmt::format("rank {} left the world on an exception", parts_.local.front().rank()))));
  settle();
  if (!health_->hopeless()) return;
  // A device or a stuck thread may still use these objects: they stay until the end of the process.
  for (LocalRank& rank : parts_.local) rank.abandon();
  static_cast<void>(communicators_.release());
  static_cast<void>(parts_.processes.release());
}

/// Gives ranks access to each other's memory, if all of them can have it.
void CudaWorld::join_memory() {
  if (!is_alone()) {
    const LocalRank& own = parts_.local.front();
    in_step([&] { apart_ = no_mapping(processes(), own.rank(), own.device(), parts_.options.timeout_us); });
  } else {
    std::vector<int> devices;
    for (const LocalRank& rank : parts_.local) devices.push_back(rank.device());
    apart_ = no_peer_access(devices);
    if (apart_.empty()) enable_peer_access(devices);
  }
  machine_.peer_memory = apart_.empty();
}

/// Waits until the other processes no longer use memory that this process shared with them. If they do not
/// answer (they may have died), the memory stays until the end of the process.
void CudaWorld::settle() noexcept try {
  constexpr double patience_us = 5e6;
  if (retired_.empty() || health_->stopped()) return;
  processes().part();
  retired_.settle(processes(), patience_us);
} catch (const std::exception&) {
}

/// The watcher ends kernels of NCCL that wait for a process that is gone: they have no deadline, and the
/// program may be waiting for them in a call of CUDA.
void CudaWorld::start_watcher() {
  constexpr std::chrono::milliseconds interval{200};
  const LocalRank& own = parts_.local.front();
  const auto look_on_own_device = [this, device = own.device(), ready = false]() mutable {
    if (!std::exchange(ready, true)) {
      cudaSetDevice(device);
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // the program may be capturing
      cudaThreadExchangeStreamCaptureMode(&mode);
    }
    look();
  };
  const auto fail_alone = [this, rank = own.rank()](std::exception_ptr error) noexcept {
    fail(std::move(error));
    warn(rank, ": communicators are aborted", *health_);
  };
  watcher_.start(interval, {.look = look_on_own_device, .fail = fail_alone});
}

/// As watch(), for the watcher.
void CudaWorld::look() const {
  if (health_->stopped()) return;
  parts_.processes->peek();
  for (const Resident* resident : residents_) resident->require_sound();
  communicators_->check();
}

std::string CudaWorld::describe(const Stall& stall) const {
  for (const Resident* resident : residents_)
    if (std::string text = resident->describe(stall); !text.empty()) return text;
  return fmt::format("waited for a count: saw {}, wanted {}", stall.seen, stall.wanted);
}

/// Waits under the deadline until no call is in flight. Making memory waits for the device, which has no
/// deadline: the watcher, which would end calls of NCCL without their peers, cannot act meanwhile.
void CudaWorld::come_to_rest() {
  for (Resident* resident : residents_) resident->synchronize();
}

const BlasHandle& CudaWorld::blas(int rank) {
  auto& handle = blas_[rank];
  if (!handle) {
    const DeviceGuard guard(local(rank).device());
    handle = Kept<BlasHandle>(new BlasHandle, UnlessHopeless{health_});
  }
  return *handle;
}

/// Ranks may ask at the same time, each for its own.
const DnnHandle& CudaWorld::dnn(int rank) {
  auto& handle = dnn_.at(rank);
  if (!handle) handle = Kept<DnnHandle>(new DnnHandle, UnlessHopeless{health_});
  return *handle;
}

std::vector<int> CudaWorld::local_ranks() const {
  std::vector<int> ranks;
  for (const LocalRank& rank : parts_.local) ranks.push_back(rank.rank());
  return ranks;
}

Capabilities CudaWorld::capabilities() const {
  return {.remote_memory = apart_.empty(),
          .native_dtypes = {DType::bf16, DType::f16},
          .host_accessible = false,
          .tiles = cuda_tiles({.first_device = parts_.local.front().device()}),
          .timing = {.run_us = 500, .rest_us = 40e3},
          .algorithms = has_tuner_plugin(),
          .chunks = has_tuner_plugin() && nccl_asks_chunks()};
}

LocalRank& CudaWorld::local(int rank) {
  const auto found = std::ranges::find(parts_.local, rank, &LocalRank::rank);
  if (found == parts_.local.end())
    throw InvalidArgument(fmt::format("rank {} is not a rank of this process", rank), rank);
  return *found;
}

DeviceBuffer CudaWorld::allocate(int rank, std::size_t bytes) {
  health_->require();
  return allocate_on(local(rank).device(), rank, bytes, health_);
}

// cudaMemcpy from pageable memory, and cudaMemset, may return before the device is done. Both run on the
// legacy stream, so waiting for that stream waits for them.

void CudaWorld::upload(int rank, void* device, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  health_->require();
  const DeviceGuard guard(local(rank).device());
  check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");
}

void CudaWorld::download(int rank, void* host, const void* device, std::size_t bytes) {
  if (bytes == 0) return;
  health_->require();
  const DeviceGuard guard(local(rank).device());
  check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

void CudaWorld::fill(int rank, void* device, std::uint8_t value, std::size_t bytes) {
  if (bytes == 0) return;
  health_->require();
  const DeviceGuard guard(local(rank).device());
  check(cudaMemset(device, value, bytes), "cudaMemset");
  check(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");
}

void CudaWorld::require_same(const Plan& plan) {
  if (is_alone()) return;
  if (!all_same(*this, to_json(plan, -1)))
    throw InvalidArgument(
        "the processes compile different plans: check that all were started with the same arguments");
}

/// Throws if the plan is for another world.
void CudaWorld::require_fits(const Plan& plan) const {
  if (static_cast<int>(plan.ranks.size()) != size())
    throw InvalidArgument(
        fmt::format("the plan is for {} ranks, the world has {}", plan.ranks.size(), size()));
  // The plan counts on its CTAs being resident together. Otherwise resident CTAs would wait for CTAs that
  // cannot start.
  if (plan.workers > machine_.workers)
    throw InvalidArgument(
        fmt::format("the plan is for {} SMs a rank, but a GPU here has {}: plan for this GPU", plan.workers,
                    machine_.workers));
}

std::unique_ptr<Executable> CudaWorld::compile(const Plan& plan) {
  const Watcher::Hold hold(watcher_);
  require_fits(plan);
  health_->require();
  require_same(plan);
  come_to_rest();
  if (!is_alone()) in_step([&] { retired_.settle(processes(), parts_.options.timeout_us); });
  return cuda::compile(*this, plan);
}

std::shared_ptr<Heap> CudaWorld::make_heap(std::int64_t bytes) {
  const Watcher::Hold hold(watcher_);
  health_->require();
  come_to_rest();
  if (!is_alone()) in_step([&] { retired_.settle(processes(), parts_.options.timeout_us); });
  return {new CudaHeap(*this, bytes), UnlessHopeless{health_}};
}

std::shared_ptr<Arena> CudaWorld::make_arena(std::int64_t bytes, std::shared_ptr<Heap> heap) {
  const Watcher::Hold hold(watcher_);
  health_->require();
  come_to_rest();
  if (!is_alone()) in_step([&] { retired_.settle(processes(), parts_.options.timeout_us); });
  return {new CudaArena(*this, bytes, std::dynamic_pointer_cast<CudaHeap>(heap)), UnlessHopeless{health_}};
}

void CudaWorld::prepare(const Plan& plan, const std::shared_ptr<Arena>& arena) {
  const Watcher::Hold hold(watcher_);
  require_fits(plan);
  health_->require();
  require_same(plan);
  come_to_rest();
  std::dynamic_pointer_cast<CudaArena>(arena)->prepare(plan);
}

bool CudaWorld::is_prepared(const Plan& plan) const {
  const Watcher::Hold hold(watcher_);
  return std::ranges::all_of(communicators_of(plan), [this](const CommUse& use) {
    return communicators_->has(use.key) && (!use.messages || exchanging_.contains(use.key));
  });
}

std::unique_ptr<Executable> CudaWorld::compile(const Plan& plan, const std::shared_ptr<Arena>& arena,
                                               double timeout_us) {
  const Watcher::Hold hold(watcher_);
  require_fits(plan);
  health_->require();
  return cuda::compile(*this, plan, std::dynamic_pointer_cast<CudaArena>(arena), timeout_us);
}

void CudaWorld::barrier(double timeout_us) {
  in_step([&] { processes().barrier(timeout_us); });
}

std::vector<double> CudaWorld::all_max(std::vector<double> values, double timeout_us) {
  in_step([&] { values = processes().all_max(std::move(values), timeout_us); });
  return values;
}

const Communicator& CudaWorld::communicator(const CommKey& key) {
  const Communicator* found = nullptr;
  in_step([&] { found = &communicators_->get(key); });
  return *found;
}

void CudaWorld::watch() {
  health_->require();
  processes().watch();
  communicators_->check();
}

void CudaWorld::fail(std::exception_ptr error) noexcept {
  constexpr double patience_us = 10e6;
  constexpr std::chrono::seconds usual{1}, exit_patience{10};
  {
    // one roll call at a time: the second caller finds the world stopped
    const std::lock_guard lock(failing_);
    if (health_->stopped() || !health_->fail(named(std::move(error)))) return;
  }
  for (LocalRank& rank : parts_.local) rank.abort();
  std::optional<Alarm> late;
  try {
    processes().tell(health_->reason());
    bound_exit(exit_patience);
    late.emplace(usual, [health = health_, rank = parts_.local.front().rank()] {
      warn(rank, " releases its devices after a failure", *health);
    });
  } catch (...) {  // no memory, or no thread: the other processes find out by themselves
  }
  if (!health_->hopeless() && !release(patience_us)) health_->give_up();
}

/// Completes an UnnamedTimeout with the ranks that did not answer a roll call, and an error of NCCL with the
/// rank that is gone.
std::exception_ptr CudaWorld::named(std::exception_ptr error) noexcept try {
  std::rethrow_exception(error);
} catch (const NcclError& failure) {
  // NCCL may notice first that a peer is gone, and does not name it.
  constexpr double patience_us = 1e6;
  try {
    for (const auto deadline = deadline_in(patience_us); Clock::now() < deadline;) {
      processes().watch();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  } catch (const Timeout& cause) {
    return std::make_exception_ptr(
        Timeout(fmt::format("{} ({})", cause.what(), failure.what()), cause.rank()));
  } catch (...) {
  }
  return error;
} catch (const UnnamedTimeout& timeout) {
  try {
    const std::string silent = who_are_silent(processes().silent(timeout.what(), roll_call_us));
    return std::make_exception_ptr(Timeout(timeout.what() + silent + stopped_neighbours(), timeout.rank()));
  } catch (const Timeout&) {
    return std::current_exception();  // another process has found the cause
  } catch (...) {
    return error;
  }
} catch (...) {
  return error;
}

/// Drops the graphs and aborts the communicators, concurrently, as each may wait for the other. The driver
/// keeps a graph until the device has finished its launches. Those include NCCL's kernels, which end when
/// their communicator is aborted. True once the graphs are dropped and the devices are idle. NCCL itself may
/// take longer: it keeps a communicator as long as a graph of the caller holds its operations.
bool CudaWorld::release(double timeout_us) noexcept try {
  constexpr double usual_us = 3e5;
  std::packaged_task<void()> drop([residents = residents_, hold = std::make_shared<ExitHold>()] {
    for (Resident* resident : residents) resident->drop_graphs();
  });
  const std::future<void> dropped = drop.get_future();
  std::thread(std::move(drop)).detach();
  const auto deadline = deadline_in(timeout_us);
  if (communicators_) communicators_->abort(usual_us);
  if (dropped.wait_until(deadline) != std::future_status::ready) return false;
  while (!std::ranges::all_of(residents_, &Resident::idle)) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(nap);
  }
  return true;
} catch (...) {  // no memory, or no thread
  return false;
}

}  // namespace shingle::cuda
