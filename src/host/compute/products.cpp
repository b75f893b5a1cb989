#include "products.hpp"

#include <fmt/format.h>
#include <dnnl.hpp>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#include "shingle/base/error.hpp"

// oneDNN may run its threads through OpenMP. The symbol is weak, so that a oneDNN without OpenMP links too.
extern "C" __attribute__((weak)) void omp_set_num_threads(int);

namespace shingle::host {
namespace {

using Type = dnnl::memory::data_type;

Type type_of(DType type) {
  switch (type) {
    case DType::bf16:
      return Type::bf16;
    case DType::f16:
      return Type::f16;
    default:
      return Type::f32;
  }
}

dnnl::memory::desc matrix(std::int64_t rows, std::int64_t cols, DType type, std::int64_t row,
                          std::int64_t col) {
  return {{rows, cols}, type_of(type), dnnl::memory::dims{row, col}};
}

/// oneDNN before 3.2 (its issue 1661) executes illegal instructions on processors with AMX if K is 63 or
/// near. This disables AMX unless the environment chooses the ISA. Call it before oneDNN detects the
/// processor.
void avoid_amx() {
  const dnnl_version_t& version = *dnnl_version();
  const bool chosen =
      std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr || std::getenv("DNNL_MAX_CPU_ISA") != nullptr;
  if (!chosen && (version.major < 3 || (version.major == 3 && version.minor < 2)))
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);
}

/// oneDNN's engine of this processor. Every oneDNN call gets the engine here, so avoid_amx() runs first.
const dnnl::engine& cpu() {
  static const dnnl::engine engine = [] {
    avoid_amx();
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}

std::string_view isa_name(dnnl::cpu_isa isa) {
  using dnnl::cpu_isa;
  switch (isa) {
    case cpu_isa::sse41:
      return "SSE4.1";
    case cpu_isa::avx:
      return "AVX";
    case cpu_isa::avx2:
      return "AVX2";
    case cpu_isa::avx2_vnni:
      return "AVX2 with VNNI";
    case cpu_isa::avx512_core:
      return "AVX-512";
    case cpu_isa::avx512_core_vnni:
      return "AVX-512 with VNNI";
    case cpu_isa::avx512_core_bf16:
      return "AVX-512 with bf16";
    default:
      return "AVX-512 with bf16 or newer";
  }
}

dnnl::matmul::primitive_desc describe(const ProductShape& s) {
  const dnnl::engine& engine = cpu();
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto a = matrix(s.rows, s.k, s.in, s.a_row, s.a_col);
  const auto b = matrix(s.k, s.cols, s.in, s.b_row, s.b_col);
  const auto c = matrix(s.rows, s.cols, s.out, s.c_row, 1);
#if DNNL_VERSION_MAJOR >= 3
  return {engine, a, b, c, attributes};
#else
  return {dnnl::matmul::desc(a, b, c), attributes, engine};
#endif
}

class DnnlProduct final : public Product {
 public:
  explicit DnnlProduct(const ProductShape& shape) : desc_(describe(shape)), matmul_(desc_) {}

  std::size_t scratch_bytes() const override { return desc_.scratchpad_desc().get_size(); }

  void run(const std::byte* a, const std::byte* b, std::byte* c, void* scratch) const override {
    thread_local dnnl::stream stream(cpu());
    // oneDNN has one memory type for input and output; it takes a mutable pointer.
    const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
      return dnnl::memory(desc, cpu(), const_cast<void*>(data));
    };
    matmul_.execute(stream, {{DNNL_ARG_SRC, memory(desc_.src_desc(), a)},
                             {DNNL_ARG_WEIGHTS, memory(desc_.weights_desc(), b)},
                             {DNNL_ARG_DST, memory(desc_.dst_desc(), c)},
                             {DNNL_ARG_SCRATCHPAD, memory(desc_.scratchpad_desc(), scratch)}});
    stream.wait();
  }

 private:
  dnnl::matmul::primitive_desc desc_;
  dnnl::matmul matmul_;
};

bool probe(DType type) {
  try {
    const ProductShape shape{256, 256, 256, 256, 1, 256, 1, 256, type, type};
    return std::string(describe(shape).impl_info_str()).find("ref") == std::string::npos;
  } catch (const dnnl::error&) {
    return false;
  }
}

}  // namespace

bool multiplies_natively(DType type) {
  static const std::array<bool, 3> native{probe(DType::f32), probe(DType::bf16), probe(DType::f16)};
  return type == DType::f32 || native[static_cast<std::size_t>(type)];
}

std::string onednn_version() {
  cpu();
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("{}.{}.{}, {}", version.major, version.minor, version.patch,
                     isa_name(dnnl::get_effective_cpu_isa()));
}

void compute_on_this_thread_only() {
  if (omp_set_num_threads) omp_set_num_threads(1);
}

const Product& Products::get(const ProductShape& shape) {
  const std::lock_guard lock(mutex_);
  auto& product = made_[shape];
  if (!product) {
    try {
      product = std::make_unique<DnnlProduct>(shape);
    } catch (const dnnl::error& error) {
      throw Error(fmt::format("oneDNN has no product {}x{}x{} of {}: {}", shape.rows, shape.cols, shape.k,
                              name(shape.in), error.what()));
    }
  }
  return *product;
}

}  // namespace shingle::host
