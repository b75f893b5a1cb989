#include "vector.hpp"

#include <cstring>

// The build targets any x86-64. These loops are compiled once per instruction set, and the loader chooses
// (target_clones). Sanitizers cannot run that early, so they get the plain version.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define SHINGLE_VECTOR                                                         \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), \
                 optimize("O3", "no-math-errno", "no-trapping-math")))
#else
#define SHINGLE_VECTOR
#endif

// ThreadSanitizer is told of whole rows that are converted: watching each element takes it fifty times as
// long.
#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_read_range(void* address, unsigned long size);
extern "C" void __tsan_write_range(void* address, unsigned long size);
#define SHINGLE_UNWATCHED __attribute__((no_sanitize("thread")))
#else
#define SHINGLE_UNWATCHED
#endif

namespace shingle::host {
namespace {

/// Inlined into each clone, and so compiled for its instruction set.
#define SHINGLE_INLINE __attribute__((always_inline)) SHINGLE_UNWATCHED inline

/// Tells ThreadSanitizer that a loop below reads and writes `count` elements of these.
template <class Read, class Written>
void tell_sanitizer([[maybe_unused]] const Read* read, [[maybe_unused]] Written* written,
                    [[maybe_unused]] std::int64_t count) {
#ifdef __SANITIZE_THREAD__
  __tsan_read_range(const_cast<Read*>(read), static_cast<unsigned long>(count) * sizeof(Read));
  __tsan_write_range(written, static_cast<unsigned long>(count) * sizeof(Written));
#endif
}

SHINGLE_INLINE float load(const std::uint16_t* source, DType type) {
  if (type == DType::bf16) return __builtin_bit_cast(float, static_cast<std::uint32_t>(*source) << 16);
  return static_cast<float>(__builtin_bit_cast(_Float16, *source));
}

SHINGLE_INLINE std::uint16_t round_bf16(float value) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
}

/// e^x to 2 units in the last place: 2^n · e^r with |r| ≤ ln2/2, and the Taylor polynomial of degree 7 for
/// e^r.
SHINGLE_INLINE float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float to_integer = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504f + to_integer;
  const float n = shifted - to_integer;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p *
         __builtin_bit_cast(float, (__builtin_bit_cast(std::int32_t, shifted) + (127 - 0x4b400000)) << 23);
}

/// erf(x) to 1e-7: near zero the Taylor-like polynomial, beyond it 1 − e^p(|x|) (N. Juffa's coefficients).
SHINGLE_INLINE float error_function(float x) {
  const float t = __builtin_fabsf(x), s = x * x;
  float far = -1.72853470e-5f * t + 3.83197126e-4f;
  far = far * s + (-3.88396438e-3f * t + 2.42546219e-2f);
  far = far * t - 1.06777877e-1f;
  far = far * t - 6.34846687e-1f;
  far = far * t - 1.28717512e-1f;
  far = far * t - t;
  far = __builtin_copysignf(1.0f - exponential(far), x);
  far = t > 4.0f ? __builtin_copysignf(1.0f, x) : far;
  float near = -5.96761703e-4f;
  near = near * s + 4.99119423e-3f;
  near = near * s - 2.67681349e-2f;
  near = near * s + 1.12819925e-1f;
  near = near * s - 3.76125336e-1f;
  near = near * s + 1.28379166e-1f;
  near = near * x + x;
  return t > 0.927734375f ? far : near;
}

SHINGLE_INLINE float sigmoid(float x) {
  return 1.0f / (1.0f + exponential(-x));
}

SHINGLE_VECTOR SHINGLE_UNWATCHED void widen_16(DType type, const std::uint16_t* source, float* target,
                                               std::int64_t count) {
  tell_sanitizer(source, target, count);
  if (type == DType::bf16) {
    for (std::int64_t i = 0; i < count; ++i) target[i] = load(source + i, DType::bf16);
  } else {
    for (std::int64_t i = 0; i < count; ++i) target[i] = load(source + i, DType::f16);
  }
}

