// Scaled dot-product attention by cuDNN, and its backward.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "shingle/base/dtype.hpp"

namespace shingle::cuda {

/// cuDNN's handle. Belongs to the device that is current at construction.
class DnnHandle {
 public:
  /// Throws Unsupported if there is no cuDNN of the major version that this build used, or an old one.
  DnnHandle();
  ~DnnHandle();
  DnnHandle(const DnnHandle&) = delete;
  DnnHandle& operator=(const DnnHandle&) = delete;

  void* get() const noexcept { return handle_; }
  int sm_version() const noexcept { return sm_version_; }

 private:
  void* handle_ = nullptr;  // a cudnnHandle_t
  int device_ = 0;
  int sm_version_ = 0;  // 90 for compute capability 9.0
};

/// One thing for each matrix of an attention. Matrices are row-major: one row for each token, one block of
/// head_dim columns for each head.
template <class T>
struct AttentionMatrices {
  T q{}, keys{}, values{};
  T out{};   ///< the result; read by backward
  T lse{};   ///< log-sum-exp of the scaled scores in f32, a column for each head
  T grad{};  ///< gradient of the result; backward only, as all that follow
  T q_grad{}, keys_grad{}, values_grad{};  ///< gradients

  bool operator==(const AttentionMatrices&) const = default;
  /// The results of a function for each matrix, called in this order.
  template <class Function>
  auto map(Function&& function) const {
    return AttentionMatrices<std::decay_t<decltype(function(q))>>{
        function(q),    function(keys),   function(values),    function(out),        function(lse),
        function(grad), function(q_grad), function(keys_grad), function(values_grad)};
  }
};

/// out = softmax(Q·Kᵀ / sqrt(head_dim)) · V for each head of each sequence, or its backward: the gradients of
/// Q, K and V by these queries and keys, where `out` and `lse` are of the attention to these keys and any
/// others.
///
/// Accumulates in fp32; results have the type of Q, K and V. The same bits in each run.
struct AttentionProblem {
  DType type = DType::bf16;
  bool backward = false;
  std::int64_t sequences = 1;  ///< of this shape, one behind another in all matrices
  std::int64_t queries = 0;    ///< of a sequence
  std::int64_t keys = 0;       ///< of a sequence; at least `queries` if causal
  std::int64_t heads = 0;      ///< of Q and the result
  std::int64_t kv_heads = 0;   ///< of K and V; heads / kv_heads consecutive heads share one
  std::int64_t head_dim = 0;
  /// True: the last query sees all keys, the one before all but the last, …
  bool causal = false;
  AttentionMatrices<std::int64_t> row{};  ///< elements from a row to the next; 0: there is no such matrix

  bool operator==(const AttentionProblem&) const = default;
};

/// First elements of the matrices, at multiples of 16 bytes; `lse` at one of 4.
using AttentionOperands = AttentionMatrices<void*>;

class Attention {
 public:
  /// Throws Unsupported with cuDNN's reason if it has no kernel for the problem. The handle must outlive this
  /// object.
  Attention(const DnnHandle& handle, const AttentionProblem& problem);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  /// `workspace` has workspace_bytes() bytes. Attentions that share a workspace must not run concurrently.
  /// Throws CudaError.
  void run(cudaStream_t stream, const AttentionOperands& operands, void* workspace);
  std::size_t workspace_bytes() const noexcept;
  /// Makes CUDA load the kernels, by one run on matrices of its own, unless that is done. Fit for a thread
  /// that captures a stream in relaxed mode: waits for no other stream. Does nothing if there is no memory
  /// for the matrices.
  void load();
  bool is_loaded() const noexcept;

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

}  // namespace shingle::cuda
