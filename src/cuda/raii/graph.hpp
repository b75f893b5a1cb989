// Owner of an instantiated CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "check.hpp"

namespace shingle::cuda {

class Graph {
 public:
  /// Captures the work that enqueue(stream) enqueues on `stream` of the current device. The capture does not
  /// restrict other threads (thread-local capture mode). `keeps_priorities`: kernels have the priorities of
  /// the streams that they were captured on, else that of the stream that the graph is launched on.
  template <class Enqueue>
  static Graph capture(cudaStream_t stream, Enqueue&& enqueue, bool keeps_priorities = false) {
    const Template work(stream, std::forward<Enqueue>(enqueue));
    Graph made;
    check(cudaGraphInstantiate(&made.graph_, work.graph,
                               keeps_priorities ? cudaGraphInstantiateFlagUseNodePriority : 0),
          "cudaGraphInstantiate");
    made.copies_ = work.copies();
    return made;
  }
  /// Replaces the work of later launches, as capture(). False if the work has other kinds of commands or
  /// another order; the graph must then be destroyed.
  template <class Enqueue>
  bool update(cudaStream_t stream, Enqueue&& enqueue) {
    const Template work(stream, std::forward<Enqueue>(enqueue));
    cudaGraphExecUpdateResultInfo info{};
    const cudaError_t result = cudaGraphExecUpdate(graph_, work.graph, &info);
    if (result == cudaErrorGraphExecUpdateFailure) {
      cudaGetLastError();
      return false;
    }
    check(result, "cudaGraphExecUpdate");
    return true;
  }

  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)), copies_(other.copies_) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    std::swap(copies_, other.copies_);
    return *this;
  }
  ~Graph() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }

  /// True if the graph has copies. These are bound to the allocations of their memory: once one is freed, the
  /// graph must not be launched, even if new memory has the same address.
  bool copies() const { return copies_; }
  /// Copies the graph to the device, so that the first launch need not.
  void upload(cudaStream_t stream) const { check(cudaGraphUpload(graph_, stream), "cudaGraphUpload"); }
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(graph_, stream), "cudaGraphLaunch"); }

 private:
  /// Captured work that is not instantiated.
  struct Template {
    template <class Enqueue>
    Template(cudaStream_t stream, Enqueue&& enqueue) {
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      try {
        enqueue(stream);
      } catch (...) {
        cudaStreamEndCapture(stream, &graph);
        if (graph != nullptr) cudaGraphDestroy(graph);
        throw;
      }
      check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    }
    ~Template() { cudaGraphDestroy(graph); }
    Template(const Template&) = delete;
    Template& operator=(const Template&) = delete;

    bool copies() const {
      std::size_t count = 0;
      check(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
      std::vector<cudaGraphNode_t> nodes(count);
      check(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes");
      return std::ranges::any_of(nodes, [](cudaGraphNode_t node) {
        cudaGraphNodeType type{};
        check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
        return type == cudaGraphNodeTypeMemcpy;
      });
    }

    cudaGraph_t graph = nullptr;
  };

  Graph() = default;
  cudaGraphExec_t graph_ = nullptr;
  bool copies_ = false;
};

}  // namespace shingle::cuda
