#include "shingle/base/dtype.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "shingle/base/error.hpp"

namespace shingle {
namespace {

// Not the public functions: in position-independent code these are calls, and no loop of calls is vectorised.

std::uint16_t bf16_bits(float value) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t quiet = (bits >> 16) | 0x40;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<std::uint16_t>(nan ? quiet : bits >> 16);
}

float bf16_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t f16_bits(float value) {
  return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
}

float f16_value(std::uint16_t bits) {
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}

}  // namespace

std::string_view name(DType type) {
  switch (type) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
  }
  return "?";
}

DType parse_dtype(std::string_view text) {
  if (text == "f32" || text == "fp32" || text == "float32") return DType::f32;
  if (text == "bf16" || text == "bfloat16") return DType::bf16;
  if (text == "f16" || text == "fp16" || text == "float16" || text == "half") return DType::f16;
  throw InvalidArgument("unknown dtype '" + std::string(text) + "' (f32, bf16 or f16)");
}

double epsilon(DType type) {
  switch (type) {
    case DType::f32:
      return std::ldexp(1.0, -23);
    case DType::bf16:
      return std::ldexp(1.0, -7);
    case DType::f16:
      return std::ldexp(1.0, -10);
    case DType::i32:
      return 1;
  }
  return 0;
}

std::uint16_t to_bf16(float value) {
  return bf16_bits(value);
}

float from_bf16(std::uint16_t bits) {
  return bf16_value(bits);
}

std::uint16_t to_f16(float value) {
  return f16_bits(value);
}

float from_f16(std::uint16_t bits) {
  return f16_value(bits);
}

void widen(DType type, const void* source, float* target, std::size_t count) {
  if (type == DType::f32) {
    if (count > 0) std::memcpy(target, source, count * sizeof(float));  // an empty array may be null
    return;
  }
  if (type == DType::i32) {
    const auto* whole = static_cast<const std::int32_t*>(source);
    for (std::size_t i = 0; i < count; ++i) target[i] = static_cast<float>(whole[i]);
    return;
  }
  const auto* half = static_cast<const std::uint16_t*>(source);
  if (type == DType::bf16) {
    for (std::size_t i = 0; i < count; ++i) target[i] = bf16_value(half[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) target[i] = f16_value(half[i]);
  }
}

void narrow(DType type, const float* source, void* target, std::size_t count) {
  if (type == DType::f32) {
    if (count > 0) std::memcpy(target, source, count * sizeof(float));  // an empty array may be null
    return;
  }
  if (type == DType::i32) {
    auto* whole = static_cast<std::int32_t*>(target);
    for (std::size_t i = 0; i < count; ++i) whole[i] = static_cast<std::int32_t>(source[i]);
    return;
  }
  auto* half = static_cast<std::uint16_t*>(target);
  if (type == DType::bf16) {
    for (std::size_t i = 0; i < count; ++i) half[i] = bf16_bits(source[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) half[i] = f16_bits(source[i]);
  }
}

float load_element(DType type, const void* array, std::size_t i) {
  float value;
  widen(type, static_cast<const std::byte*>(array) + i * size_bytes(type), &value, 1);
  return value;
}

void store_element(DType type, void* array, std::size_t i, float value) {
  narrow(type, &value, static_cast<std::byte*>(array) + i * size_bytes(type), 1);
}

}  // namespace shingle
