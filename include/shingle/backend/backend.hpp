// The contract of a backend: a World of ranks with memory, and Executables that run a plan on it.
//
// A backend holds all ranks in one process (threads) or a single rank in each of many processes (MPI). The
// same calls serve both: arguments and results "by rank" are of the local ranks only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle {

/// Owner of a block of a rank's device memory (host memory on the host backend). Move-only; the destructor
/// frees it. Access it by World::download and World::upload, unless Capabilities::host_accessible.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::shared_ptr<void> memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&&) noexcept = default;
  DeviceBuffer& operator=(DeviceBuffer&&) noexcept = default;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const noexcept { return memory_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<void> memory_;
  std::size_t bytes_ = 0;
};

/// A row-major matrix in a rank's memory: element (row, col) is element row · row_stride + col of `data`.
struct MatrixMemory {
  void* data = nullptr;
  std::int64_t row_stride = 0;  ///< elements from a row to the next; 0: densely packed
  /// Rows that the matrix has: of experts with a capacity, a rank may have fewer tokens than the plan; -1: as
  /// many as the plan's.
  std::int64_t rows = -1;

  MatrixMemory() = default;
  MatrixMemory(void* dense) : data(dense) {}  // NOLINT: most matrices are dense
  MatrixMemory(void* first, std::int64_t stride, std::int64_t count = -1)
      : data(first), row_stride(stride), rows(count) {}
  bool operator==(const MatrixMemory&) const = default;
};

/// A matrix of a call, on a rank.
struct CallMatrix {
  int rank = 0;
  Role role = Role::a;
  MatrixMemory memory{};

  bool operator==(const CallMatrix&) const = default;
};

/// What ranks must agree on when they make a call.
struct CallTag {
  std::int32_t op = 0;       ///< number of the operator
  std::int64_t m = 0;        ///< of the call
  std::uint32_t number = 0;  ///< of the call, counted by each rank

  bool operator==(const CallTag&) const = default;
};

/// A symmetric heap: as much memory on each rank, which all ranks may access. A matrix in it that peers
/// access has the same offset on all ranks.
class Heap {
 public:
  virtual ~Heap() = default;
  virtual std::int64_t bytes() const = 0;  ///< of a rank
  virtual void* data(int rank) const = 0;  ///< of a local rank
};

/// Staging memory of all ranks, which the internal buffers of many plans share: at most one epoch uses it at
/// a time on a rank. Every buffer of a plan has the same offset on all ranks.
class Arena {
 public:
  virtual ~Arena() = default;
  virtual std::int64_t bytes() const = 0;  ///< of a rank
  virtual void* data(int rank) const = 0;  ///< of a local rank
  /// The last epoch of each local rank ends with the work that is now in its stream (see
  /// Executable::enqueue()). Later epochs wait for it.
  virtual void extend(std::span<void* const> streams) = 0;
};

/// Rows and columns of a tile.
struct TileShape {
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  bool operator==(const TileShape&) const = default;
};

/// How to time runs, so that they are comparable.
struct Timing {
  /// Target time of a run. Much shorter runs are noise, much longer ones heat the device.
  double run_us = 3e3;
  /// Idle time before a run that multiplies, so that it starts with the clocks of a cool device.
  double rest_us = 0;
};

/// What a World supports. compile() refuses a plan that needs more, with the reason.
struct Capabilities {
  bool remote_memory = false;        ///< a rank may load, store and count in another rank's memory
  std::vector<DType> native_dtypes;  ///< multiplied without widening, the best first
  bool host_accessible = true;       ///< the host may read and write a DeviceBuffer by its pointer
  /// Tiles of the backend's own GEMM kernel, if it has one beside cuBLASLt. Empty: any tile, computed by
  /// oneDNN.
  std::vector<TileShape> tiles{};
  Timing timing{};
  /// Settings of a Collective that take effect beside its workers: algorithm and protocol, and chunk sizes.
  bool algorithms = false, chunks = false;
};

/// One interval of a run on the world's clock, for timelines.
struct Span {
  std::int32_t rank = 0;
  std::int32_t lane = 0;
  std::int32_t step = 0;  ///< index in the lane
  /// Group of the tiles, if the step is tiled and notifies or is gated by groups; else -1.
  std::int32_t group = -1;
  std::int32_t epoch = 0;
  double begin_us = 0;
  double end_us = 0;
};

struct RunOptions {
  int epochs = 1;            ///< back to back, with no barrier between ranks
  double timeout_us = 30e6;  ///< deadline of every single wait
  bool trace = false;        ///< collect spans
};

struct RunReport {
  double elapsed_us = 0;    ///< first begin to last end, over all ranks of the world and all epochs
  std::vector<Span> spans;  ///< of all ranks, on every process; only if traced
};

/// A plan compiled for a World. Bind every user buffer of every local rank before the first run.
class Executable {
 public:
  virtual ~Executable() = default;

  /// `memory` holds the rank's part of the plan's buffer. It must stay allocated for each epoch until the
  /// next bind(). Memory allocated anew needs a bind() even if it has the address of the former. A matrix
  /// that is not dense is copied in each epoch.
  virtual void bind(int rank, Role role, const MatrixMemory& memory) = 0;

  /// Runs the plan. Collective over the world's processes. Returns when all local ranks are done. Throws
  /// Timeout with the diagnosis if a wait passes its deadline or another rank fails. The World is then
  /// broken, and every later run throws.
  virtual RunReport run(const RunOptions& options = {}) = 0;

