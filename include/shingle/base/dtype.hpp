// Element types and their conversion to and from fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shingle {

enum class DType : std::uint8_t { f32, bf16, f16 };

constexpr std::size_t size_bytes(DType type) {
  return type == DType::f32 ? 4 : 2;
}

/// "f32", "bf16", "f16".
std::string_view name(DType type);
/// Also takes fp32/float32, bfloat16, fp16/float16/half. Throws InvalidArgument.
DType parse_dtype(std::string_view text);

/// Distance from 1 to the next value of the type: 2^-23, 2^-7 (bf16 stores 8 significant bits), 2^-10.
double epsilon(DType type);

/// Round to nearest even, as hardware does; NaN stays NaN.
std::uint16_t to_bf16(float value);
float from_bf16(std::uint16_t bits);
std::uint16_t to_f16(float value);
float from_f16(std::uint16_t bits);

/// `count` elements of `type` at `source` widened to fp32, and back with one rounding.
void widen(DType type, const void* source, float* target, std::size_t count);
void narrow(DType type, const float* source, void* target, std::size_t count);

/// One element at index `i` of an array of `type`.
float load_element(DType type, const void* array, std::size_t i);
void store_element(DType type, void* array, std::size_t i, float value);

}  // namespace shingle
