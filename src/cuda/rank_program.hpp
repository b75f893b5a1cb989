// One rank's part of a plan on its device: lanes become streams, steps become what is enqueued on them.
#pragma once

#include <memory>
#include <vector>

#include "cuda/command.hpp"
#include "cuda/flag_words.hpp"
#include "cuda/library.hpp"
#include "cuda/raii/graph.hpp"
#include "cuda/raii/stream.hpp"
#include "shingle/backend/backend.hpp"

namespace shingle::cuda {

class RankProgram {
 public:
  RankProgram(CudaWorld& world, const Plan& plan, const Memory& memory, LocalRank& local);

  /// Makes the commands, where user buffers have been bound anew since. Communicators exist.
  void prepare();
  bool prepared() const { return !programs_.empty() && prepared_ == memory_.version(); }
  /// Whether replay() has nothing to launch, or something that is no longer true.
  bool stale() const { return graphs_.empty(); }
  void drop_graphs() noexcept { graphs_.clear(); }
  /// Captures what replay() launches, anew. All ranks do so together, with nothing that waits
  /// on their devices: the collective library may exchange addresses and ask for memory then.
  void capture();

  /// One epoch, behind what is in `stream`, which then continues when it is done. Asynchronous; may be
  /// captured.
  void enqueue(cudaStream_t stream);
  /// The same by the graph that was captured.
  void replay(cudaStream_t stream);
  /// The same, with an event before and behind every step, for spans().
  void enqueue_traced(cudaStream_t stream, int epoch);
  /// What was traced since the last call, in microseconds since `begin`.
  std::vector<Span> spans(const Event& begin);

  cudaStream_t stream() const { return streams_.front().get(); }
  LocalRank& local() { return local_; }
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
  struct Traced {
    int lane = 0, step = 0, epoch = 0;
    Event begin, end;
  };

  Program make(int parity);
  template <class Issue>
  void enqueue_lanes(cudaStream_t stream, int parity, Issue&& issue);
  int next_parity() { return parities_ > 1 ? static_cast<int>(epoch_++ % 2) : 0; }

  CudaWorld& world_;
  const Plan& plan_;
  const Memory& memory_;
  LocalRank& local_;
  int parities_ = 1;
  std::uint64_t epoch_ = 0;  // that is enqueued next
  std::uint64_t prepared_ = 0;
  DeviceMemory epoch_word_;
  DeviceMemory queues_;  // as Context has them
  FlagWords flags_;
  std::unique_ptr<Arena> arena_;
  LibraryCache library_;
  std::vector<Program> programs_;  // by parity
  std::vector<Stream> streams_;    // by lane
  Event begun_;
  std::vector<Event> ended_;   // by lane
  std::vector<Graph> graphs_;  // by parity; empty: not captured yet
  std::vector<Traced> traced_;
};

}  // namespace shingle::cuda