  /// Prepares enqueue(). Call it after the first bind() of all matrices, and again after any later bind().
  /// Collective over the world's processes, even if only one of them has bound a matrix. run() calls it
  /// itself. `timeout_us` is the deadline of every single wait of enqueued epochs.
  ///
  /// Throws the reason if the plan cannot run. Nothing has then run, and the world is unchanged.
  virtual void prepare([[maybe_unused]] double timeout_us = 30e6) {}

  /// Enqueues one epoch on streams of the devices (CUDA: cudaStream_t) and returns at once. It takes one
  /// stream for each local rank, in the order of local_ranks(). The epoch starts after earlier work of its
  /// stream, and later work waits for it. Epochs run in the order of the calls, on any streams. All processes
  /// must make the same calls. The call waits for the end of an epoch if many are in flight; two always fit.
  ///
  /// The next call of any kind, or synchronize(), throws a failure on the device. The World is then broken,
  /// and the outputs since the previous call are void.
  ///
  /// If the streams are being captured, the epoch becomes part of the capture. All streams of all ranks must
  /// then be capturing. Each replay is an epoch on the matrices that were bound at capture, also after a
  /// later bind(). Only its stream orders a replay with other epochs. Destroy the graph before the
  /// executable.
  ///
  /// Throws InvalidArgument without a prior prepare(), or if only some of the streams are being captured.
  /// Throws Unsupported if the backend has no streams or the plan cannot be captured.
  virtual void enqueue(std::span<void* const> streams);

  /// As above, with these matrices, for this epoch alone: all matrices of all local ranks. Without streams,
  /// epochs run on streams of the arena. Requires no prepare() and never communicates, so processes may be
  /// any number of calls apart. Only for executables that were compiled into an arena. Epochs of all
  /// executables of an arena run in the order of these calls, which must be the same on all ranks.
  ///
  /// Ranks that disagree on the tag make different calls: an error that names the rank.
  virtual void enqueue(const CallTag& tag, std::span<const CallMatrix> matrices,
                       std::span<void* const> streams);

  /// True if a captured graph may hold the executable's commands, so that it must outlive the graph.
  virtual bool captured() const { return false; }

  /// Waits until enqueued epochs, except captured ones, are done on the local ranks. Work in front of them in
  /// their streams counts against the deadline. Throws Timeout as run() does.
  virtual void synchronize() {}

  /// Memory that the executable holds for a rank, in bytes.
  virtual std::int64_t internal_bytes(int rank) const = 0;

  /// Overwrites the internal buffers of the local ranks with NaN, so that no result can come from an earlier
  /// run.
  virtual void poison() = 0;
};

class World {
 public:
  virtual ~World() = default;

  virtual std::string backend() const = 0;  ///< "host", …
  virtual int size() const = 0;
  virtual std::vector<int> local_ranks() const = 0;
  virtual const Machine& machine() const = 0;
  virtual Capabilities capabilities() const = 0;
  /// Why compile() would refuse the plan as Unsupported; empty if it would not. The same on all processes.
  virtual std::string refuses([[maybe_unused]] const Plan& plan) const { return {}; }

  virtual DeviceBuffer allocate(int rank, std::size_t bytes) = 0;

  /// Copies from host memory to a local rank's memory. upload(), download() and fill() are done when they
  /// return. They must not overlap a run. Several threads may call them at once.
  virtual void upload([[maybe_unused]] int rank, void* device, const void* host, std::size_t bytes) {
    if (bytes > 0) std::memcpy(device, host, bytes);
  }
  /// Copies from a local rank's memory to host memory.
  virtual void download([[maybe_unused]] int rank, void* host, const void* device, std::size_t bytes) {
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  /// Sets each byte of a local rank's memory.
  virtual void fill([[maybe_unused]] int rank, void* device, std::uint8_t value, std::size_t bytes) {
    if (bytes > 0) std::memset(device, value, bytes);
  }

  /// Throws Unsupported if the plan needs what the world cannot do. Throws InvalidArgument if it is for
  /// another world.
  virtual std::unique_ptr<Executable> compile(const Plan& plan) = 0;

  /// Collective; every process asks for the same number of bytes.
  virtual std::shared_ptr<Heap> make_heap(std::int64_t bytes);
  /// Staging memory for compile(). Collective; every process asks for the same number of bytes. Peers may
  /// access matrices of calls that lie in `heap`; null: they access none.
  virtual std::shared_ptr<Arena> make_arena(std::int64_t bytes, std::shared_ptr<Heap> heap = nullptr);
  /// Makes what ranks must make together for such a plan, as communicators. Collective. Also for other plans
  /// with the same communicators and as many lanes.
  virtual void prepare([[maybe_unused]] const Plan& plan,
                       [[maybe_unused]] const std::shared_ptr<Arena>& arena) {}
  /// True if the world has all that prepare() makes for the plan.
  virtual bool is_prepared([[maybe_unused]] const Plan& plan) const { return true; }
  /// As above, with the internal buffers in an arena of this world. Local: no process waits for another. All
  /// processes must compile the same plans in the same order, each proven for Setting::context. Throws
  /// InvalidArgument if the plan needs more memory than the arena has, or what prepare() has not made.
  /// `timeout_us` is the deadline of every single wait.
  virtual std::unique_ptr<Executable> compile(const Plan& plan, const std::shared_ptr<Arena>& arena,
                                              double timeout_us);

  /// Barrier over all processes.
  virtual void barrier() = 0;
  /// Maximum over all processes of each value.
  virtual std::vector<double> all_max(std::vector<double> values) = 0;
};

}  // namespace shingle
