#include "file_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "shingle/base/error.hpp"

namespace shingle::tuning {

FileLock::FileLock(const std::string& path, std::chrono::milliseconds deadline) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds between_tries{2};
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw IoError(fmt::format("{}: {}", path, std::strerror(errno)));
  // Polls, because a blocking flock() has no deadline.
  const auto end = Clock::now() + deadline;
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    const bool held = error == EWOULDBLOCK;
    if ((held && Clock::now() < end) || error == EINTR) {
      std::this_thread::sleep_for(between_tries);
      continue;
    }
    ::close(fd_);
    throw IoError(fmt::format("{}: {}", path, held ? "locked by another process" : std::strerror(error)));
  }
}

FileLock::~FileLock() {
  ::close(fd_);
}

}  // namespace shingle::tuning
