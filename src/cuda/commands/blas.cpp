// cuBLASLt is column-major, our matrices are row-major. A row-major C is column-major Cᵀ, and Cᵀ = op(B)ᵀ ·
// op(A)ᵀ. So B is cuBLASLt's first operand and A its second. A matrix that we call transposed is transposed
// for cuBLASLt, too.
#include "blas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "blas_api.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/raii/stream.hpp"
#include "cuda/raii/stream_memory.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

constexpr int most_candidates = 8;
constexpr std::size_t most_workspace_bytes = std::size_t{32} << 20;

void check_blas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(fmt::format("{}: {}", call, blas().cublasLtGetStatusString(status)), status, -1);
}

template <auto destroy>
struct Destroyer {
  template <class T>
  void operator()(T* made) const {
    (blas().*destroy)(made);
  }
};
using Description = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>,
                                    Destroyer<&BlasApi::cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>,
                               Destroyer<&BlasApi::cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                                   Destroyer<&BlasApi::cublasLtMatmulPreferenceDestroy>>;

cudaDataType_t library_type(DType type) {
  switch (type) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
  }
  throw InvalidArgument("unknown element type");
}

template <class T>
void set(const Description& product, cublasLtMatmulDescAttributes_t which, T value) {
  check_blas(blas().cublasLtMatmulDescSetAttribute(product.get(), which, &value, sizeof value),
             "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t which, T value) {
  check_blas(blas().cublasLtMatmulPreferenceSetAttribute(preference.get(), which, &value, sizeof value),
             "cublasLtMatmulPreferenceSetAttribute");
}

/// Layout of a row-major matrix of rows × cols.
Layout layout(DType type, std::int64_t rows, std::int64_t cols, std::int64_t leading) {
  cublasLtMatrixLayout_t made = nullptr;
  check_blas(blas().cublasLtMatrixLayoutCreate(&made, library_type(type), static_cast<std::uint64_t>(cols),
                                               static_cast<std::uint64_t>(rows), leading),
             "cublasLtMatrixLayoutCreate");
  return Layout(made);
}

Description description(const LibraryProblem& p) {
  cublasLtMatmulDesc_t made = nullptr;
  check_blas(blas().cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
             "cublasLtMatmulDescCreate");
  Description product(made);
  set(product, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(product, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.bias) {
    set(product, CUBLASLT_MATMUL_DESC_EPILOGUE,
        p.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS);
    set(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, library_type(p.type));
  } else if (p.relu) {
    set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_RELU);
  }
  if (p.sms > 0) set(product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, p.sms);
  return product;
}

Preference preference(const LibraryProblem& p) {
  cublasLtMatmulPreference_t made = nullptr;
  check_blas(blas().cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  Preference wish(made);
  set(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most_workspace_bytes);
  // Partial sums of split-K are added in fp32, in the workspace; otherwise cuBLASLt must not split K.
  set(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto which :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(wish, which, static_cast<std::uint32_t>(p.alignment));
  return wish;
}

}  // namespace

BlasHandle::BlasHandle() {
  check_blas(blas().cublasLtCreate(&handle_), "cublasLtCreate");
}

BlasHandle::~BlasHandle() {
  blas().cublasLtDestroy(handle_);
}

struct LibraryGemm::Descriptors {
  const BlasHandle& handle;
  Description product;
  Layout a, b, c;
  struct Algorithm {
    cublasLtMatmulAlgo_t algorithm;
    std::size_t workspace_bytes;
  };
  std::vector<Algorithm> algorithms{};
  std::size_t result_bytes = 0;  // of C
  std::size_t chosen = 0;
  const void* bias = nullptr;  // that `product` has

  /// Does nothing without algorithms: then C has no elements.
  void run(std::size_t which, cudaStream_t stream, const LibraryOperands& on, void* workspace) {
    if (algorithms.empty()) return;
    if (on.bias != bias) set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias = on.bias);
    const float one = 1, zero = 0;
    const Algorithm& by = algorithms[which];
    check_blas(
        blas().cublasLtMatmul(handle.get(), product.get(), &one, on.b, b.get(), on.a, a.get(), &zero, on.c,
                              c.get(), on.c, c.get(), &by.algorithm, workspace, by.workspace_bytes, stream),
        "cublasLtMatmul");
  }

  /// Time of one product in microseconds, the best of some rounds; of long products of fewer.
  double time(std::size_t which, cudaStream_t stream, const LibraryOperands& on, void* workspace) {
    constexpr double long_us = 500;
    const Event begin(Event::Timing::on), end(Event::Timing::on);
    const auto round = [&](int products) {
      begin.record(stream);
      for (int i = 0; i < products; ++i) run(which, stream, on, workspace);
      end.record(stream);
      end.synchronize();
      return 1e3 * static_cast<double>(end.milliseconds_since(begin)) / products;
    };
    run(which, stream, on, workspace);
    const double once = round(1);
    return once > long_us ? std::min(once, round(2)) : std::min({round(4), round(4), round(4)});
  }
};

LibraryGemm::LibraryGemm(const BlasHandle& handle, const LibraryProblem& p) {
  describe(handle, p);
  find_algorithms(p);
}

LibraryGemm::LibraryGemm(const BlasHandle& handle, const LibraryProblem& p, const LibraryGemm& similar) {
  describe(handle, p);
  if (made_->result_bytes == 0) return;
  const auto& algorithm = similar.made_->algorithms[similar.made_->chosen].algorithm;
  cublasLtMatmulHeuristicResult_t found{};
  const cublasStatus_t status =
      blas().cublasLtMatmulAlgoCheck(handle.get(), made_->product.get(), made_->b.get(), made_->a.get(),
                                     made_->c.get(), made_->c.get(), &algorithm, &found);
  if (status == CUBLAS_STATUS_SUCCESS && found.state == CUBLAS_STATUS_SUCCESS &&
      found.workspaceSize <= most_workspace_bytes)
    made_->algorithms.push_back({algorithm, found.workspaceSize});
  else
    find_algorithms(p);
}

void LibraryGemm::describe(const BlasHandle& handle, const LibraryProblem& p) {
  const bool empty = p.m == 0 || p.n == 0;
  if (p.m < 0 || p.n < 0 || (p.k < 1 && !empty))
    throw InvalidArgument(fmt::format("a GEMM of {}×{}×{}: sizes must be positive", p.m, p.n, p.k));
  if (empty) {
    made_.reset(new Descriptors{handle, {}, {}, {}, {}});
    return;
  }
  made_.reset(new Descriptors{handle, description(p),
                              layout(p.type, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda),
                              layout(p.type, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb),
                              layout(p.out_type, p.m, p.n, p.ldc)});
  made_->result_bytes = static_cast<std::size_t>(p.m * p.ldc) * size_bytes(p.out_type);
}

void LibraryGemm::find_algorithms(const LibraryProblem& p) {
  if (made_->result_bytes == 0) return;
  const BlasHandle& handle = made_->handle;
  const Preference wish = preference(p);
  cublasLtMatmulHeuristicResult_t found[most_candidates];
  int count = 0;
  const cublasStatus_t status = blas().cublasLtMatmulAlgoGetHeuristic(
      handle.get(), made_->product.get(), made_->b.get(), made_->a.get(), made_->c.get(), made_->c.get(),
      wish.get(), most_candidates, found, &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; i < count; ++i)
    if (found[i].state == CUBLAS_STATUS_SUCCESS)
      made_->algorithms.push_back({found[i].algo, found[i].workspaceSize});
  if (made_->algorithms.empty())
    throw Unsupported(fmt::format("cuBLASLt has no algorithm for a GEMM of {}×{}×{} from {} to {}", p.m, p.n,
                                  p.k, name(p.type), name(p.out_type)));
}

LibraryGemm::~LibraryGemm() = default;
LibraryGemm::LibraryGemm(LibraryGemm&&) noexcept = default;
LibraryGemm& LibraryGemm::operator=(LibraryGemm&&) noexcept = default;

void LibraryGemm::run(cudaStream_t stream, const LibraryOperands& operands, void* workspace) {
  made_->run(made_->chosen, stream, operands, workspace);
}

std::size_t LibraryGemm::workspace_bytes() const noexcept {
  return made_->algorithms.empty() ? 0 : made_->algorithms[made_->chosen].workspace_bytes;
}

double LibraryGemm::tune(cudaStream_t stream, LibraryOperands operands) {
  if (made_->algorithms.empty()) return 0;
  std::size_t most = 0;
  for (const auto& algorithm : made_->algorithms) most = std::max(most, algorithm.workspace_bytes);
  const DeviceMemory result(made_->result_bytes), workspace(most);
  operands.c = result.get();
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < made_->algorithms.size(); ++i) {
    const double us = made_->time(i, stream, operands, workspace.get());
    if (us >= best) continue;
    best = us;
    made_->chosen = i;
  }
  return best;
}

