#include "file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle {
namespace {

std::string reason(const std::string& path, int error) {
  return fmt::format("{}: {}", path, std::strerror(error));
}

IoError failed(const std::string& path, int error) {
  return IoError(reason(path, error));
}

WriteError not_written(const std::string& path, int error) {
  return WriteError(reason(path, error));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

/// Opens `path`. Errors name `asked`, the path that the user gave.
Descriptor open_or_throw(const std::string& path, int flags, const std::string& asked) {
  // The system would cut a path at a NUL and open another file.
  if (path.find('\0') != std::string::npos) throw IoError("a path must not hold a NUL character");
  int fd;
  do fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  while (fd < 0 && errno == EINTR);
  if (fd < 0 && (flags & O_WRONLY) != 0) throw not_written(asked, errno);
  if (fd < 0) throw failed(asked, errno);
  return Descriptor(fd);
}

void write_all(const Descriptor& file, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw not_written(path, errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// Removes a file on destruction, unless it was renamed.
struct Temporary {
  std::string path;
  bool renamed = false;
  ~Temporary() {
    if (!renamed) ::unlink(path.c_str());
  }
};

/// The target of a symbolic link; `path` itself if it does not exist yet.
std::string resolved(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
  return real ? real.get() : path;
}

/// A name beside `path` that no other thread or process of this machine uses.
std::string beside(const std::string& path) {
  static std::atomic<unsigned> serial{0};
  return fmt::format("{}.{}.{}.tmp", path, ::getpid(), serial++);
}

/// Makes the rename durable, with best effort. Some file systems cannot sync a directory. The file is whole
/// in either case.
void sync_directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const Descriptor opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() >= 0) static_cast<void>(::fsync(opened.get()));
}

}  // namespace

std::string read_file(const std::string& path, std::size_t max_bytes) {
  const Descriptor file = open_or_throw(path, O_RDONLY, path);
  std::string bytes;
  // The size from fstat is only a hint: pipes have none, and a file may grow while it is read.
  struct stat status {};
  std::size_t room = 4096;
  if (::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode))
    room = std::max(room, std::min(static_cast<std::size_t>(status.st_size), max_bytes) + 1);
  std::size_t length = 0;
  for (;;) {
    if (length == bytes.size()) bytes.resize(length == 0 ? room : 2 * length);
    const ssize_t got = ::read(file.get(), bytes.data() + length, bytes.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw failed(path, errno);
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
    if (length > max_bytes)
      throw IoError(
          fmt::format("{}: larger than the limit of {}", path, format_bytes(static_cast<double>(max_bytes))));
  }
  bytes.resize(length);
  return bytes;
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  write_file_atomically(path, std::span(&bytes, 1));
}

void write_file_atomically(const std::string& path, std::span<const std::string_view> pieces) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) throw not_written(path, EISDIR);
  if (exists && !S_ISREG(status.st_mode)) {
    // Renaming over a device would destroy it.
    const Descriptor device = open_or_throw(path, O_WRONLY, path);
    for (const std::string_view piece : pieces) write_all(device, piece, path);
    return;
  }
  const std::string target = resolved(path);
  const std::string name = beside(target);
  Descriptor file = open_or_throw(name, O_WRONLY | O_CREAT | O_EXCL, path);
  Temporary temporary{name};
  if (exists) static_cast<void>(::fchmod(file.get(), status.st_mode & 07777));
  for (const std::string_view piece : pieces) write_all(file, piece, path);
  if (::fsync(file.get()) != 0) throw not_written(path, errno);
  if (file.close() != 0) throw not_written(path, errno);
  if (std::rename(name.c_str(), target.c_str()) != 0) throw not_written(path, errno);
  temporary.renamed = true;
  sync_directory_of(target);
}

}  // namespace shingle
