#include "control.hpp"

#ifdef SHINGLE_WITH_MPI
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <limits>

#include "backend/neighbours.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::host {
namespace {

constexpr auto failure_tag = static_cast<int>(ControlTag::failure);
constexpr auto meeting_tag = static_cast<int>(ControlTag::meeting);
constexpr std::size_t longest_reason = 4096;

// Any thread may handle the signal while another one reads.
std::atomic<bool> told_to_end{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler takes no lock");

void note_sigterm(int) {
  told_to_end = true;
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
  if (told_to_end) std::raise(SIGTERM);
}

void MpiControl::watch(const std::function<std::string()>& standing) {
  const int self = process_.rank();
  if (told_to_end) {
    health_.fail(std::make_exception_ptr(Timeout(
        fmt::format("rank {} was told to end (SIGTERM), as when another rank has died; {}", self, standing()),
        self)));
    return;
  }
  int there = 0;
  MPI_Status status;
  mpi("MPI_Iprobe", MPI_Iprobe, MPI_ANY_SOURCE, failure_tag, process_.comm(), &there, &status);
  if (!there) return;
  int length = 0;
  mpi("MPI_Get_count", MPI_Get_count, &status, MPI_CHAR, &length);
  std::string reason(static_cast<std::size_t>(length), '\0');
  mpi("MPI_Recv", MPI_Recv, reason.data(), length, MPI_CHAR, status.MPI_SOURCE, failure_tag, process_.comm(),
      MPI_STATUS_IGNORE);
  health_.fail(std::make_exception_ptr(
      Timeout(fmt::format("rank {} has failed: {}; here {}", status.MPI_SOURCE, reason, standing()),
              status.MPI_SOURCE)));
}

void MpiControl::tell(const std::string& reason) noexcept {
  process_.leave_by_abort();
  try {
    // Never freed: MPI may read it until the process ends
    auto* text = new std::string(reason, 0, longest_reason);
    for (int rank = 0; rank < process_.size(); ++rank) {
      MPI_Request request = MPI_REQUEST_NULL;
      if (rank != process_.rank())
        mpi("MPI_Isend", MPI_Isend, text->data(), static_cast<int>(text->size()), MPI_CHAR, rank, failure_tag,
            process_.comm(), &request);
    }
    // MPI moves messages only inside its calls, so this gives it a short while.
    const auto until = Clock::now() + attention;
    for (int there = 0; Clock::now() < until;)
      mpi("MPI_Iprobe", MPI_Iprobe, MPI_ANY_SOURCE, failure_tag, process_.comm(), &there, MPI_STATUS_IGNORE);
  } catch (...) {  // MPI has failed too: the others will notice by their deadlines
  }
}

/// Every process sends to every other, so that each knows which ranks are late.
std::vector<std::string> MpiControl::meet(std::string own, const std::vector<std::size_t>& bytes,
                                          double timeout_us, const char* what) {
  struct Letters {
    std::string own;
    std::vector<std::string> all;
  };
  Lent<Letters> letters({std::move(own), {}});
  for (const std::size_t size : bytes) letters->all.emplace_back(size, '\0');
  const int self = process_.rank();
  letters->all[static_cast<std::size_t>(self)] = letters->own;
  Requests requests;
  for (int rank = 0; rank < process_.size(); ++rank) {
    if (rank == self) continue;
    std::string& letter = letters->all[static_cast<std::size_t>(rank)];
    mpi("MPI_Irecv", MPI_Irecv, letter.data(), static_cast<int>(letter.size()), MPI_BYTE, rank, meeting_tag,
        process_.comm(), requests.add(rank));
    mpi("MPI_Isend", MPI_Isend, letters->own.data(), static_cast<int>(letters->own.size()), MPI_BYTE, rank,
        meeting_tag, process_.comm(), requests.add(rank));
  }
  wait(requests, timeout_us, what);
  return std::move(letters->all);
}

void MpiControl::wait(Requests& requests, double timeout_us, const char* what) {
  constexpr double nap_us = 100;
  const auto deadline = Clock::now() + from_us(timeout_us);
  while (!requests.wait(health_, std::min(deadline, Clock::now() + attention), nap_us)) {
    const auto awaited = [&] {
      const std::vector<int> late = requests.late();
      return fmt::format("rank{} {}", late.size() == 1 ? "" : "s", fmt::join(late, ", "));
    };
    watch([&] { return fmt::format("rank {} waits in {} for {}", process_.rank(), what, awaited()); });
    if (Clock::now() < deadline) continue;
    health_.fail(std::make_exception_ptr(
        Timeout(fmt::format("rank {}: waited {} in {} for {} to come{}", process_.rank(),
                            format_us(timeout_us), what, awaited(), stopped_neighbours()),
                process_.rank())));
  }
}

void MpiControl::barrier(double timeout_us) {
  meet({}, std::vector<std::size_t>(static_cast<std::size_t>(process_.size()), 0), timeout_us, "a barrier");
}

std::vector<double> MpiControl::all_max(std::vector<double> values, double timeout_us) {
  const std::size_t bytes = values.size() * sizeof(double);
  const std::string own(reinterpret_cast<const char*>(values.data()), bytes);
  const std::vector<std::size_t> sizes(static_cast<std::size_t>(process_.size()), bytes);
  for (const std::string& letter : meet(own, sizes, timeout_us, "a maximum over all"))
    for (std::size_t i = 0; i < values.size(); ++i) {
      double other = 0;
      std::memcpy(&other, letter.data() + i * sizeof other, sizeof other);
      values[i] = std::max(values[i], other);
    }
  return values;
}

std::vector<Span> MpiControl::gather(const std::vector<Span>& own, double timeout_us) {
  constexpr const char* what = "gathering the timeline";
  const std::uint64_t bytes = own.size() * sizeof(Span);
  if (bytes > std::numeric_limits<int>::max())
    throw Unsupported(
        fmt::format("a timeline of {} intervals is more than an MPI message holds: trace fewer "
                    "epochs",
                    own.size()));
  const std::vector<std::uint64_t> all_bytes = gather_one(bytes, timeout_us, what);
  const std::vector<std::size_t> sizes(all_bytes.begin(), all_bytes.end());
  std::vector<Span> all;
  for (const std::string& letter :
       meet({reinterpret_cast<const char*>(own.data()), bytes}, sizes, timeout_us, what)) {
    const std::size_t before = all.size();
    all.resize(before + letter.size() / sizeof(Span));
    if (!letter.empty()) std::memcpy(all.data() + before, letter.data(), letter.size());
  }
  return all;
}

}  // namespace shingle::host
#endif
