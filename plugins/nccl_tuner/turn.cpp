#include "turn.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

namespace shingle::nccl_tuner {

Turn::Turn(const std::string& name) : path_(fmt::format("/shingle-tuner-{}-turn{}", ::getuid(), name)) {}

bool Turn::take() {
  if (fd_ >= 0) return true;
  const int fd = ::shm_open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    return false;
  }
  fd_ = fd;
  return true;
}

void Turn::give_back() {
  if (fd_ < 0) return;
  ::flock(fd_, LOCK_UN);  // a child forked meanwhile would otherwise keep the lock
  ::close(fd_);
  fd_ = -1;
}

}  // namespace shingle::nccl_tuner
