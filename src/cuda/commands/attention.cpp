#include "attention.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <list>
#include <string>
#include <unordered_map>

#include "cuda/kernels/attention.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/opened_library.hpp"
#include "cuda/raii/stream.hpp"
#include "cuda/raii/stream_memory.hpp"
#include "elements.hpp"
#include "shingle/base/error.hpp"

// cuDNN's functions are found at run time, in the library that this handle names.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace shingle::cuda {
namespace {

namespace fe = cudnn_frontend;

/// The oldest that takes any number of queries, and is right on Hopper.
constexpr std::size_t least_version = 91002;
/// The oldest whose backward takes any number of keys without a mask that the host copies to the device.
constexpr std::size_t least_backward_version = 91501;

/// "9.10.2"
std::string text_of(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// Opens cuDNN, and the CUDA runtime that its frontend calls, once a process.
void open_cudnn() {
  static const bool opened = [] {
    const std::string soname = fmt::format("libcudart.so.{}", CUDART_VERSION / 1000);
    const OpenedLibrary runtime(soname);
    // The frontend prefers the runtime of CUDA 12 to that of its headers.
    if (CUDART_VERSION >= 13000 && dlopen("libcudart.so.12", RTLD_NOW) != nullptr)
      setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", soname.c_str(), 0);
    fe::cudnn_dlhandle = OpenedLibrary(fmt::format("libcudnn.so.{}", CUDNN_MAJOR)).handle();
    if (const std::size_t version = fe::detail::get_backend_version(); version < least_version)
      throw Unsupported(fmt::format("cuDNN {} is too old: attention needs {} or newer", text_of(version),
                                    text_of(least_version)));
    return true;
  }();
  static_cast<void>(opened);
}

void check_dnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw CudaError(fmt::format("{}: {}", call, fe::detail::get_error_string(status)), status, -1);
}

/// Throws Unsupported if cuDNN does not serve the graph.
void check_graph(fe::error_t error, const AttentionProblem& p) {
  if (error.is_good()) return;
  throw Unsupported(
      fmt::format("cuDNN {} cannot compute {}attention of {} queries over {} keys, {} and {} heads "
                  "of {} columns, {}: {}",
                  text_of(fe::detail::get_backend_version()), p.backward ? "the backward of " : "", p.queries,
                  p.keys, p.heads, p.kv_heads, p.head_dim, name(p.type), error.get_message()));
}

/// cuDNN's numbers of the tensors.
constexpr AttentionMatrices<std::int64_t> uids{1, 2, 3, 4, 5, 6, 7, 8, 9};

using Tensor = fe::graph::Tensor_attributes;

float scale_of(const AttentionProblem& p) {
  return 1 / std::sqrt(static_cast<float>(p.head_dim));
}

/// A matrix of all sequences and heads.
Tensor tensor(std::int64_t uid, std::int64_t sequences, std::int64_t heads, std::int64_t rows,
              std::int64_t head_dim, std::int64_t row) {
  return Tensor()
      .set_uid(uid)
      .set_dim({sequences, heads, rows, head_dim})
      .set_stride({rows * row, head_dim, row, 1});
}

AttentionMatrices<Tensor> tensors_of(const AttentionProblem& p) {
  const auto queries = [&](std::int64_t uid, std::int64_t row) {
    return tensor(uid, p.sequences, p.heads, p.queries, p.head_dim, row);
  };
  const auto keys = [&](std::int64_t uid, std::int64_t row) {
    return tensor(uid, p.sequences, p.kv_heads, p.keys, p.head_dim, row);
  };
  // Whatever the strides, cuDNN stores log-sum-exps packed before 9.12, and reads them packed before 9.26.
  const auto lse = Tensor()
                       .set_uid(uids.lse)
                       .set_data_type(fe::DataType_t::FLOAT)
                       .set_dim({p.sequences, p.heads, p.queries, 1})
                       .set_stride({p.heads * p.queries, p.queries, 1, 1});
  return {queries(uids.q, p.row.q),
          keys(uids.keys, p.row.keys),
          keys(uids.values, p.row.values),
          queries(uids.out, p.row.out),
          lse,
          queries(uids.grad, p.row.grad),
          queries(uids.q_grad, p.row.q_grad),
          keys(uids.keys_grad, p.row.keys_grad),
          keys(uids.values_grad, p.row.values_grad)};
}

/// Sets the options that attention and its backward share.
template <class Options>
Options options_of(const AttentionProblem& p, const char* name) {
  Options options;
  options.set_name(name).set_attn_scale(scale_of(p));
  if (p.causal)
    options
        .set_diagonal_alignment(p.queries == p.keys ? fe::DiagonalAlignment_t::TOP_LEFT
                                                    : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
        .set_diagonal_band_right_bound(0);
  return options;
}

void set_result(const std::shared_ptr<Tensor>& result, const Tensor& wanted) {
  result->set_output(true)
      .set_uid(wanted.get_uid())
      .set_data_type(wanted.get_data_type())
      .set_dim(wanted.get_dim())
      .set_stride(wanted.get_stride());
}

void add_attention(fe::graph::Graph& graph, const AttentionProblem& p) {
  const AttentionMatrices<Tensor> t = tensors_of(p);
  const bool stores_lse = p.row.lse > 0;
  const auto results =
      graph.sdpa(graph.tensor(t.q), graph.tensor(t.keys), graph.tensor(t.values),
                 options_of<fe::graph::SDPA_attributes>(p, "attend").set_generate_stats(stores_lse));
  set_result(results[0], t.out);
  if (stores_lse) set_result(results[1], t.lse);
}

void add_backward(fe::graph::Graph& graph, const AttentionProblem& p) {
  const AttentionMatrices<Tensor> t = tensors_of(p);
  const auto results =
      graph.sdpa_backward(graph.tensor(t.q), graph.tensor(t.keys), graph.tensor(t.values),
                          graph.tensor(t.out), graph.tensor(t.grad), graph.tensor(t.lse),
                          options_of<fe::graph::SDPA_backward_attributes>(p, "attend_backward")
                              .set_deterministic_algorithm(true));
  set_result(results[0], t.q_grad);
  set_result(results[1], t.keys_grad);
  set_result(results[2], t.values_grad);
}

SingleBackwardArgs single_backward(const AttentionProblem& p, const AttentionOperands& operands) {
  const auto rows = [&](void* at, std::int64_t row, DType type) {
    return AttentionRows{static_cast<char*>(at), row * static_cast<std::int64_t>(size_bytes(type))};
  };
  SingleBackwardArgs args;
  args.type = element(p.type);
  args.queries = p.sequences;
  args.kv_heads = static_cast<std::int32_t>(p.kv_heads);
  args.sharing = static_cast<std::int32_t>(p.heads / p.kv_heads);
  args.head_dim = static_cast<std::int32_t>(p.head_dim);
  args.scale = scale_of(p);
  args.q = rows(operands.q, p.row.q, p.type);
  args.keys = rows(operands.keys, p.row.keys, p.type);
  args.values = rows(operands.values, p.row.values, p.type);
  args.out = rows(operands.out, p.row.out, p.type);
  args.lse = rows(operands.lse, p.row.lse, DType::f32);
  args.grad = rows(operands.grad, p.row.grad, p.type);
  args.q_grad = rows(operands.q_grad, p.row.q_grad, p.type);
  args.keys_grad = rows(operands.keys_grad, p.row.keys_grad, p.type);
  args.values_grad = rows(operands.values_grad, p.row.values_grad, p.type);
  return args;
}

}  // namespace

DnnHandle::DnnHandle() {
  open_cudnn();
  int major = 0, minor = 0;
  check(cudaGetDevice(&device_), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_), "cudaDeviceGetAttribute");
  sm_version_ = 10 * major + minor;
  cudnnHandle_t made = nullptr;
  check_dnn(fe::detail::create_handle(&made), "cudnnCreate");
  handle_ = made;
}

