#include "npy.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/file.hpp"
#include "npy_header.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/problem.hpp"

namespace shingle {
namespace {

/// A regular file, read at positions, so that a matrix is read to its final place. O_NONBLOCK: a pipe is
/// refused at once, instead of blocking the open.
class File {
 public:
  explicit File(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) throw failed(errno);
    struct stat status {};
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(fd_);
      throw IoError(path_ + ": not a regular file");
    }
    bytes_ = static_cast<std::size_t>(status.st_size);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { ::close(fd_); }

  std::size_t bytes() const { return bytes_; }

  void read(std::size_t offset, void* target, std::size_t count) const {
    auto* at = static_cast<char*>(target);
    while (count > 0) {
      const ssize_t got = ::pread(fd_, at, count, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw failed(errno);
      if (got == 0) throw IoError(path_ + ": became shorter while it was read");
      at += got;
      offset += static_cast<std::size_t>(got);
      count -= static_cast<std::size_t>(got);
    }
  }

 private:
  IoError failed(int error) const { return IoError(fmt::format("{}: {}", path_, std::strerror(error))); }

  std::string path_;
  int fd_;
  std::size_t bytes_ = 0;
};

/// Runs `read` and prefixes its errors with the file's name.
template <class Read>
auto named(std::string_view name, Read read) {
  try {
    return read();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", name, error.what()));
  } catch (const std::bad_alloc&) {
    throw InvalidArgument(fmt::format("{}: the matrix does not fit into memory", name));
  }
}

NpyHeader header_of(const File& file) {
  char prelude[npy::prelude_bytes];
  const std::size_t known = std::min(sizeof prelude, file.bytes());
  file.read(0, prelude, known);
  std::string header(npy::data_offset({prelude, known}, file.bytes()), '\0');
  file.read(0, header.data(), header.size());
  return npy::parse_header(header, file.bytes());
}

template <class Element>
void transpose(const std::byte* source, std::byte* target, std::int64_t rows, std::int64_t cols) {
  // Blocks keep both sides in cache. memcpy is needed because a file's bytes may not be aligned.
  constexpr std::int64_t block = 32;
  for (std::int64_t row0 = 0; row0 < rows; row0 += block)
    for (std::int64_t col0 = 0; col0 < cols; col0 += block)
      for (std::int64_t row = row0; row < std::min(row0 + block, rows); ++row)
        for (std::int64_t col = col0; col < std::min(col0 + block, cols); ++col)
          std::memcpy(target + (row * cols + col) * static_cast<std::int64_t>(sizeof(Element)),
                      source + (col * rows + row) * static_cast<std::int64_t>(sizeof(Element)),
                      sizeof(Element));
}

/// The array of a header. `read(target)` stores its elements in the file's order.
template <class Read>
NpyArray assemble(const NpyHeader& header, Read read) {
  NpyArray array{header.dtype, header.rows, header.cols, std::vector<std::byte>(header.bytes())};
  if (!header.fortran_order || header.rows <= 1 || header.cols <= 1) {
    read(array.data.data());
    return array;
  }
  std::vector<std::byte> columns(header.bytes());
  read(columns.data());
  if (size_bytes(header.dtype) == 4) {
    transpose<std::uint32_t>(columns.data(), array.data.data(), header.rows, header.cols);
  } else {
    transpose<std::uint16_t>(columns.data(), array.data.data(), header.rows, header.cols);
  }
  return array;
}

}  // namespace

NpyArray read_npy(const std::string& path) {
  const File file(path);
  return named(path, [&] {
    const NpyHeader header = header_of(file);
    return assemble(header,
                    [&](std::byte* target) { file.read(header.data_offset, target, header.bytes()); });
  });
}

NpyHeader read_npy_header(const std::string& path) {
  const File file(path);
  return named(path, [&] { return header_of(file); });
}

NpyArray parse_npy(std::span<const std::byte> file, std::string_view name) {
  return named(name, [&] {
    const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
    const std::size_t offset = npy::data_offset(text.substr(0, npy::prelude_bytes), file.size());
    const NpyHeader header = npy::parse_header(text.substr(0, offset), file.size());
    return assemble(header, [&](std::byte* target) {
      if (header.bytes() > 0) std::memcpy(target, file.data() + offset, header.bytes());
    });
  });
}

void write_npy(const std::string& path, DType dtype, std::int64_t rows, std::int64_t cols,
               std::span<const std::byte> data) {
  if (rows < 0 || cols < 0 || rows > max_extent || cols > max_extent)
    throw InvalidArgument(fmt::format("{}: a {}x{} matrix cannot be written", path, rows, cols));
  // By division, because the product of the largest extents and the element size overflows.
  if (data.size() % size_bytes(dtype) != 0 ||
      static_cast<std::size_t>(rows * cols) != data.size() / size_bytes(dtype))
    throw InvalidArgument(
        fmt::format("{}: {} bytes are not a {}x{} matrix of {}", path, data.size(), rows, cols, name(dtype)));
  const std::string header = npy::format_header(dtype, rows, cols);
  const std::string_view pieces[] = {header, {reinterpret_cast<const char*>(data.data()), data.size()}};
  write_file_atomically(path, pieces);
}

void write_npy(const std::string& path, const NpyArray& array) {
  write_npy(path, array.dtype, array.rows, array.cols, array.data);
}

}  // namespace shingle
