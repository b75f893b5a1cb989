#include "communicators.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "backend/alarm.hpp"
#include "base/log.hpp"
#include "cuda/nccl/api.hpp"
#include "cuda/nccl/group.hpp"
#include "cuda/nccl/tuner_settings.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/runtime/deadline.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::cuda {
namespace {

/// Waits until the pending operation on non-blocking communicators is complete.
void settle(const Communicator& communicator, const char* call, double timeout_us) {
  const auto deadline = deadline_in(timeout_us);
  for (const ncclComm_t comm : communicator.by_rank()) {
    for (ncclResult_t state = ncclInProgress; comm != nullptr && state == ncclInProgress;) {
      check(nccl().ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
      check(state, call);
      if (state != ncclInProgress) break;
      if (Clock::now() > deadline)
        throw UnnamedTimeout(fmt::format("{}: not all ranks came within {}", call, format_us(timeout_us)));
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

/// By default NCCL connects ranks at the first collective of a kind, which may be in the middle of a plan.
/// Kernels that wait for that collective would then block the connection. A value that the user has set
/// stays.
void connect_early() {
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

std::vector<ncclComm_t> none(int size) {
  return std::vector<ncclComm_t>(static_cast<std::size_t>(size), nullptr);
}

}  // namespace

Communicators::Communicators(const std::vector<LocalRank>& local, int size, const ncclUniqueId& id,
                             double timeout_us)
    : local_(local), size_(size), timeout_us_(timeout_us), owns_parent_(true), parent_(none(size)) {
  connect_early();
  // The parent is non-blocking, so that a missing rank costs no more than the deadline. Its children are
  // blocking: NCCL launches every operation of a non-blocking communicator from a new thread.
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  try {
    in_group([&] {
      for (const LocalRank& rank : local_) {
        const DeviceGuard guard(rank.device());
        shingle::cuda::check(
            nccl().ncclCommInitRankConfig(&parent_.at(rank.rank()), size, id, rank.rank(), &config),
            "ncclCommInitRankConfig");
      }
    });
    settle(parent_, "ncclCommInitRankConfig", timeout_us);
  } catch (...) {
    retire(How::abort, timeout_us);
    throw;
  }
}

Communicators::Communicators(const std::vector<LocalRank>& local, int size,
                             const std::vector<ncclComm_t>& parent, double timeout_us)
    : local_(local), size_(size), timeout_us_(timeout_us), owns_parent_(false), parent_(none(size)) {
  connect_early();
  for (std::size_t i = 0; i < local.size(); ++i) parent_.at(local[i].rank()) = parent[i];
}

Communicators::~Communicators() {
  if (!retire(How::destroy, timeout_us_))
    log_line(LogLevel::warning,
             fmt::format("NCCL did not release its communicators within {}", format_us(timeout_us_)));
}

const Communicator& Communicators::get(const CommKey& key) {
  const auto [found, is_new] = made_.try_emplace(key, none(size_));
  Communicator& made = found->second;
  if (!is_new) return made;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  if (key.max_ctas > 0) {
    config.maxCTAs = key.max_ctas;
    // A cluster of CTAs needs that many free SMs next to each other. The SMs that a GEMM leaves free may be
    // anywhere.
    config.cgaClusterSize = 0;
  }
  const TunedCommunicator tuned(key.settings, static_cast<int>(key.ranks.size()));
  // NCCL writes a new communicator to its address once it is ready, so the addresses exist before the call.
  in_group([&] {
    for (const LocalRank& rank : local_) {
      const auto at = std::ranges::find(key.ranks, rank.rank());
      const bool member = at != key.ranks.end();
      shingle::cuda::check(
          nccl().ncclCommSplit(parent_.of(rank.rank()), member ? 0 : NCCL_SPLIT_NOCOLOR,
                               static_cast<int>(at - key.ranks.begin()), &made.at(rank.rank()), &config),
          "ncclCommSplit");
    }
  });
  settle(parent_, "ncclCommSplit", timeout_us_);
  return made;
}

void Communicators::check() const {
  const auto look = [&](const Communicator& communicator) {
    for (const LocalRank& rank : local_) {
      const ncclComm_t comm = communicator.of(rank.rank());
      ncclResult_t state = ncclSuccess;
      if (comm != nullptr && nccl().ncclCommGetAsyncError(comm, &state) == ncclSuccess &&
          state != ncclSuccess && state != ncclInProgress)
        throw NcclError(fmt::format("NCCL has failed on rank {}: {} ({})", rank.rank(),
                                    nccl().ncclGetErrorString(state), nccl().ncclGetLastError(comm)),
                        state, rank.rank());
    }
  };
  look(parent_);
  for (const auto& [key, communicator] : made_) look(communicator);
}

void Communicators::abort(double timeout_us) noexcept {
  retire(How::abort, timeout_us);
}

bool Communicators::retire(How how, double timeout_us) noexcept try {
  // NCCL may still write communicators to their addresses, so `kept` lives until the last thread has ended.
  const auto kept = std::make_shared<std::map<CommKey, Communicator>>(std::move(made_));
  made_.clear();
  if (owns_parent_) kept->try_emplace({}, std::exchange(parent_, Communicator(none(size_))));
  // These calls wait for NCCL's own work. NCCL releases the ranks of a communicator at the last call. One
  // thread for each communicator, so that none waits for another communicator.
  std::vector<std::future<void>> ends;
  for (const auto& [key, communicator] : *kept) {
    std::packaged_task<void()> end(
        [how, kept, &communicator = communicator, hold = std::make_shared<ExitHold>()] {
          for (const ncclComm_t comm : communicator.by_rank())
            if (comm != nullptr)
              how == How::abort ? nccl().ncclCommAbort(comm) : nccl().ncclCommDestroy(comm);
        });
    ends.push_back(end.get_future());
    std::thread(std::move(end)).detach();
  }
  const auto deadline = deadline_in(timeout_us);
  return std::ranges::all_of(
      ends, [&](auto& end) { return end.wait_until(deadline) == std::future_status::ready; });
} catch (...) {
  return false;
}

ncclUniqueId new_unique_id() {
  ncclUniqueId id;
  check(nccl().ncclGetUniqueId(&id), "ncclGetUniqueId");
  return id;
}

std::string nccl_version() {
  int version = 0;
  check(nccl().ncclGetVersion(&version), "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw NcclError(
      fmt::format("{}: {} ({})", call, nccl().ncclGetErrorString(result), nccl().ncclGetLastError(nullptr)),
      result, -1);
}

}  // namespace shingle::cuda
