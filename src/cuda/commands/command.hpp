// A step of a plan, made ready: what it takes to enqueue it on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

#include "cuda/kernels/hooks.hpp"
#include "cuda/nccl/communicators.hpp"
#include "shingle/plan/plan.hpp"
#include "tables.hpp"

namespace shingle::cuda {

class CudaWorld;
class FlagWords;
class HandOverEvents;
class LibraryCache;

class Command {
 public:
  virtual ~Command() = default;
  virtual void enqueue(cudaStream_t stream) = 0;
};

/// One after the other; null: nothing to do.
class Sequence final : public Command {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Command>> parts) : parts_(std::move(parts)) {}
  void enqueue(cudaStream_t stream) override {
    for (const auto& part : parts_)
      if (part) part->enqueue(stream);
  }

 private:
  std::vector<std::unique_ptr<Command>> parts_;
};

/// What the commands of one rank are made from. Its device is current while they are made and enqueued.
struct Context {
  CudaWorld& world;
  const Plan& plan;
  const Memory& memory;
  Arena& arena;
  LibraryCache& library;
  DeviceMemory& workspace;  ///< of the lane; grows with what its commands need
  int rank = 0;
  int parity = 0;
  Watch watch{};
  std::uint32_t* queues = nullptr;  ///< by queue of the plan: items that were claimed, ever growing
  const HandOverEvents* hand_overs = nullptr;
  FlagWords* flags = nullptr;  ///< in copy lanes, whose counts are copies as well
  bool last = false;           ///< nothing follows in the lane
  bool by_host = false;        ///< in lanes whose waits and counts are a thread's of the host
  bool early = false;          ///< a kernel may begin beside the one before it in the lane

  Tables tables() const { return {plan, memory, arena, parity}; }
};

/// Throws Unsupported with the reason where this backend cannot carry the step out.
void require_served(const Plan& plan, const Step& step);
void require_served(const Plan& plan, const Elementwise& step);
void require_served(const Plan& plan, const Exchange& step);

/// What carries a step out; null where there is nothing to do.
std::unique_ptr<Command> make_command(const Context& context, const Gemm& step);
std::unique_ptr<Command> make_command(const Context& context, const Elementwise& step);
std::unique_ptr<Command> make_command(const Context& context, const Fill& step);
std::unique_ptr<Command> make_command(const Context& context, const Collective& step);
std::unique_ptr<Command> make_command(const Context& context, const Exchange& step);
std::unique_ptr<Command> make_command(const Context& context, const Copy& step);
std::unique_ptr<Command> make_command(const Context& context, const Broadcast& step);
std::unique_ptr<Command> make_command(const Context& context, const Swap& step);
/// Passes that follow one another in a lane and are one (plan/steps.hpp). Group by group: the rows of all of
/// them move when the first group has come, and none waits until another has seen the last.
std::unique_ptr<Command> make_command(const Context& context, const std::vector<Elementwise>& steps);
/// Awaits and notifies that follow one another in a lane, as one.
std::unique_ptr<Command> make_sync_command(const Context& context, const std::vector<Step>& steps);

/// The communicator of a step, by what it may take.
CommKey comm_key(const Plan& plan, std::int32_t communicator, const Resources& resources);

/// What a GEMM needs that cuBLASLt cannot give it, and so whether it is the instrumented kernel.
bool instrumented(const Gemm& step);
/// A GEMM by the library: no hooks, contiguous runs of rows.
std::unique_ptr<Command> make_library_gemm(const Context& context, const Gemm& step);

}  // namespace shingle::cuda