std::size_t LibraryGemm::candidates() const noexcept {
  return made_->algorithms.size();
}

std::vector<std::uint64_t> LibraryGemm::algorithm() const {
  if (made_->algorithms.empty()) return {};
  const auto& data = made_->algorithms[made_->chosen].algorithm.data;
  return {std::begin(data), std::end(data)};
}

bool LibraryGemm::load(const LibraryProblem& p) {
  if (made_->algorithms.empty()) return true;
  const Stream stream;
  const auto bytes_of = [](DType type, std::int64_t rows, std::int64_t leading) {
    return static_cast<std::size_t>(rows * leading) * size_bytes(type);
  };
  // Contents do not matter.
  const StreamMemory a(bytes_of(p.type, p.transpose_a ? p.k : p.m, p.lda), stream),
      b(bytes_of(p.type, p.transpose_b ? p.n : p.k, p.ldb), stream),
      bias(bytes_of(p.type, 1, p.bias ? p.n : 0), stream), c(made_->result_bytes, stream),
      workspace(workspace_bytes(), stream);
  for (const StreamMemory* memory : {&a, &b, &bias, &c, &workspace})
    if (!memory->is_there()) return false;
  run(stream.get(), {a.get(), b.get(), bias.get(), c.get()}, workspace.get());
  stream.synchronize();
  return true;
}

}  // namespace shingle::cuda
