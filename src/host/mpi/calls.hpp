// MPI with Shingle's errors and deadlines: every wait polls a nonblocking call. Only one thread at a time is
// in MPI, and only briefly. MPI libraries perform best that way.
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

/// Throws MpiError with MPI's message if `code` is not MPI_SUCCESS.
void require_success(int code, std::string_view call);

std::mutex& mpi_mutex();

/// mpi("MPI_Test", MPI_Test, &request, &flag, &status) calls MPI under the lock and checks the result.
template <class Function, class... Arguments>
void mpi(std::string_view call, Function function, const Arguments&... arguments) {
  const std::lock_guard lock(mpi_mutex());
  require_success(function(arguments...), call);
}

/// This process in MPI_COMM_WORLD. Initialises MPI at first use. At exit it finalises MPI if it initialised
/// it, or aborts after leave_by_abort().
class MpiProcess {
 public:
  /// `timeout_us`: deadline of the first call, for all processes to start. A blocking MPI call cannot be
  /// cancelled. If processes are missing, this process names them and exits with 1.
  static MpiProcess& get(double timeout_us);

  int rank() const { return rank_; }
  int size() const { return size_; }
  int ranks_on_this_host() const { return on_host_; }
  /// Communicator of all ranks, for Shingle's own messages.
  MPI_Comm comm() const { return comm_; }
  /// The first of `tags_of_a_channel` tags for messages among `ranks`. All processes must ask in the same
  /// order. A channel lives as long as the process: the n-th channel of the same ranks is always the same.
  /// Throws Unsupported if MPI has no tags left.
  int channel(const std::vector<int>& ranks, int n);
  /// Makes the process leave by MPI_Abort: other processes may be gone, so MPI_Finalize could block.
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

/// Tags of messages that concern the whole world. The tags of channels follow them.
enum class ControlTag : int { failure = 1, meeting = 2 };
inline constexpr int first_channel_tag = 8, tags_of_a_channel = 4;

/// Requests that complete together.
class Requests {
 public:
  /// A new request, to be passed to MPI at once. It completes once `peer`, a rank of the world, has come.
  MPI_Request* add(int peer) {
    peers_.push_back(peer);
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }
  /// Ranks whose requests are not complete, each once. Call it after wait().
  std::vector<int> late() const;
  /// Polls until all requests are complete (returns true) or the deadline passes (false). Throws Stopped.
  /// Between polls it yields, then sleeps up to `nap_us`. Bit i of `pending` is set while request i is
  /// incomplete, for the first 64 requests.
  bool wait(const Health& health, Clock::time_point deadline, double nap_us,
            std::atomic<std::uint64_t>* pending = nullptr);

 private:
  bool test(std::atomic<std::uint64_t>* pending);
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
};

/// Memory of an operation that MPI may use even after waiting for it fails. It is then never freed.
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