DnnHandle::~DnnHandle() {  // waits for the current device
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(device_);
  fe::detail::destroy_handle(static_cast<cudnnHandle_t>(handle_));
  cudaSetDevice(before);
}

struct Attention::Graph {
  cudnnHandle_t handle = nullptr;
  AttentionProblem problem;
  fe::graph::Graph made{};
  std::size_t workspace_bytes = 0;
  std::size_t packed_lse = 0;  ///< where cuDNN has the log-sum-exps in the workspace, in bytes
  bool loaded = false;

  /// True for the backward of single queries to single keys, which cuDNN does not serve.
  bool single() const { return problem.backward && problem.queries == 1 && problem.keys == 1; }
};

Attention::Attention(const DnnHandle& handle, const AttentionProblem& problem)
    : graph_(new Graph{static_cast<cudnnHandle_t>(handle.get()), problem}) {
  if (graph_->single()) return;
  const AttentionProblem& p = problem;
  if (const std::size_t version = fe::detail::get_backend_version();
      p.backward && version < least_backward_version)
    throw Unsupported(fmt::format("cuDNN {} is too old: the backward of attention needs {} or newer",
                                  text_of(version), text_of(least_backward_version)));
  fe::graph::Graph& graph = graph_->made;
  graph.set_io_data_type(p.type == DType::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT)
      .set_sm_version(handle.sm_version());
  if (p.backward)
    add_backward(graph, p);
  else
    add_attention(graph, p);
  check_graph(graph.build(graph_->handle, {fe::HeurMode_t::A}), p);
  std::int64_t bytes = 0;
  check_graph(graph.get_workspace_size(bytes), p);
  graph_->workspace_bytes = static_cast<std::size_t>(bytes);
  if (p.row.lse == 0) return;
  constexpr std::size_t aligned = 256;
  graph_->packed_lse = (graph_->workspace_bytes + aligned - 1) / aligned * aligned;
  graph_->workspace_bytes =
      graph_->packed_lse + static_cast<std::size_t>(p.sequences * p.heads * p.queries) * sizeof(float);
}

