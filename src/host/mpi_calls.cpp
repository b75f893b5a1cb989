#include "mpi_calls.hpp"

#ifdef SHINGLE_WITH_MPI
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "shingle/base/error.hpp"

namespace shingle::host {

void require_success(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw MpiError(fmt::format("{}: {}", call, std::string_view(text, static_cast<std::size_t>(length))), code,
                 -1);
}

std::mutex& mpi_mutex() {
  static auto* const mutex = new std::mutex;  // also while the process exits
  return *mutex;
}

MpiProcess& MpiProcess::get() {
  static MpiProcess* const process = new MpiProcess;  // leave() may run after static destructors
  return *process;
}

MpiProcess::MpiProcess() {
  int initialised = 0, level = MPI_THREAD_SINGLE;
  mpi("MPI_Initialized", MPI_Initialized, &initialised);
  if (initialised) {
    mpi("MPI_Query_thread", MPI_Query_thread, &level);
  } else {
    mpi("MPI_Init_thread", MPI_Init_thread, nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    initialised_here_ = true;
  }
  std::atexit(leave);
  if (level < MPI_THREAD_SERIALIZED)
    throw Unsupported("MPI was initialised without MPI_THREAD_SERIALIZED, which lanes need");
  mpi("MPI_Comm_dup", MPI_Comm_dup, MPI_COMM_WORLD, &control_);
  mpi("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler, control_, MPI_ERRORS_RETURN);
  mpi("MPI_Comm_rank", MPI_Comm_rank, control_, &rank_);
  mpi("MPI_Comm_size", MPI_Comm_size, control_, &size_);
  MPI_Comm host = MPI_COMM_NULL;
  mpi("MPI_Comm_split_type", MPI_Comm_split_type, control_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL,
      &host);
  mpi("MPI_Comm_size", MPI_Comm_size, host, &on_host_);
  mpi("MPI_Comm_free", MPI_Comm_free, &host);
}

void MpiProcess::leave() {
  MpiProcess& process = get();
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (finalised) return;
  if (process.abort_) {
    std::this_thread::sleep_for(5 * attention);  // the others may still be saying what they know
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  if (process.initialised_here_) MPI_Finalize();
}

MPI_Comm MpiProcess::communicator(const std::vector<int>& ranks, int n) {
  for (const Kept& kept : kept_)
    if (kept.ranks == ranks && kept.n == n) return kept.comm;
  const auto place = std::ranges::find(ranks, rank_);
  MPI_Comm comm = MPI_COMM_NULL;
  mpi("MPI_Comm_split", MPI_Comm_split, control_, place == ranks.end() ? MPI_UNDEFINED : 0,
      static_cast<int>(place - ranks.begin()), &comm);
  if (comm != MPI_COMM_NULL) mpi("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler, comm, MPI_ERRORS_RETURN);
  kept_.push_back({ranks, n, comm});
  return comm;
}

bool Requests::test(std::atomic<std::uint64_t>* pending) {
  const int count = static_cast<int>(requests_.size());
  std::vector<int> done(requests_.size());
  int completed = 0;
  mpi("MPI_Testsome", MPI_Testsome, count, requests_.data(), &completed, done.data(), MPI_STATUSES_IGNORE);
  for (int i = 0; completed != MPI_UNDEFINED && i < completed; ++i)
    if (const int index = done[static_cast<std::size_t>(i)]; pending != nullptr && index < 64)
      pending->fetch_and(~(std::uint64_t{1} << index));
  return std::ranges::all_of(requests_, [](MPI_Request request) { return request == MPI_REQUEST_NULL; });
}

bool Requests::wait(const Health& health, Clock::time_point deadline, double nap_us,
                    std::atomic<std::uint64_t>* pending) {
  constexpr int yields = 64;
  for (std::size_t i = 0; pending != nullptr && i < std::min<std::size_t>(requests_.size(), 64); ++i)
    if (requests_[i] == MPI_REQUEST_NULL)
      pending->fetch_and(~(std::uint64_t{1} << i));  // there was nothing to wait for
  for (int idle = 0; !test(pending); ++idle) {
    health.check();
    if (Clock::now() >= deadline) return false;
    if (idle < yields) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(from_us(std::min(nap_us, 5.0 * (idle - yields + 1))));
    }
  }
  return true;
}

MPI_Datatype mpi_type(DType type) {
  return type == DType::f32 ? MPI_UINT32_T : MPI_UINT16_T;
}

}  // namespace shingle::host
#endif
