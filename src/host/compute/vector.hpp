// Loops over rows of numbers, compiled for the widest vectors of the processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shingle/plan/problem.hpp"

namespace shingle::host {

/// Converts `count` elements of `type` to fp32, and back with one rounding to nearest even.
void widen(DType type, const std::byte* source, float* target, std::int64_t count);
void narrow(DType type, const float* source, std::byte* target, std::int64_t count);
/// target += source.
void widen_add(DType type, const std::byte* source, float* target, std::int64_t count);

/// Stores the sum of `sources` in every one of `targets`. It adds in fp32 in the order of `sources` and
/// rounds once. A target may be one of the sources.
void sum(DType type, std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
         std::int64_t count);

/// x += factor · y.
void add_scaled(float* x, const float* y, float factor, std::int64_t count);
/// x *= factor.
void multiply(float* x, float factor, std::int64_t count);
/// x += bias. Below: relu, gelu and silu in place.
void add(float* x, const float* bias, std::int64_t count);
void activate(Activation activation, float* x, std::int64_t count);
/// gate = silu(gate) · up.
void swiglu(float* gate, const float* up, std::int64_t count);

/// x = e^(x - shift). Returns their sum, whose order of summation depends on `count` only.
float exponentials(float* x, float shift, std::int64_t count);

/// Sum of squares. The order of summation depends on `count` only.
float sum_squares(const float* x, std::int64_t count);
/// y = x · scale · weight.
void scale(const float* x, float scale, const float* weight, float* y, std::int64_t count);

}  // namespace shingle::host