Attention::~Attention() = default;

std::size_t Attention::workspace_bytes() const noexcept {
  return graph_->workspace_bytes;
}

void Attention::run(cudaStream_t stream, const AttentionOperands& operands, void* workspace) {
  const AttentionProblem& p = graph_->problem;
  if (graph_->single())
    return check(launch_single_backward(single_backward(p, operands), stream),
                 "launch a backward of attention");
  const PackedLse packed{reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + graph_->packed_lse),
                         p.sequences, p.queries, static_cast<std::int32_t>(p.heads)};
  auto* const lse = static_cast<float*>(operands.lse);
  if (p.backward) check(launch_pack_lse(lse, p.row.lse, packed, stream), "pack log-sum-exps");
  std::unordered_map<std::int64_t, void*> all{{uids.q, operands.q},
                                              {uids.keys, operands.keys},
                                              {uids.values, operands.values},
                                              {uids.out, operands.out}};
  if (p.row.lse > 0) all.emplace(uids.lse, packed.packed);
  if (p.backward)
    all.insert({{uids.grad, operands.grad},
                {uids.q_grad, operands.q_grad},
                {uids.keys_grad, operands.keys_grad},
                {uids.values_grad, operands.values_grad}});
  check_dnn(fe::detail::set_stream(graph_->handle, stream), "cudnnSetStream");
  if (fe::error_t error = graph_->made.execute(graph_->handle, all, workspace); error.is_bad())
    throw CudaError(fmt::format("cuDNN's attention: {}", error.get_message()), cudaErrorUnknown, -1);
  if (!p.backward && p.row.lse > 0)
    check(launch_unpack_lse(packed, lse, p.row.lse, stream), "unpack log-sum-exps");
}

bool Attention::is_loaded() const noexcept {
  return graph_->loaded;
}

void Attention::load() {
  if (graph_->loaded) return;
  const AttentionProblem& p = graph_->problem;
  const std::int64_t rows = p.sequences * larger(p.queries, p.keys);
  // A row may be longer than what the heads of this problem have of it.
  const auto spanned = [&](std::int64_t row, std::int64_t cols, std::size_t size) {
    return row == 0 ? 0 : static_cast<std::size_t>((rows - 1) * row + cols) * size;
  };
  const std::int64_t cols = larger(p.heads, p.kv_heads) * p.head_dim;
  auto bytes = p.row.map([&](std::int64_t row) { return spanned(row, cols, size_bytes(p.type)); });
  bytes.lse = spanned(p.row.lse, p.heads, sizeof(float));
  const Stream stream;
  std::list<StreamMemory> memory;
  const auto allocate = [&](std::size_t size) { return memory.emplace_back(size, stream).get(); };
  const AttentionOperands operands = bytes.map(allocate);
  void* const workspace = allocate(workspace_bytes());
  for (const StreamMemory& one : memory)
    if (!one.is_there()) return;
  run(stream.get(), operands, workspace);
  stream.synchronize();
  check_dnn(fe::detail::set_stream(graph_->handle, nullptr), "cudnnSetStream");  // `stream` goes
  graph_->loaded = true;
}

}  // namespace shingle::cuda
