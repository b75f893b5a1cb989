#include "mpi_control.hpp"

#ifdef SHINGLE_WITH_MPI
#include <fmt/format.h>

#include <csignal>
#include <numeric>

#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::host {
namespace {

constexpr int failure_tag = 1;
constexpr std::size_t longest_reason = 4096;

volatile std::sig_atomic_t told_to_end = 0;

void note_sigterm(int) {
  told_to_end = 1;
}

}  // namespace

void MpiControl::hold_sigterm() {
  struct sigaction now = {};
  if (sigaction(SIGTERM, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction note = {};
  note.sa_handler = note_sigterm;
  note.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGTERM, &note, nullptr);
}

void MpiControl::release_sigterm() {
  struct sigaction now = {};
  if (sigaction(SIGTERM, nullptr, &now) != 0 || now.sa_handler != note_sigterm) return;
  std::signal(SIGTERM, SIG_DFL);
  if (told_to_end != 0) std::raise(SIGTERM);
}

void MpiControl::watch(const std::function<std::string()>& standing) {
  const int self = process_.rank();
  if (told_to_end != 0) {
    health_.fail(std::make_exception_ptr(Timeout(
        fmt::format("rank {} was told to end (SIGTERM), as when another rank has died; {}", self, standing()),
        self)));
    return;
  }
  int there = 0;
  MPI_Status status;
  mpi("MPI_Iprobe", MPI_Iprobe, MPI_ANY_SOURCE, failure_tag, process_.control(), &there, &status);
  if (!there) return;
  int length = 0;
  mpi("MPI_Get_count", MPI_Get_count, &status, MPI_CHAR, &length);
  std::string reason(static_cast<std::size_t>(length), '\0');
  mpi("MPI_Recv", MPI_Recv, reason.data(), length, MPI_CHAR, status.MPI_SOURCE, failure_tag,
      process_.control(), MPI_STATUS_IGNORE);
  health_.fail(std::make_exception_ptr(
      Timeout(fmt::format("rank {} has failed: {}; here {}", status.MPI_SOURCE, reason, standing()),
              status.MPI_SOURCE)));
}

void MpiControl::tell(const std::string& reason) noexcept {
  process_.leave_by_abort();
  try {
    auto* text = new std::string(reason, 0, longest_reason);  // MPI may read it until the process ends
    for (int rank = 0; rank < process_.size(); ++rank) {
      MPI_Request request = MPI_REQUEST_NULL;
      if (rank != process_.rank())
        mpi("MPI_Isend", MPI_Isend, text->data(), static_cast<int>(text->size()), MPI_CHAR, rank, failure_tag,
            process_.control(), &request);
    }
    // MPI moves messages inside its calls only: a short while is given to it.
    const auto until = Clock::now() + attention;
    for (int there = 0; Clock::now() < until;)
      mpi("MPI_Iprobe", MPI_Iprobe, MPI_ANY_SOURCE, failure_tag, process_.control(), &there,
          MPI_STATUS_IGNORE);
  } catch (...) {  // MPI has failed too: the others will notice by their deadlines
  }
}

void MpiControl::wait(Requests& requests, double timeout_us, const char* what) {
  constexpr double nap_us = 100;
  const auto deadline = Clock::now() + from_us(timeout_us);
  while (!requests.wait(health_, std::min(deadline, Clock::now() + attention), nap_us)) {
    watch([&] { return fmt::format("rank {} is in {}", process_.rank(), what); });
    if (Clock::now() < deadline) continue;
    health_.fail(
        std::make_exception_ptr(Timeout(fmt::format("rank {}: waited {} in {} for the other processes",
                                                    process_.rank(), format_us(timeout_us), what),
                                        process_.rank())));
  }
}

void MpiControl::barrier(double timeout_us) {
  Requests requests;
  mpi("MPI_Ibarrier", MPI_Ibarrier, process_.control(), requests.add());
  wait(requests, timeout_us, "a barrier");
}

std::vector<double> MpiControl::all_max(std::vector<double> values, double timeout_us) {
  Lent<std::vector<double>> result(std::move(values));
  Requests requests;
  mpi("MPI_Iallreduce", MPI_Iallreduce, MPI_IN_PLACE, result->data(), static_cast<int>(result->size()),
      MPI_DOUBLE, MPI_MAX, process_.control(), requests.add());
  wait(requests, timeout_us, "a maximum over all");
  return std::move(*result);
}

std::vector<Span> MpiControl::gather(const std::vector<Span>& own, double timeout_us) {
  struct Message {
    std::vector<Span> own, all;
    int count;
    std::vector<int> counts, firsts;
  };
  const auto ranks = static_cast<std::size_t>(process_.size());
  Lent<Message> message({own,
                         {},
                         static_cast<int>(own.size() * sizeof(Span)),
                         std::vector<int>(ranks),
                         std::vector<int>(ranks)});
  Requests sizes, data;
  mpi("MPI_Iallgather", MPI_Iallgather, &message->count, 1, MPI_INT, message->counts.data(), 1, MPI_INT,
      process_.control(), sizes.add());
  wait(sizes, timeout_us, "gathering the timeline");
  std::exclusive_scan(message->counts.begin(), message->counts.end(), message->firsts.begin(), 0);
  message->all.resize(static_cast<std::size_t>(message->firsts.back() + message->counts.back()) /
                      sizeof(Span));
  mpi("MPI_Iallgatherv", MPI_Iallgatherv, message->own.data(), message->count, MPI_BYTE, message->all.data(),
      message->counts.data(), message->firsts.data(), MPI_BYTE, process_.control(), data.add());
  wait(data, timeout_us, "gathering the timeline");
  return std::move(message->all);
}

}  // namespace shingle::host
#endif
