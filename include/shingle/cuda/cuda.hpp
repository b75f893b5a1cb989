// The CUDA backend: one GPU for each rank, in one process or in one process for each GPU. NCCL runs the
// collectives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shingle/backend/backend.hpp"
#include "shingle/backend/bootstrap.hpp"

struct ncclComm;  // ncclComm_t is a pointer to it

namespace shingle {

/// A rank is about to enqueue a step: in each epoch, or once if epochs are captured for replay.
struct CudaStepEvent {
  int rank = 0;
  int lane = 0;
  int step = 0;
  const std::uint32_t* epoch = nullptr;  ///< in device memory: the number of the epoch that runs there
  void* stream = nullptr;  ///< cudaStream_t: work that the hook enqueues on it runs before the step
};

struct CudaOptions {
  /// Deadline of waits outside a run: for ranks to join, for barriers, and for communicators (30 s at least).
  double timeout_us = 30e6;
  int first_device = 0;  ///< of one process: rank r is on device first_device + r
  /// Hook for fault tests, called in the launching thread before each step. Consecutive awaits and notifies
  /// count as one step. The hook may enqueue a delay, or throw.
  std::function<void(const CudaStepEvent&)> on_step{};
  std::uint32_t first_epoch = 0;  ///< for tests: number of the first call of a context; it wraps at 2^32
};

/// A world of `ranks` GPUs. Alone, this process holds all of them. In a process that torchrun, mpirun or srun
/// started as one of several (find_launcher), it is one rank, on the device of its local rank. The call is
/// then collective, and `ranks` 0 takes as many as there are. Processes find each other at
/// MASTER_ADDR:MASTER_PORT; NCCL's communicator ids also pass there.
///
/// Throws Unsupported if there are fewer GPUs, InvalidArgument if the numbers do not fit, Timeout with the
/// missing ranks, CudaError, NcclError. When a run fails, run() throws, waits on the devices end, and
/// communicators are aborted. The other processes are told and throw too.
std::unique_ptr<World> make_cuda_world(int ranks, const CudaOptions& options = {});

/// A world of the group's ranks: this process is one of them, on the device that the bootstrap names. Groups
/// of a program may overlap, and a process may have several worlds. Collective over the group.
std::unique_ptr<World> make_cuda_world(const Bootstrap& bootstrap, const CudaOptions& options = {});

/// A world on existing communicators: those of this process's ranks, all of one clique, each with its device.
/// The caller keeps them, and they must outlive the world. Plans run on communicators split off them.
/// Collective over the clique.
std::unique_ptr<World> make_cuda_world(std::span<ncclComm* const> communicators,
                                       const CudaOptions& options = {});

/// The GPUs of this machine for planners: the profile h200x8 if they are H200, else the device properties.
/// Throws Unsupported without a GPU.
Machine cuda_machine(int ranks, const CudaOptions& options = {});

/// Tile shapes of this build's instrumented GEMM kernels for the GPUs of this machine. Throws Unsupported
/// without a GPU.
std::vector<TileShape> cuda_tiles(const CudaOptions& options = {});

/// Why this build cannot run the plan on the current GPU; empty if it can. Reasons are a step for which there
/// is no kernel, and gated steps that leave no SM to a collective. Throws CudaError without a GPU.
std::string cuda_refuses(const Plan& plan);

/// Default number of ranks of a world: the processes of the launcher, else the GPUs of this machine.
int default_cuda_ranks();

struct CudaDevice {
  std::string name;
  int sms = 0;
  int major = 0, minor = 0;  ///< compute capability
  std::string gemm;          ///< family of GEMM kernels that it runs: "sm80"
  double memory_bytes = 0;
};

/// The CUDA part of `shingle info`.
struct CudaInfo {
  std::vector<CudaDevice> devices;
  std::string missing;  ///< why there are no devices
  std::string driver;   ///< newest CUDA that the driver serves: "13.0"; empty without a driver
  std::string runtime;
  std::string nccl;
  /// Instrumented GEMM kernels of this build: "sm80 128x256 128x128 64x128".
  std::vector<std::string> gemm;
};
CudaInfo cuda_info();
/// One line for each fact.
std::string describe(const CudaInfo& info);

}  // namespace shingle
