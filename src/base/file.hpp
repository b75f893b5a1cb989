// Whole files, read within a bound and written so that nobody ever sees half of one.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "shingle/base/error.hpp"

namespace shingle {

/// A file cannot be written: the disk is full, say.
class WriteError : public IoError {
 public:
  using IoError::IoError;
};

/// The bytes of `path`, which may also be a pipe. Throws IoError ("PATH: reason") where it cannot be read, is
/// a directory or holds more than `max_bytes`; never keeps much more than that in memory.
std::string read_file(const std::string& path, std::size_t max_bytes);

/// Replaces `path` by `bytes`: writes beside it, syncs, renames. On failure throws WriteError ("PATH:
/// reason"), leaves what was there as it was and the temporary nowhere. An existing file keeps its mode; a
/// symbolic link stays and its target is replaced; a device or a pipe (/dev/stdout) is written to directly.
void write_file_atomically(const std::string& path, std::string_view bytes);
/// The same for pieces that follow each other, so that a header need not be copied in front of a large
/// matrix.
void write_file_atomically(const std::string& path, std::span<const std::string_view> pieces);

/// A file that ships with the library, such as "machines/h200x8.json": below share/shingle of the
/// installation that the library is part of, which may have moved, or of the source tree that it was built
/// in. Empty where there is neither.
std::string find_shipped(std::string_view name);

}  // namespace shingle
