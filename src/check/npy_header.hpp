// The header of an .npy file: magic, version, length, and a Python dictionary.
#pragma once

#include <string>
#include <string_view>

#include "npy.hpp"

namespace shingle::npy {

/// Bytes of the longest prelude: magic, version and the length of the dictionary.
inline constexpr std::size_t prelude_bytes = 12;

/// Offset of the data, from the file's first `prelude_bytes` and its length; a shorter file passes fewer
/// bytes. Throws InvalidArgument, without the file's name, if it is no .npy file or its header exceeds the
/// file.
std::size_t data_offset(std::string_view prelude, std::size_t file_bytes);

/// Parses the header, which is all bytes before the data. The data must fill the rest of the file exactly.
NpyHeader parse_header(std::string_view header, std::size_t file_bytes);

/// A version 1.0 header in C order, padded so that the data is aligned to 64 bytes.
std::string format_header(DType dtype, std::int64_t rows, std::int64_t cols);

}  // namespace shingle::npy
