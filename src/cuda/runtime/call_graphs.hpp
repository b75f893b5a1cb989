// Graphs of a plan's calls on a rank: launching one costs less than launching its commands one by one.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "cuda/raii/graph.hpp"
#include "cuda/raii/stream.hpp"
#include "shingle/backend/backend.hpp"

namespace shingle::cuda {

/// A graph holds the addresses of its matrices, and its copies their allocations. Layers call a plan with
/// matrices of their own, again in each step, so that matrices which come back get a graph of their own.
/// Others share the first graph, which is captured again for each call.
class CallGraphs {
 public:
  /// Enqueues a call on a stream, which is being captured.
  using Enqueue = std::function<void(cudaStream_t)>;
  using Settle = std::function<void(const Stream&)>;

  /// `budget`: how many more graphs the plans of a context may make. Must outlive this object.
  /// `keeps_priorities`: see Graph::capture.
  CallGraphs(std::size_t& budget, bool keeps_priorities)
      : budget_(budget), keeps_priorities_(keeps_priorities) {}
  ~CallGraphs() { budget_ += own(); }
  CallGraphs(const CallGraphs&) = delete;
  CallGraphs& operator=(const CallGraphs&) = delete;

  /// The graph of a call with these matrices, to launch before the next get(). Captures on `stream`, which
  /// must have no other work. `changes`: what enqueue() enqueues differs from call to call.
  /// `settle` waits until an upload on it is complete.
  const Graph& get(const CallTag& tag, std::span<const CallMatrix> matrices, const Stream& stream,
                   bool changes, const Enqueue& enqueue, const Settle& settle);

 private:
  /// What a graph was captured for.
  struct Key {
    std::int32_t op = 0;
    std::int64_t m = 0;
    std::vector<CallMatrix> matrices{};
    std::uint64_t hash = 0;  ///< of the matrices
    bool holds(const CallTag& tag, std::span<const CallMatrix> of, std::uint64_t hash_of) const;
  };
  struct Held {
    Key key;
    Graph graph;
    std::vector<std::uint64_t> allocations;  // of the matrices

    /// True if the graph's copies still find the allocations that they were captured with.
    bool launches() const;
  };
  Held make(const Key& key, const Stream& stream, const Enqueue& enqueue, const Settle& settle) const;
  std::size_t own() const { return graphs_.empty() ? 0 : graphs_.size() - 1; }
  bool has_come_before(std::uint64_t hash);

  std::size_t& budget_;
  const bool keeps_priorities_;
  std::deque<Held> graphs_;                  // the first one is shared
  std::array<std::uint64_t, 256> recent_{};  // hashes of matrices that had no graph
  std::size_t came_ = 0;                     // number of them
};

}  // namespace shingle::cuda
