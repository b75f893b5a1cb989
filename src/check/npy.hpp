// Matrices in NumPy's .npy format: the user's own inputs and outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/base/dtype.hpp"

namespace shingle {

/// What an .npy file says of itself. A 1-D array of n elements is one row of n columns.
struct NpyHeader {
  DType dtype = DType::f32;  ///< '<f4', '<f2', or '<u2' for bf16, which NumPy has no type for
  std::int64_t rows = 0;     ///< 0 to max_extent
  std::int64_t cols = 0;
  bool fortran_order = false;   ///< how the file stores it
  std::size_t data_offset = 0;  ///< where the elements start, in bytes

  std::size_t bytes() const { return static_cast<std::size_t>(rows * cols) * size_bytes(dtype); }
};

/// A matrix, always row-major: rows × cols elements of `dtype` without gaps.
struct NpyArray {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<std::byte> data;
};

/// Versions 1 to 3, little endian, 1-D or 2-D, C or Fortran order (which is transposed). Throws IoError where
/// the file cannot be read, InvalidArgument where it is no such array or is shorter or longer than its header
/// says: one line with the path. Nothing is allocated before the file's length has been checked against the
/// header.
NpyArray read_npy(const std::string& path);
/// The header alone, with the same checks: to know what a matrix will take before it is read.
NpyHeader read_npy_header(const std::string& path);
/// The same from memory; `name` stands for the path in messages.
NpyArray parse_npy(std::span<const std::byte> file, std::string_view name);

/// Writes rows × cols row-major elements (`data` holds exactly that many bytes) as version 1.0, C order; bf16
/// as '<u2', to be viewed as ml_dtypes.bfloat16. The file appears whole or not at all. Throws IoError, or
/// InvalidArgument on a wrong size.
void write_npy(const std::string& path, DType dtype, std::int64_t rows, std::int64_t cols,
               std::span<const std::byte> data);
void write_npy(const std::string& path, const NpyArray& array);

}  // namespace shingle
