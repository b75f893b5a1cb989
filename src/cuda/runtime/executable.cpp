#include "executable.hpp"

#include "call_executable.hpp"

#include <fmt/format.h>

#include "backend/remote.hpp"
#include "cuda/raii/device_guard.hpp"
#include "shingle/base/error.hpp"
#include "shingle/cuda/cuda.hpp"
#include "verify/residency.hpp"

namespace shingle::cuda {
namespace {

/// Throws Unsupported if no kernel runs a step, or if NCCL's kernels would wait for SMs without end.
void require_steps_served(const Plan& plan) {
  if (const auto starved = starved_call(plan)) throw Unsupported(*starved);
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      for (const Step& step : lane.steps) require_served(plan, step);
}

void require_timeout(double timeout_us) {
  if (!(timeout_us > 0)) throw InvalidArgument(fmt::format("timeout = {} us must be positive", timeout_us));
}

/// Why the current device cannot run the plan; empty if it can.
std::string refusal(const Plan& plan) {
  try {
    require_steps_served(plan);
    return {};
  } catch (const Unsupported& reason) {
    return reason.what();
  }
}

}  // namespace

CudaExecutable::CudaExecutable(CudaWorld& world, const Plan& plan)
    : world_(world), runner_(new Runner(world, plan), UnlessHopeless{world.shared_health()}) {
  runner_->connect();
  world_.add(*runner_);  // last: no destructor would undo it if a later statement threw
}

CudaExecutable::~CudaExecutable() {
  const Watcher::Hold hold(world_.watcher());
  try {
    if (!world_.health().stopped()) runner_->synchronize();
  } catch (const std::exception&) {  // the world is broken now, and the next call reports it
  }
  world_.remove(*runner_);
}

RunReport CudaExecutable::run(const RunOptions& options) {
  if (options.epochs < 1)
    throw InvalidArgument(fmt::format("epochs = {} must be at least 1", options.epochs));
  require_timeout(options.timeout_us);
  const Watcher::Hold hold(world_.watcher());
  return runner_->run(options);
}

void CudaExecutable::prepare(double timeout_us) {
  require_timeout(timeout_us);
  const Watcher::Hold hold(world_.watcher());
  runner_->prepare(timeout_us);
}

void require_served(const CudaWorld& world, const Plan& plan) {
  if (!world.apart().empty())
    if (const std::string access = remote_access(plan); !access.empty())
      throw Unsupported(
          fmt::format("ranks cannot access each other's memory ({}), but {}", world.apart(), access));
  require_steps_served(plan);
}

std::string CudaWorld::refuses(const Plan& plan) const {
  const DeviceGuard guard(parts_.local.front().device());
  try {
    require_served(*this, plan);
    return {};
  } catch (const Unsupported& reason) {
    return reason.what();
  }
}

std::unique_ptr<Executable> compile(CudaWorld& world, const Plan& plan) {
  require_served(world, plan);
  return std::make_unique<CudaExecutable>(world, plan);
}

std::unique_ptr<Executable> compile(CudaWorld& world, const Plan& plan, std::shared_ptr<CudaArena> arena,
                                    double timeout_us) {
  if (arena == nullptr) throw InvalidArgument("the arena is not one of this world");
  require_timeout(timeout_us);
  if (!world.is_prepared(plan))
    throw InvalidArgument("the plan needs communicators that prepare() did not make for the arena");
  return std::make_unique<CallExecutable>(world, plan, std::move(arena), timeout_us);
}

}  // namespace shingle::cuda

namespace shingle {

std::string cuda_refuses(const Plan& plan) {
  return cuda::refusal(plan);
}

}  // namespace shingle
