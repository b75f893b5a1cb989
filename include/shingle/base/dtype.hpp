// Element types and their conversion to and from fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shingle {

/// i32: indices and counts. Operands of products are of the other types.
enum class DType : std::uint8_t { f32, bf16, f16, i32 };

constexpr bool is_floating(DType type) {
  return type != DType::i32;
}
constexpr std::size_t size_bytes(DType type) {
  return type == DType::f32 || type == DType::i32 ? 4 : 2;
}

/// "f32", "bf16", "f16", "i32".
std::string_view name(DType type);
/// A type of operands: accepts its name() and also fp32, float32, bfloat16, fp16, float16, half. Throws
/// InvalidArgument on other text.
DType parse_dtype(std::string_view text);

/// Distance from 1 to the next value of the type. f32: 2^-23, bf16: 2^-7 (8 significant bits), f16: 2^-10;
/// i32: 1.
double epsilon(DType type);

/// Rounding is to nearest even, as hardware rounds. NaN stays NaN.
std::uint16_t to_bf16(float value);
float from_bf16(std::uint16_t bits);
std::uint16_t to_f16(float value);
float from_f16(std::uint16_t bits);

/// widen() converts `count` elements of `type` to fp32. narrow() converts back, with one rounding. Of i32
/// both are exact up to 2^24.
void widen(DType type, const void* source, float* target, std::size_t count);
void narrow(DType type, const float* source, void* target, std::size_t count);

/// Reads or writes one element at index `i` of an array of `type`.
float load_element(DType type, const void* array, std::size_t i);
void store_element(DType type, void* array, std::size_t i, float value);

}  // namespace shingle
