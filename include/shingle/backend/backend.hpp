// The contract of a backend: a World of ranks with memory, and Executables that run a plan on it.
//
// The same calls serve a backend that holds all ranks in one process (threads) and one that holds a single
// rank of many processes (MPI): whatever is "by rank" concerns the local ranks only.
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

/// Owner of a block of a rank's device memory (host memory on the host backend). Move-only, freed on
/// destruction. Read and written by World::download and World::upload, unless the host can reach it.
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

/// Rows and columns of a tile.
struct TileShape {
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  bool operator==(const TileShape&) const = default;
};

/// How runs are timed, so that one is like another.
struct Timing {
  double run_us = 3e3;  ///< that a run should take: far shorter ones are noise, far longer ones heat a device
  double rest_us = 0;   ///< idle before a run that multiplies: it finds the clocks of a cool device
};

/// What a World can do; a plan that needs more is refused at compile() with the reason.
struct Capabilities {
  bool remote_memory = false;        ///< a rank may load, store and count in another's memory
  std::vector<DType> native_dtypes;  ///< multiplied without widening, the best first
  bool host_accessible = true;       ///< the host may read and write a DeviceBuffer by its pointer
  /// Of which products are tiled, by a kernel of its own beside a library's; empty: any, as the library does.
  std::vector<TileShape> tiles{};
  Timing timing{};
};

/// One interval of a run on the clock of the world, for timelines.
struct Span {
  std::int32_t rank = 0;
  std::int32_t lane = 0;
  std::int32_t step = 0;  ///< in the lane
  std::int32_t group =
      -1;  ///< of a tiled step that notifies or is gated by groups: the group whose tiles these are
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
  double elapsed_us = 0;    ///< first begin to last end over all ranks of the world and all epochs
  std::vector<Span> spans;  ///< of all ranks (on every process), when traced
};

/// A plan, compiled for a World. Bind every user buffer of every local rank before the first run.
class Executable {
 public:
  virtual ~Executable() = default;

  /// `memory` holds the rank's part of the plan's buffer, row-major and densely packed; it must stay valid.
  virtual void bind(int rank, Role role, void* memory) = 0;

  /// Runs the plan; collective over the world's processes. Returns when all local ranks are done.
  /// Throws Timeout with the diagnosis when a wait passes its deadline or another rank fails; the World is
  /// then broken and every later run throws.
  virtual RunReport run(const RunOptions& options = {}) = 0;

  /// Makes ready what enqueue() needs: after the first bind() of all matrices, and whenever one has been
  /// bound anew. Collective over the world's processes, also where only one of them has bound anything; run()
  /// does it by itself. `timeout_us` is the deadline of every single wait of the epochs that are enqueued.
  /// Throws what keeps the plan from running; nothing has run then, and the world is as it was.
  virtual void prepare([[maybe_unused]] double timeout_us = 30e6) {}

  /// One epoch on streams of the devices (for CUDA: cudaStream_t), one for each local rank in the order of
  /// local_ranks(): behind what is in the stream, and before what comes into it later. Returns at once.
  /// Epochs follow one another in the order of the calls, whatever their streams; all processes make the same
  /// calls. A failure on the device is thrown by the next call of whatever kind, or by synchronize(); the
  /// World is then broken, and the outputs since the call before are void.
  ///
  /// Streams that are being captured get the epoch as part of that capture: all of them, on all ranks alike.
  /// Each replay is an epoch then, on the matrices that were bound at the time of the capture, also once
  /// others are bound; in order with other epochs it is only by its stream. The graph goes before the
  /// executable. Throws InvalidArgument where prepare() has not been called, Unsupported where there are no
  /// streams, or where the plan cannot be captured.
  virtual void enqueue(std::span<void* const> streams);

  /// Waits until the epochs that were enqueued, other than in a capture, are done on the local ranks. What is
  /// in front of them in their streams counts against the deadline, too. Throws Timeout as run() does.
  virtual void synchronize() {}

  /// Whether peers do not reach a matrix that is bound to any rank, although the plan has them do so: each
  /// epoch then copies all of it, before its first step or behind its last. Collective over the world's
  /// processes.
  virtual bool copies_whole() { return false; }

  /// Memory that the executable holds for a rank, in bytes.
  virtual std::int64_t internal_bytes(int rank) const = 0;

  /// Overwrites the internal buffers of the local ranks with NaN, so that a result cannot come from an
  /// earlier run.
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

  virtual DeviceBuffer allocate(int rank, std::size_t bytes) = 0;

  /// Copies from the host's memory to a local rank's. This and the next two are done when they return, must
  /// not overlap a run, and may be called by several threads at once.
  virtual void upload([[maybe_unused]] int rank, void* device, const void* host, std::size_t bytes) {
    if (bytes > 0) std::memcpy(device, host, bytes);
  }
  /// Copies from a local rank's memory to the host's.
  virtual void download([[maybe_unused]] int rank, void* host, const void* device, std::size_t bytes) {
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  /// Sets each byte of a local rank's memory.
  virtual void fill([[maybe_unused]] int rank, void* device, std::uint8_t value, std::size_t bytes) {
    if (bytes > 0) std::memset(device, value, bytes);
  }

  /// Throws Unsupported when the plan needs what the world cannot do, InvalidArgument when it is for another
  /// world.
  virtual std::unique_ptr<Executable> compile(const Plan& plan) = 0;

  /// All processes wait for each other.
  virtual void barrier() = 0;
  /// Maximum over all processes of each value.
  virtual std::vector<double> all_max(std::vector<double> values) = 0;
};

}  // namespace shingle
