#include "calls.hpp"

#ifdef SHINGLE_WITH_MPI
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "host/executor/overdue.hpp"
#include "shingle/base/error.hpp"

namespace shingle::host {
namespace {

// Read at process exit, after the lifetime of all static objects.
bool initialised_here = false, leaves_by_abort = false;

}  // namespace

void require_success(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw MpiError(fmt::format("{}: {}", call, std::string_view(text, static_cast<std::size_t>(length))), code,
                 -1);
}

std::mutex& mpi_mutex() {
  static auto* const mutex = new std::mutex;  // never destroyed: used during process exit
  return *mutex;
}

MpiProcess& MpiProcess::get(double timeout_us) {
  // Never destroyed: leave() may run after static destructors
  static MpiProcess* const process = new MpiProcess(timeout_us);
  return *process;
}

MpiProcess::MpiProcess(double timeout_us) {
  // The deadline of runs does not cover how long a busy machine takes to start processes.
  constexpr double least_start_us = 12e6;
  const Overdue overdue("MPI's start", from_us(std::max(timeout_us, least_start_us)),
                        Overdue::Means::anybody_late);
  join();
}

void MpiProcess::join() {
  int initialised = 0, level = MPI_THREAD_SINGLE;
  mpi("MPI_Initialized", MPI_Initialized, &initialised);
  if (initialised) {
    mpi("MPI_Query_thread", MPI_Query_thread, &level);
  } else {
    mpi("MPI_Init_thread", MPI_Init_thread, nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    initialised_here = true;
  }
  std::atexit(leave);
  if (level < MPI_THREAD_SERIALIZED)
    throw Unsupported("MPI was initialised without MPI_THREAD_SERIALIZED, which lanes need");
  mpi("MPI_Comm_dup", MPI_Comm_dup, MPI_COMM_WORLD, &comm_);
  mpi("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler, comm_, MPI_ERRORS_RETURN);
  mpi("MPI_Comm_rank", MPI_Comm_rank, comm_, &rank_);
  mpi("MPI_Comm_size", MPI_Comm_size, comm_, &size_);
  MPI_Comm host = MPI_COMM_NULL;
  mpi("MPI_Comm_split_type", MPI_Comm_split_type, comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host);
  mpi("MPI_Comm_size", MPI_Comm_size, host, &on_host_);
  mpi("MPI_Comm_free", MPI_Comm_free, &host);
  int* most = nullptr;
  int found = 0;
  mpi("MPI_Comm_get_attr", MPI_Comm_get_attr, comm_, MPI_TAG_UB, &most, &found);
  constexpr int least_that_mpi_promises = 32767;
  last_tag_ = found ? *most : least_that_mpi_promises;
}

void MpiProcess::leave() {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (finalised) return;
  if (leaves_by_abort) {
    std::this_thread::sleep_for(5 * attention);  // the others may still be sending their diagnosis
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  if (!initialised_here) return;
  // Other ranks may work without limit; a stopped rank never reaches MPI_Finalize.
  constexpr std::chrono::seconds patience{10};
  const Overdue overdue("MPI_Finalize", patience, Overdue::Means::somebody_stopped);
  MPI_Finalize();
}

void MpiProcess::leave_by_abort() {
  leaves_by_abort = true;
}

int MpiProcess::channel(const std::vector<int>& ranks, int n) {
  auto found = std::ranges::find_if(
      channels_, [&](const Channel& channel) { return channel.ranks == ranks && channel.n == n; });
  const auto index = static_cast<int>(found - channels_.begin());
  if (index >= (last_tag_ - first_channel_tag) / tags_of_a_channel)
    throw Unsupported(fmt::format("MPI has no tags left after {} communicators", index));
  if (found == channels_.end()) channels_.push_back({ranks, n});
  return first_channel_tag + index * tags_of_a_channel;
}

std::vector<int> Requests::late() const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != MPI_REQUEST_NULL && std::ranges::find(ranks, peers_[i]) == ranks.end())
      ranks.push_back(peers_[i]);
  std::ranges::sort(ranks);
  return ranks;
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
  return size_bytes(type) == 4 ? MPI_UINT32_T : MPI_UINT16_T;
}

}  // namespace shingle::host
#endif
