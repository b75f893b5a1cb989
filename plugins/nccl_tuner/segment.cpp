#include "segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "shingle/base/error.hpp"

namespace shingle::nccl_tuner {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

std::int64_t now_ns() {  // a clock common to all processes of a host
  return std::chrono::duration_cast<nanoseconds>(Clock::now().time_since_epoch()).count();
}

Error failed(const std::string& name) {
  return Error(fmt::format("shared memory {}: {}", name, std::strerror(errno)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    ::flock(fd_, LOCK_UN);  // close() would leave the lock to the mapping
    ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

/// Polls, because a blocking flock() has no deadline.
void lock(const Descriptor& file, const std::string& name, Clock::time_point end) {
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if ((errno != EWOULDBLOCK && errno != EINTR) || Clock::now() >= end) throw failed(name);
    std::this_thread::sleep_for(milliseconds(1));
  }
}

bool is_alive(std::int32_t process) {
  return ::kill(process, 0) == 0 || errno != ESRCH;
}

/// True if ranks of the current job are joining this segment. False for the remains of a job that died.
bool is_fresh(const Shared& shared, std::uint32_t ranks, std::chrono::microseconds deadline) {
  if (shared.version != Shared::layout || shared.ranks != ranks || shared.joined >= ranks) return false;
  if (shared.verdict != Shared::forming) return false;
  if (now_ns() - shared.created_ns > nanoseconds(deadline).count()) return false;
  for (std::uint32_t i = 0; i < shared.joined; ++i)
    if (!is_alive(shared.process[i])) return false;
  return true;
}

}  // namespace

Segment::Segment(std::uint64_t communicator_id, std::uint32_t ranks, const Credentials& credentials,
                 std::chrono::microseconds deadline)
    : name_(fmt::format("/shingle-tuner-{}-{:016x}", ::getuid(), communicator_id)), deadline_(deadline) {
  if (ranks > Shared::most_ranks)
    throw Error(fmt::format("{} ranks on one host; at most {} are supported", ranks, Shared::most_ranks));
  constexpr int tries = 100;  // each failed try met another job's segment that disappeared meanwhile
  for (int i = 0; i < tries; ++i)
    if (join(name_, ranks, credentials)) return;
  throw Error(fmt::format("shared memory {}: other jobs keep removing it", name_));
}

/// One try. Returns false if the segment was stale; it is then removed.
bool Segment::join(const std::string& name, std::uint32_t ranks, const Credentials& credentials) {
  const int fd = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) throw failed(name);
  const Descriptor file(fd);
  lock(file, name, Clock::now() + deadline_);
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw failed(name);
  if (status.st_nlink == 0) return false;
  if (status.st_uid != ::geteuid() || (status.st_mode & 077) != 0)
    throw Error(fmt::format("shared memory {}: another user owns it or has access to it; remove it", name));
  const bool created = status.st_size == 0;
  if (!created && status.st_size != sizeof(Shared)) {
    ::shm_unlink(name.c_str());
    return false;
  }
  if (created && ::ftruncate(fd, sizeof(Shared)) != 0) {
    ::shm_unlink(name.c_str());
    throw failed(name);
  }
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) throw failed(name);
  auto* shared = static_cast<Shared*>(memory);
  if (created) {
    shared = new (memory) Shared;
    shared->ranks = ranks;
    shared->created_ns = now_ns();
    shared->first = credentials;
    shared->version = Shared::layout;
  } else if (!is_fresh(*shared, ranks, deadline_)) {
    ::shm_unlink(name.c_str());
    ::munmap(memory, sizeof(Shared));
    return false;
  }
  shared->differences |= nccl_tuner::differences(credentials, shared->first);
  place_ = shared->joined;
  shared->process[place_] = ::getpid();
  shared_ = shared;
  proposals_.emplace(shared->proposal, ranks);
  if (++shared->joined == ranks) {
    std::uint32_t forming = Shared::forming;
    shared->verdict.compare_exchange_strong(forming, Shared::complete);
    ::shm_unlink(name.c_str());
  }
  return true;
}

bool Segment::complete() {
  const auto end_ns = shared_->created_ns + nanoseconds(deadline_).count();
  while (shared_->verdict == Shared::forming) {
    if (now_ns() > end_ns) {
      std::uint32_t forming = Shared::forming;
      if (shared_->verdict.compare_exchange_strong(forming, Shared::abandoned)) ::shm_unlink(name_.c_str());
      break;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return shared_->verdict == Shared::complete;
}

Segment::~Segment() {
  ::munmap(shared_, sizeof(Shared));
}

}  // namespace shingle::nccl_tuner
