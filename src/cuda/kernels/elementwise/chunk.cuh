// Chunks: the elements that one thread moves at a time in registers, 16 bytes or a multiple.
//
// A chunk is moved element by element if its memory is not aligned to 16 bytes, or if the edge of a matrix
// cuts it. Elements beyond the edge are zero.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/kernels/ptx/memory.cuh"

namespace shingle::cuda {

inline constexpr int vector_bytes = 16;

__device__ inline bool aligned(const void* at) {
  return (reinterpret_cast<std::uintptr_t>(at) & (vector_bytes - 1)) == 0;
}

/// `length` elements of type T, in 32-bit words.
template <class T, int length>
struct Chunk {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4);
  static constexpr int bytes = length * static_cast<int>(sizeof(T));
  static constexpr int words = bytes / 4;
  static_assert(bytes % vector_bytes == 0);
  std::uint32_t word[words] = {};
};

/// Inserts an element at the front. Registers can only be indexed by constants, so the other elements move.
template <class T, int length>
__device__ inline void push_front(Chunk<T, length>& chunk, std::uint32_t bits) {
#pragma unroll
  for (int w = chunk.words - 1; w > 0; --w)
    chunk.word[w] =
        sizeof(T) == 4 ? chunk.word[w - 1] : __funnelshift_l(chunk.word[w - 1], chunk.word[w], 16);
  chunk.word[0] = sizeof(T) == 4 ? bits : chunk.word[0] << 16 | bits;
}

/// Removes the first element.
template <class T, int length>
__device__ inline std::uint32_t pop_front(Chunk<T, length>& chunk) {
  const std::uint32_t bits = sizeof(T) == 4 ? chunk.word[0] : chunk.word[0] & 0xffffu;
#pragma unroll
  for (int w = 0; w + 1 < chunk.words; ++w)
    chunk.word[w] =
        sizeof(T) == 4 ? chunk.word[w + 1] : __funnelshift_r(chunk.word[w], chunk.word[w + 1], 16);
  chunk.word[chunk.words - 1] = sizeof(T) == 4 ? 0 : chunk.word[chunk.words - 1] >> 16;
  return bits;
}

template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;

/// Whether loaded lines stay in L1.
enum class Reuse { once, often };

/// Loads a chunk from a multiple of 16 bytes.
template <Reuse reuse = Reuse::once, class T, int length>
__device__ inline void load_whole(Chunk<T, length>& chunk, const char* at) {
#pragma unroll
  for (int i = 0; i < chunk.words; i += 4) {
    const uint4 part = reuse == Reuse::once ? ptx::load_once(at + i * 4) : ptx::load(at + i * 4);
    chunk.word[i] = part.x;
    chunk.word[i + 1] = part.y;
    chunk.word[i + 2] = part.z;
    chunk.word[i + 3] = part.w;
  }
}

/// Stores a chunk at a multiple of 16 bytes.
template <class T, int length>
__device__ inline void store_whole(const Chunk<T, length>& chunk, char* at) {
#pragma unroll
  for (int i = 0; i < chunk.words; i += 4)
    ptx::store(at + i * 4,
               make_uint4(chunk.word[i], chunk.word[i + 1], chunk.word[i + 2], chunk.word[i + 3]));
}

/// Loads the first `count` elements at `at` into a chunk of zeros.
template <Reuse reuse = Reuse::once, class T, int length>
__device__ inline void load(Chunk<T, length>& chunk, const char* at, int count) {
  if (count >= length && aligned(at)) {
    load_whole<reuse>(chunk, at);
  } else {
#pragma unroll 1
    for (int i = min(count, length) - 1; i >= 0; --i)
      push_front(chunk, reinterpret_cast<const Bits<T>*>(at)[i]);
  }
}

template <class T, int length>
__device__ inline void store(Chunk<T, length> chunk, char* at, int count) {
  if (count >= length && aligned(at)) {
    store_whole(chunk, at);
  } else {
#pragma unroll 1
    for (int i = 0; i < min(count, length); ++i)
      reinterpret_cast<Bits<T>*>(at)[i] = static_cast<Bits<T>>(pop_front(chunk));
  }
}

/// Converts the numbers in a word to fp32, and back with rounding to nearest even.
template <class T>
struct Numbers;

template <>
struct Numbers<float> {
  static __device__ float2 widen(std::uint32_t word) { return {__uint_as_float(word), 0}; }
  static __device__ std::uint32_t narrow(float x, float) { return __float_as_uint(x); }
};

template <>
struct Numbers<__nv_bfloat16> {
  static __device__ float2 widen(std::uint32_t word) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  }
  static __device__ std::uint32_t narrow(float x, float y) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
};

template <>
struct Numbers<__half> {
  static __device__ float2 widen(std::uint32_t word) {
    return {__half2float(__ushort_as_half(static_cast<unsigned short>(word))),
            __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)))};
  }
  static __device__ std::uint32_t narrow(float x, float y) {
    const __half2 pair = __floats2half2_rn(x, y);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
};

/// Element i in fp32. The index must be a compile-time constant.
template <class T, int length>
__device__ inline float widened(const Chunk<T, length>& chunk, int i) {
  constexpr int per_word = 4 / static_cast<int>(sizeof(T));
  const float2 pair = Numbers<T>::widen(chunk.word[i / per_word]);
  return i % per_word == 0 ? pair.x : pair.y;
}

template <class T, int length>
__device__ inline void add(float (&x)[length], const Chunk<T, length>& chunk) {
#pragma unroll
  for (int i = 0; i < length; ++i) x[i] += widened(chunk, i);
}

/// Adds a multiple of the chunk.
template <class T, int length>
__device__ inline void add(float (&x)[length], const Chunk<T, length>& chunk, float factor) {
#pragma unroll
  for (int i = 0; i < length; ++i) x[i] += factor * widened(chunk, i);
}

template <class T, int length>
__device__ inline Chunk<T, length> narrowed(const float (&x)[length]) {
  constexpr int per_word = 4 / static_cast<int>(sizeof(T));
  Chunk<T, length> chunk;
#pragma unroll
  for (int i = 0; i < chunk.words; ++i)
    chunk.word[i] = Numbers<T>::narrow(x[i * per_word], x[i * per_word + per_word - 1]);
  return chunk;
}

}  // namespace shingle::cuda
