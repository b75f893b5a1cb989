// The CUDA backend: a rank a GPU, all of one process, or one process a GPU. NCCL moves what collectives move.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shingle/backend/backend.hpp"

struct ncclComm;  // ncclComm_t is a pointer to it

namespace shingle {

/// A rank is about to enqueue a step: in each epoch, or when epochs are captured to be replayed.
struct CudaStepEvent {
  int rank = 0;
  int lane = 0;
  int step = 0;
  const std::uint32_t* epoch = nullptr;  ///< in device memory: the number of the epoch that runs there
  void* stream = nullptr;                ///< cudaStream_t: what is enqueued to it comes before the step
};

struct CudaOptions {
  /// Deadline of waits outside a run: for ranks to join, barriers, communicators (30 s at least).
  double timeout_us = 30e6;
  int first_device = 0;  ///< of one process: rank r is on device first_device + r
  /// Called before each step (waits and counts that follow one another are one) in the thread that launches,
  /// for fault tests: it may enqueue a delay, or throw.
  std::function<void(const CudaStepEvent&)> on_step{};
};

/// A world of `ranks` GPUs of this process; or, in a process that torchrun, mpirun or srun has started as one
/// of several (find_launcher), this process as one rank of them, on the device of its local rank: collective,
/// and `ranks` 0 takes as many as there are. Processes find each other at MASTER_ADDR:MASTER_PORT; the ids of
/// communicators pass there, too. Throws Unsupported where there are not so many GPUs, InvalidArgument where
/// the numbers do not fit, Timeout with the ranks that are missing, CudaError, NcclError.
///
/// When a run fails, run() throws, waits on the devices end, communicators are aborted, and the other
/// processes are told and throw too.
std::unique_ptr<World> make_cuda_world(int ranks, const CudaOptions& options = {});

/// A world on communicators that exist: those of this process's ranks, all of one clique, each with its
/// device. They stay the caller's, and have to outlive the world; plans run on communicators split off them.
/// Collective over the clique.
std::unique_ptr<World> make_cuda_world(std::span<ncclComm* const> communicators,
                                       const CudaOptions& options = {});

/// GPUs here as planners see them: the profile h200x8 where they are such, else what the device says of
/// itself. Throws Unsupported without a GPU.
Machine cuda_machine(int ranks, const CudaOptions& options = {});

/// The tiles that this build's kernels of the instrumented GEMM have for the GPUs here. Throws Unsupported
/// without a GPU.
std::vector<TileShape> cuda_tiles(const CudaOptions& options = {});

/// Why no kernel of this build runs a step of the plan on the current GPU; empty: they all run. Throws
/// CudaError without a GPU.
std::string cuda_refuses(const Plan& plan);

/// How many ranks a world has if nobody says: the processes of the launcher, else the GPUs here.
int default_cuda_ranks();

struct CudaDevice {
  std::string name;
  int sms = 0;
  int major = 0, minor = 0;  ///< compute capability
  std::string gemm;          ///< which family of the GEMM's kernels it runs: "sm80"
  double memory_bytes = 0;
};

/// What `shingle info` shows of CUDA.
struct CudaInfo {
  std::vector<CudaDevice> devices;
  std::string missing;  ///< why there are none
  std::string driver;   ///< the newest CUDA that the driver serves: "13.0"; empty without a driver
  std::string runtime;
  std::string nccl;
  /// The kernels of the instrumented GEMM in this build: "sm80 128x256 128x128 64x128".
  std::vector<std::string> gemm;
};
CudaInfo cuda_info();
/// The same on one line a fact.
std::string describe(const CudaInfo& info);

}  // namespace shingle
