// One rank's part of a plan on its device: lanes become streams, steps become commands on them.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/commands/command.hpp"
#include "cuda/commands/library.hpp"
#include "cuda/memory/flag_words.hpp"
#include "cuda/raii/graph.hpp"
#include "cuda/raii/stream.hpp"
#include "lower/launch_program.hpp"
#include "shingle/backend/backend.hpp"
#include "shingle/cuda/cuda.hpp"

namespace shingle::cuda {

/// End events of the epochs in flight. The driver's queues are finite, and a launch into a full queue blocks
/// without a deadline. Callers therefore check full() before they enqueue an epoch.
class Backlog {
 public:
  /// Bounds the epochs in flight to `epochs`.
  explicit Backlog(std::size_t epochs) : ends_(epochs) {}

  int most() const { return static_cast<int>(ends_.size()); }
  /// True if the next epoch must wait until an earlier one has ended.
  bool full() const { return count_ >= ends_.size() && !ends_[count_ % ends_.size()].done(); }
  /// Number of epochs known to have ended. May be called while another thread adds.
  std::size_t ended() const {
    const std::size_t count = count_;
    std::size_t under_way = 0;
    while (under_way < std::min(count, ends_.size()) && !ends_[(count - 1 - under_way) % ends_.size()].done())
      ++under_way;
    return count - under_way;
  }
  std::size_t added() const { return count_; }
  /// True if all added epochs have ended.
  bool empty() const { return count_ == 0 || last().done(); }
  /// Orders all later work of the stream after the last epoch.
  void follow(cudaStream_t stream) const {
    if (count_ > 0) last().make_wait(stream);
  }
  /// Records the end of an epoch that the caller has enqueued to the stream, after all earlier epochs.
  void add(cudaStream_t stream) {
    ends_[count_ % ends_.size()].record(stream);
    ++count_;
  }

 private:
  const Event& last() const { return ends_[(count_ - 1) % ends_.size()]; }

  std::vector<Event> ends_;
  std::atomic<std::size_t> count_{0};
};

/// Runs epochs of one rank. Epochs run in the order of the calls, on any mix of streams.
class RankProgram {
 public:
  /// The rank's device must be current here and in all other functions.
  RankProgram(CudaWorld& world, const Plan& plan, const RankLaunches& launches, const Memory& memory,
              LocalRank& local);

  /// Makes the commands, if user buffers were bound since the last call. Requires that no epoch is in flight
  /// and that the communicators exist. Commands of graphs that the user captured keep their addresses.
  void prepare();
  bool prepared() const { return binding_ && binding_->version == memory_.version(); }
  /// Captures the graphs that replay() launches. All ranks capture together, with no wait pending on their
  /// devices: NCCL may exchange addresses and allocate memory during capture.
  void capture();
  /// True if graphs exist for the buffers that are bound now.
  bool captured() const { return prepared() && !binding_->graphs.empty(); }
  void drop_graphs() noexcept;

  /// Enqueues one epoch after earlier work of `stream`; later work of `stream` follows the epoch.
  /// Asynchronous.
  void enqueue(cudaStream_t stream);
  /// As enqueue(), by launching the captured graph.
  void replay(cudaStream_t stream);
  /// As enqueue(), with timing events around every step, for spans().
  void enqueue_traced(cudaStream_t stream, int epoch);
  /// As enqueue(), into a stream that the user is capturing. Not for plans with two sets of buffers: replays
  /// of the graph would use one set only.
  void lend(cudaStream_t stream);
  bool alternates() const { return parities_ > 1; }
  /// True if a user's graph may replay the present commands.
  bool is_lent() const { return binding_ && binding_->lent; }
  const Backlog& backlog() const { return backlog_; }
  /// True if the device has finished everything that was enqueued, including an epoch that failed halfway.
  bool idle() const;
  /// Traced steps since the last call, in microseconds since `begin`.
  std::vector<Span> spans(const Event& begin);

  cudaStream_t stream() const { return streams_.front().get(); }
  LocalRank& local() const { return local_; }
  /// The words that waits of an epoch poll.
  Watch watch() const { return local_.watch(epoch_word_.get<const std::uint32_t>()); }
  std::int64_t bytes() const;

 private:
  /// Commands of an epoch of one parity, in order; null if a launch has nothing to do.
  using Program = std::vector<std::unique_ptr<Command>>;
  /// All that holds addresses of the bound matrices. It does not change once made: graphs hold addresses of
  /// its tables and workspaces.
  struct Binding {
    std::uint64_t version = 0;  ///< of the memory
    TableMemory table_memory{};
    std::vector<DeviceMemory> workspaces{};  ///< by lane, for cuBLASLt
    Memory::Staged staged{};
    std::vector<Program> programs{};  ///< by parity
    std::vector<Graph> graphs{};      ///< by parity; empty: not captured yet
    bool lent = false;                ///< a user's graph holds addresses of it
    std::int64_t bytes() const;
  };
  struct Traced {
    int lane = 0, step = 0, epoch = 0;
    Event begin, end;
  };

  Program make(Binding& binding, int parity);
  template <class Issue>
  void enqueue_lanes(cudaStream_t stream, int parity, Issue&& issue);
  template <class Enqueue>
  void enqueue_epoch(cudaStream_t stream, Enqueue&& enqueue);

  CudaWorld& world_;
  const Plan& plan_;
  const RankLaunches& launches_;
  const Memory& memory_;
  LocalRank& local_;
  const std::function<void(const CudaStepEvent&)> on_step_;
  int parities_ = 1;
  std::uint64_t epoch_ = 0;  // the next to enqueue
  DeviceMemory epoch_word_;
  DeviceMemory queues_;  // of Context::queues
  FlagWords flags_;
  const std::vector<Event> edges_;
  LibraryCache library_;
  std::unique_ptr<Binding> binding_;
  // Earlier bindings that users' graphs may still use.
  std::vector<std::unique_ptr<Binding>> lent_;
  std::vector<Stream> streams_;  // by lane
  Event begun_;
  std::vector<Event> ended_;  // by lane
  Backlog backlog_;
  unsigned long long last_stream_ = 0;  // id of the last epoch's stream
  std::vector<Traced> traced_;
};

}  // namespace shingle::cuda
