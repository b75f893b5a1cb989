// Matrices in NumPy's .npy format, for the user's own inputs and outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/base/dtype.hpp"

namespace shingle {

/// Header of an .npy file. A 1-D array of n elements is one row of n columns.
struct NpyHeader {
  DType dtype = DType::f32;  ///< '<f4', '<f2', or '<u2' for bf16, for which NumPy has no type
  std::int64_t rows = 0;     ///< 0 to max_extent
  std::int64_t cols = 0;
  bool fortran_order = false;   ///< true if the file stores columns
  std::size_t data_offset = 0;  ///< first byte of the elements

  std::size_t bytes() const { return static_cast<std::size_t>(rows * cols) * size_bytes(dtype); }
};

/// A matrix, always row-major: rows × cols elements of `dtype` without gaps.
struct NpyArray {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<std::byte> data;
};

/// Reads versions 1 to 3, little endian, 1-D or 2-D. Fortran order is transposed to C order.
///
/// Throws IoError if the file cannot be read. Throws InvalidArgument if it is no such array, or its length
/// differs from its header. The message is one line with the path. Memory is allocated only after the length
/// has been checked.
NpyArray read_npy(const std::string& path);
/// Reads only the header, with the same checks, to learn the size of a matrix before reading it.
NpyHeader read_npy_header(const std::string& path);
/// As read_npy(), from memory; `name` replaces the path in messages.
NpyArray parse_npy(std::span<const std::byte> file, std::string_view name);

/// Writes rows × cols row-major elements as version 1.0 in C order; `data` must have exactly this size. bf16
/// is written as '<u2', to be viewed as ml_dtypes.bfloat16. Readers see the whole file or none. Throws
/// IoError, or InvalidArgument on a wrong size.
void write_npy(const std::string& path, DType dtype, std::int64_t rows, std::int64_t cols,
               std::span<const std::byte> data);
void write_npy(const std::string& path, const NpyArray& array);

}  // namespace shingle
