#include "attention.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <unordered_map>

#include "cuda/kernels/merge.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/opened_library.hpp"
#include "cuda/raii/stream.hpp"
#include "cuda/raii/stream_memory.hpp"
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
      fmt::format("cuDNN {} cannot compute attention of {} queries over {} keys, {} and {} heads "
                  "of {} columns, {}: {}",
                  text_of(fe::detail::get_backend_version()), p.queries, p.keys, p.heads, p.kv_heads,
                  p.head_dim, name(p.type), error.get_message()));
}

enum Operand : std::int64_t { q = 1, keys, values, out, lse };

/// Queries, keys, values or results of all sequences and heads.
fe::graph::Tensor_attributes tensor(Operand operand, std::int64_t sequences, std::int64_t heads,
                                    std::int64_t rows, std::int64_t head_dim, std::int64_t row) {
  return fe::graph::Tensor_attributes()
      .set_uid(operand)
      .set_dim({sequences, heads, rows, head_dim})
      .set_stride({rows * row, head_dim, row, 1});
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
  std::size_t packed_lse = 0;  ///< where cuDNN stores the log-sum-exps in the workspace, in bytes
  bool loaded = false;
};

Attention::Attention(const DnnHandle& handle, const AttentionProblem& problem)
    : graph_(new Graph{static_cast<cudnnHandle_t>(handle.get()), problem}) {
  const AttentionProblem& p = problem;
  fe::graph::Graph& graph = graph_->made;
  graph.set_io_data_type(p.type == DType::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT)
      .set_sm_version(handle.sm_version());
  auto options = fe::graph::SDPA_attributes()
                     .set_name("attend")
                     .set_generate_stats(p.stores_lse)
                     .set_attn_scale(1 / std::sqrt(static_cast<float>(p.head_dim)));
  if (p.causal)
    options
        .set_diagonal_alignment(p.queries == p.keys ? fe::DiagonalAlignment_t::TOP_LEFT
                                                    : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
        .set_diagonal_band_right_bound(0);
  const auto results = graph.sdpa(
      graph.tensor(tensor(Operand::q, p.sequences, p.heads, p.queries, p.head_dim, p.q_row)),
      graph.tensor(tensor(Operand::keys, p.sequences, p.kv_heads, p.keys, p.head_dim, p.keys_row)),
      graph.tensor(tensor(Operand::values, p.sequences, p.kv_heads, p.keys, p.head_dim, p.values_row)),
      options);
  const auto wanted = tensor(Operand::out, p.sequences, p.heads, p.queries, p.head_dim, p.out_row);
  results[0]
      ->set_output(true)
      .set_uid(Operand::out)
      .set_dim(wanted.get_dim())
      .set_stride(wanted.get_stride());
  if (p.stores_lse)  // cuDNN before 9.12 stores them packed, whatever the strides
    results[1]
        ->set_output(true)
        .set_uid(Operand::lse)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({p.sequences, p.heads, p.queries, 1})
        .set_stride({p.heads * p.queries, p.queries, 1, 1});
  check_graph(graph.build(graph_->handle, {fe::HeurMode_t::A}), p);
  std::int64_t bytes = 0;
  check_graph(graph.get_workspace_size(bytes), p);
  graph_->workspace_bytes = static_cast<std::size_t>(bytes);
  if (!p.stores_lse) return;
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
  std::unordered_map<std::int64_t, void*> all{{Operand::q, const_cast<void*>(operands.q)},
                                              {Operand::keys, const_cast<void*>(operands.keys)},
                                              {Operand::values, const_cast<void*>(operands.values)},
                                              {Operand::out, operands.out}};
  const AttentionProblem& p = graph_->problem;
  auto* const packed = reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + graph_->packed_lse);
  if (p.stores_lse) all.emplace(Operand::lse, packed);
  check_dnn(fe::detail::set_stream(graph_->handle, stream), "cudnnSetStream");
  if (fe::error_t error = graph_->made.execute(graph_->handle, all, workspace); error.is_bad())
    throw CudaError(fmt::format("cuDNN's attention: {}", error.get_message()), cudaErrorUnknown, -1);
  if (!p.stores_lse) return;
  const PackedLse lse{packed, p.sequences, p.queries, static_cast<std::int32_t>(p.heads)};
  check(launch_unpack_lse(lse, static_cast<float*>(operands.lse), p.lse_row, stream), "unpack log-sum-exps");
}

bool Attention::is_loaded() const noexcept {
  return graph_->loaded;
}

void Attention::load() {
  if (graph_->loaded) return;
  const AttentionProblem& p = graph_->problem;
  const auto bytes = [&](std::int64_t rows, std::int64_t row) {
    return static_cast<std::size_t>(p.sequences * rows * row) * size_bytes(p.type);
  };
  const Stream stream;
  const StreamMemory queries(bytes(p.queries, p.q_row), stream), keys(bytes(p.keys, p.keys_row), stream),
      values(bytes(p.keys, p.values_row), stream), out(bytes(p.queries, p.out_row), stream),
      lse(static_cast<std::size_t>(p.sequences * p.queries * p.lse_row) * sizeof(float), stream),
      workspace(workspace_bytes(), stream);
  for (const StreamMemory* memory : {&queries, &keys, &values, &out, &lse, &workspace})
    if (!memory->is_there()) return;
  run(stream.get(), {queries.get(), keys.get(), values.get(), out.get(), lse.get()}, workspace.get());
  stream.synchronize();
  check_dnn(fe::detail::set_stream(graph_->handle, nullptr), "cudnnSetStream");  // `stream` goes
  graph_->loaded = true;
}

}  // namespace shingle::cuda
