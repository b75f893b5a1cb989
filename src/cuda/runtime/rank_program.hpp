// One rank's part of a plan on its device: lanes become streams, steps become what is enqueued on them.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/commands/command.hpp"
#include "cuda/commands/hand_over_events.hpp"
#include "cuda/commands/library.hpp"
#include "cuda/memory/flag_words.hpp"
#include "cuda/raii/graph.hpp"
#include "cuda/raii/stream.hpp"
#include "shingle/backend/backend.hpp"
#include "shingle/cuda/cuda.hpp"

namespace shingle::cuda {

/// The ends of the last epochs in the device's queues. There is an end to these queues, and a launch that
/// finds them full blocks for as long as it likes: whoever enqueues asks first.
class Backlog {
 public:
  /// Of as many epochs at once.
  explicit Backlog(std::size_t epochs) : ends_(epochs) {}

  int most() const { return static_cast<int>(ends_.size()); }
  /// Whether another epoch has to wait for an earlier one.
  bool full() const { return count_ >= ends_.size() && !ends_[count_ % ends_.size()].done(); }
  /// How many have ended, as far as is known; also while another thread adds.
  std::size_t ended() const {
    const std::size_t count = count_;
    std::size_t under_way = 0;
    while (under_way < std::min(count, ends_.size()) && !ends_[(count - 1 - under_way) % ends_.size()].done())
      ++under_way;
    return count - under_way;
  }
  std::size_t added() const { return count_; }
  /// Whether all of them are done.
  bool empty() const { return count_ == 0 || last().done(); }
  /// What is enqueued to the stream from now on comes behind the last of them.
  void follow(cudaStream_t stream) const {
    if (count_ > 0) last().make_wait(stream);
  }
  /// An epoch has been enqueued to the stream, behind all others.
  void add(cudaStream_t stream) {
    ends_[count_ % ends_.size()].record(stream);
    ++count_;
  }

 private:
  const Event& last() const { return ends_[(count_ - 1) % ends_.size()]; }

  std::vector<Event> ends_;
  std::atomic<std::size_t> count_{0};
};

/// Epochs of one rank follow one another in the order of the calls, whatever streams they are given.
class RankProgram {
 public:
  /// The rank's device is current, as for all that follows.
  RankProgram(CudaWorld& world, const Plan& plan, const Memory& memory, LocalRank& local);

  /// Makes the commands, where user buffers have been bound anew since; nothing is under way then.
  /// Communicators exist. What somebody else has captured before stays as it was.
  void prepare();
  bool prepared() const { return binding_ && binding_->version == memory_.version(); }
  /// Captures what replay() launches. All ranks do so together, with nothing that waits on their devices: the
  /// collective library may exchange addresses and ask for memory then.
  void capture();
  /// Whether replay() has something to launch that is still true.
  bool captured() const { return prepared() && !binding_->graphs.empty(); }
  void drop_graphs() noexcept;

  /// One epoch, behind what is in `stream`, which then continues when it is done. Asynchronous.
  void enqueue(cudaStream_t stream);
  /// The same by the graph that was captured.
  void replay(cudaStream_t stream);
  /// The same, with an event before and behind every step, for spans().
  void enqueue_traced(cudaStream_t stream, int epoch);
  /// The same into a stream that somebody else captures; not where epochs alternate between two sets of
  /// buffers, as what is captured would use one of them again and again.
  void lend(cudaStream_t stream);
  bool alternates() const { return parities_ > 1; }
  /// Whether somebody's graph may replay what the present commands hold addresses of.
  bool is_lent() const { return binding_ && binding_->lent; }
  const Backlog& backlog() const { return backlog_; }
  /// Whether nothing is left on the device of what was enqueued, also of an epoch that failed halfway.
  bool idle() const;
  /// What was traced since the last call, in microseconds since `begin`.
  std::vector<Span> spans(const Event& begin);

  cudaStream_t stream() const { return streams_.front().get(); }
  LocalRank& local() const { return local_; }
  /// What waits in front of an epoch look at.
  Watch watch() const { return local_.watch(epoch_word_.get<const std::uint32_t>()); }
  std::int64_t bytes() const;

 private:
  /// Steps [first, last) of a lane.
  struct Item {
    std::size_t first = 0, last = 0;
    std::unique_ptr<Command> command;  ///< null: nothing to do
  };
  /// The steps of an epoch of one parity, by lane.
  using Program = std::vector<std::vector<Item>>;
  /// All that holds addresses of the matrices that are bound. It does not change once it is made, as graphs
  /// hold its own addresses in turn.
  struct Binding {
    std::uint64_t version = 0;  ///< of the memory
    Arena arena{};
    std::vector<DeviceMemory> workspaces{};  ///< by lane, for the library's products
    Memory::Staged staged{};
    std::vector<Program> programs{};  ///< by parity
    std::vector<Graph> graphs{};      ///< by parity; empty: not captured yet
    bool lent = false;                ///< somebody else's graph holds addresses of it
    std::int64_t bytes() const;
  };
  struct Traced {
    int lane = 0, step = 0, epoch = 0;
    Event begin, end;
  };

  Program make(Binding& binding, int parity);
  template <class Issue>
  void enqueue_lanes(cudaStream_t stream, int parity, Issue&& issue);
  template <class Launch>
  void enqueue_epoch(cudaStream_t stream, Launch&& launch);

  CudaWorld& world_;
  const Plan& plan_;
  const Memory& memory_;
  LocalRank& local_;
  const std::function<void(const CudaStepEvent&)> on_step_;
  int parities_ = 1;
  std::uint64_t epoch_ = 0;  // that is enqueued next
  DeviceMemory epoch_word_;
  DeviceMemory queues_;  // as Context has them
  FlagWords flags_;
  const HandOverEvents hand_overs_;
  LibraryCache library_;
  std::unique_ptr<Binding> binding_;
  std::vector<std::unique_ptr<Binding>> lent_;  // earlier ones, for as long as graphs may hold them
  std::vector<Stream> streams_;                 // by lane
  Event begun_;
  std::vector<Event> ended_;  // by lane
  Backlog backlog_;
  unsigned long long last_stream_ = 0;  // by its id: where the last epoch went
  std::vector<Traced> traced_;
};

}  // namespace shingle::cuda
