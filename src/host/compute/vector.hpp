// Loops over rows of numbers, compiled for the widest vectors of the machine they run on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shingle/plan/problem.hpp"

namespace shingle::host {

/// `count` elements of `type` at `source` as fp32 in `target`, and back with one rounding to nearest even.
void widen(DType type, const std::byte* source, float* target, std::int64_t count);
void narrow(DType type, const float* source, std::byte* target, std::int64_t count);
/// target += source.
void widen_add(DType type, const std::byte* source, float* target, std::int64_t count);

/// The sum of `sources`, in their order in fp32 and rounded once, to every one of `targets`; a target may be
/// one of the sources.
void sum(DType type, std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
         std::int64_t count);

/// x += bias; relu, gelu or silu in place.
void add(float* x, const float* bias, std::int64_t count);
void activate(Activation activation, float* x, std::int64_t count);
/// gate = silu(gate) · up.
void swiglu(float* gate, const float* up, std::int64_t count);

/// x = e^(x - shift); returns their sum, whose order depends on `count` only.
float exponentials(float* x, float shift, std::int64_t count);

/// Sum of squares; the order of summation depends on `count` only.
float sum_squares(const float* x, std::int64_t count);
/// y = x · scale · weight.
void scale(const float* x, float scale, const float* weight, float* y, std::int64_t count);

}  // namespace shingle::host
