// MPI with our errors and deadlines: every wait is a nonblocking call that is polled. One thread at a time is
// in MPI: lanes call it briefly, and libraries are at their best that way.
#pragma once

#ifdef SHINGLE_WITH_MPI
#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "host/executor/health.hpp"
#include "shingle/base/dtype.hpp"

namespace shingle::host {

/// Throws MpiError with MPI's words where `code` is not MPI_SUCCESS.
void require_success(int code, std::string_view call);

std::mutex& mpi_mutex();

/// mpi("MPI_Test", MPI_Test, &request, &flag, &status): the call, checked, and alone in MPI.
template <class Function, class... Arguments>
void mpi(std::string_view call, Function function, const Arguments&... arguments) {
  const std::lock_guard lock(mpi_mutex());
  require_success(function(arguments...), call);
}

/// This process among those of MPI_COMM_WORLD. Initialises MPI at first use, and finalises at exit what it
/// has initialised (or aborts, where leave_by_abort() was called).
class MpiProcess {
 public:
  /// `timeout_us`: for all processes to come, at the first call. A call of MPI that blocks cannot be given
  /// up: if they do not come, the process says who is missing and exits with 1.
  static MpiProcess& get(double timeout_us);

  int rank() const { return rank_; }
  int size() const { return size_; }
  int ranks_on_this_host() const { return on_host_; }
  /// All ranks, for messages of our own.
  MPI_Comm comm() const { return comm_; }
  /// The first of `tags_of_a_channel` tags for messages among these ranks. All processes ask in the same
  /// order. Kept for the life of the process: the n-th channel of the same ranks is the same again. Throws
  /// Unsupported where MPI has no tags left.
  int channel(const std::vector<int>& ranks, int n);
  /// From now on the process cannot leave MPI in order: others may be gone.
  void leave_by_abort();

 private:
  explicit MpiProcess(double timeout_us);
  void join();
  static void leave();
  struct Channel {
    std::vector<int> ranks;
    int n;
  };
  int rank_ = 0, size_ = 1, on_host_ = 1;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int last_tag_ = 0;
  std::vector<Channel> channels_;
};

/// Tags of messages that concern the whole world; those of channels follow.
enum class ControlTag : int { failure = 1, meeting = 2 };
inline constexpr int first_channel_tag = 8, tags_of_a_channel = 4;

/// Requests that complete together.
class Requests {
 public:
  /// To be handed to MPI at once. `peer`: the rank of the world that has to come for it to complete.
  MPI_Request* add(int peer) {
    peers_.push_back(peer);
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }
  /// Ranks whose requests are not complete, each once. After wait().
  std::vector<int> late() const;
  /// Polls until all are complete: true; or until the deadline: false. Throws Stopped. Between polls it
  /// yields, then sleeps up to `nap_us`. Of the first 64 requests, bit i of `pending` says whether the i-th
  /// is not complete.
  bool wait(const Health& health, Clock::time_point deadline, double nap_us,
            std::atomic<std::uint64_t>* pending = nullptr);

 private:
  bool test(std::atomic<std::uint64_t>* pending);
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
};

/// Memory of an operation that MPI may go on using when waiting for it fails: it is then left to MPI.
template <class T>
class Lent {
 public:
  explicit Lent(T value) : value_(std::make_unique<T>(std::move(value))) {}
  ~Lent() {
    if (std::uncaught_exceptions() > exceptions_) (void)value_.release();
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  T& operator*() { return *value_; }
  T* operator->() { return value_.get(); }

 private:
  std::unique_ptr<T> value_;
  int exceptions_ = std::uncaught_exceptions();
};

MPI_Datatype mpi_type(DType type);

}  // namespace shingle::host
#endif
