// Owner of an instantiated CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "check.hpp"

namespace shingle::cuda {

class Graph {
 public:
  /// Captures the work that enqueue(stream) enqueues on `stream` of the current device. The capture does not
  /// restrict other threads (thread-local capture mode).
  template <class Enqueue>
  static Graph capture(cudaStream_t stream, Enqueue&& enqueue) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    try {
      enqueue(stream);
    } catch (...) {
      cudaGraph_t broken = nullptr;
      cudaStreamEndCapture(stream, &broken);
      if (broken != nullptr) cudaGraphDestroy(broken);
      throw;
    }
    Graph made;
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    const cudaError_t result = cudaGraphInstantiate(&made.graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(result, "cudaGraphInstantiate");
    return made;
  }

  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  ~Graph() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }

  /// Copies the graph to the device, so that the first launch need not.
  void upload(cudaStream_t stream) const { check(cudaGraphUpload(graph_, stream), "cudaGraphUpload"); }
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(graph_, stream), "cudaGraphLaunch"); }

 private:
  Graph() = default;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace shingle::cuda
