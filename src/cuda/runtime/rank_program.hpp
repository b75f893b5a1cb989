// One rank's part of a plan on its device: lanes become streams, steps become commands on them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "commands.hpp"
#include "cuda/commands/library.hpp"
#include "cuda/memory/flag_words.hpp"
#include "cuda/raii/graph.hpp"
#include "cuda/raii/stream.hpp"
#include "lower/launch_program.hpp"
#include "rank_queue.hpp"
#include "shingle/backend/backend.hpp"
#include "shingle/cuda/cuda.hpp"

namespace shingle::cuda {

/// Runs epochs of one rank. Epochs run in the order of the calls, on any mix of streams.
class RankProgram {
 public:
  /// The rank's device must be current here and in all other functions.
  RankProgram(CudaWorld& world, const Plan& plan, const RankLaunches& launches, const Memory& memory,
              LocalRank& local, const WaitTimeout& timeout);

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
  /// Number of launches of an epoch, about.
  std::size_t launches() const { return launches_.launches.size() + 1; }
  RankQueue& queue() { return queue_; }
  const RankQueue& queue() const { return queue_; }
  /// Traced steps since the last call, in microseconds since `begin`.
  std::vector<Span> spans(const Event& begin);

  cudaStream_t stream() const { return queue_.stream(); }
  LocalRank& local() const { return local_; }
  /// The words that waits of an epoch poll.
  Watch watch() const { return local_.watch(epoch_word_.get<const std::uint32_t>(), timeout_); }
  std::int64_t bytes() const;

 private:
  /// All that holds addresses of the bound matrices. It does not change once made: graphs hold addresses of
  /// its tables and workspaces.
  struct Binding {
    std::uint64_t version = 0;  ///< of the memory
    TableMemory table_memory{};
    std::vector<Scratch> workspaces{};  ///< by lane
    Memory::Staged staged{};
    Outputs written{};
    std::vector<Commands> programs{};  ///< by parity
    std::vector<Graph> graphs{};       ///< by parity; empty: not captured yet
    bool lent = false;                 ///< a user's graph holds addresses of it
    std::int64_t bytes() const;
  };
  struct Traced {
    int lane = 0, step = 0, epoch = 0;
    Event begin, end;
  };

  template <class Issue>
  void enqueue_lanes(cudaStream_t stream, int parity, Issue&& issue);
  template <class Enqueue>
  void enqueue_epoch(cudaStream_t stream, Enqueue&& enqueue);

  CudaWorld& world_;
  const Plan& plan_;
  const RankLaunches& launches_;
  const Memory& memory_;
  LocalRank& local_;
  const WaitTimeout& timeout_;
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
  RankQueue queue_;
  std::vector<Traced> traced_;
};

}  // namespace shingle::cuda