SHINGLE_VECTOR SHINGLE_UNWATCHED void widen_add_16(DType type, const std::uint16_t* source, float* target,
                                                   std::int64_t count) {
  tell_sanitizer(source, target, count);
  if (type == DType::bf16) {
    for (std::int64_t i = 0; i < count; ++i) target[i] += load(source + i, DType::bf16);
  } else {
    for (std::int64_t i = 0; i < count; ++i) target[i] += load(source + i, DType::f16);
  }
}

SHINGLE_VECTOR SHINGLE_UNWATCHED void narrow_16(DType type, const float* source, std::uint16_t* target,
                                                std::int64_t count) {
  tell_sanitizer(source, target, count);
  if (type == DType::bf16) {
    for (std::int64_t i = 0; i < count; ++i) target[i] = round_bf16(source[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i)
      target[i] = __builtin_bit_cast(std::uint16_t, static_cast<_Float16>(source[i]));
  }
}

}  // namespace

void widen(DType type, const std::byte* source, float* target, std::int64_t count) {
  if (type == DType::f32) {
    std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(float));
  } else {
    widen_16(type, reinterpret_cast<const std::uint16_t*>(source), target, count);
  }
}

void narrow(DType type, const float* source, std::byte* target, std::int64_t count) {
  if (type == DType::f32) {
    std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(float));
  } else {
    narrow_16(type, source, reinterpret_cast<std::uint16_t*>(target), count);
  }
}

void widen_add(DType type, const std::byte* source, float* target, std::int64_t count) {
  if (type == DType::f32) {
    add(target, reinterpret_cast<const float*>(source), count);
  } else {
    widen_add_16(type, reinterpret_cast<const std::uint16_t*>(source), target, count);
  }
}

void sum(DType type, std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
         std::int64_t count) {
  constexpr std::int64_t block = 2048;  // elements; fits the L1 cache
  float total[block];
  const auto size = static_cast<std::int64_t>(size_bytes(type));
  for (std::int64_t first = 0; first < count; first += block) {
    const std::int64_t n = count - first < block ? count - first : block;
    widen(type, sources[0] + first * size, total, n);
    for (const std::byte* source : sources.subspan(1)) widen_add(type, source + first * size, total, n);
    for (std::byte* target : targets) narrow(type, total, target + first * size, n);
  }
}

SHINGLE_VECTOR void add_scaled(float* x, const float* y, float factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[i] += factor * y[i];
}

SHINGLE_VECTOR void multiply(float* x, float factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[i] *= factor;
}

SHINGLE_VECTOR void add(float* x, const float* bias, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[i] += bias[i];
}

SHINGLE_VECTOR void activate(Activation activation, float* x, std::int64_t count) {
  if (activation == Activation::relu) {
    for (std::int64_t i = 0; i < count; ++i) x[i] = x[i] < 0 ? 0.0f : x[i];  // NaN stays NaN
  } else if (activation == Activation::gelu) {
    for (std::int64_t i = 0; i < count; ++i)
      x[i] = 0.5f * x[i] * (1.0f + error_function(x[i] * 0.707106781f));
  } else if (activation == Activation::silu) {
    for (std::int64_t i = 0; i < count; ++i) x[i] = x[i] * sigmoid(x[i]);
  }
}

SHINGLE_VECTOR void swiglu(float* gate, const float* up, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) gate[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

SHINGLE_VECTOR float exponentials(float* x, float shift, std::int64_t count) {
  constexpr int lanes = 32;
  float partial[lanes] = {};
  for (std::int64_t i = 0; i < count; ++i) x[i] = exponential(x[i] - shift);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int j = 0; j < lanes; ++j) partial[j] += x[i + j];
  for (; i < count; ++i) partial[i % lanes] += x[i];
  float total = 0;
  for (const float value : partial) total += value;
  return total;
}

SHINGLE_VECTOR float sum_squares(const float* x, std::int64_t count) {
  // Two vectors of partial sums: additions to a single sum would run in sequence.
  constexpr int lanes = 32;
  float partial[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int j = 0; j < lanes; ++j) partial[j] += x[i + j] * x[i + j];
  for (; i < count; ++i) partial[i % lanes] += x[i] * x[i];
  float total = 0;
  for (const float value : partial) total += value;
  return total;
}

SHINGLE_VECTOR void scale(const float* x, float scale, const float* weight, float* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = x[i] * scale * weight[i];
}

}  // namespace shingle::host
