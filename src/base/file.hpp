// Reads a whole file within a bound, and writes one atomically: no reader sees a partial file.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "shingle/base/error.hpp"

namespace shingle {

/// A file cannot be written, for example because the disk is full.
class WriteError : public IoError {
 public:
  using IoError::IoError;
};

/// Returns the bytes of `path`, which may be a pipe. Throws IoError ("PATH: reason") if the file cannot be
/// read, is a directory or holds more than `max_bytes`. Memory use is bounded by `max_bytes`.
std::string read_file(const std::string& path, std::size_t max_bytes);

/// Replaces `path` by `bytes`: writes a temporary file beside it, syncs, renames. On failure it throws
/// WriteError ("PATH: reason"), keeps the existing file and removes the temporary.
///
/// An existing file keeps its mode. A symbolic link stays, and its target is replaced. A device or a pipe
/// (/dev/stdout) is written to directly.
void write_file_atomically(const std::string& path, std::string_view bytes);
/// As above, for consecutive pieces, so that a header need not be copied in front of a large matrix.
void write_file_atomically(const std::string& path, std::span<const std::string_view> pieces);

/// Path of a file that ships with Shingle, for example "machines/h200x8.json"; empty if it is not found. It
/// is searched below share/shingle of the installation that holds the library, also if that installation was
/// moved. Otherwise it is searched in the source tree of the build.
std::string find_shipped(std::string_view name);

}  // namespace shingle
