// Shared memory of one communicator's ranks on one host. Through it they find out whether all have come and
// agree.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "meeting.hpp"
#include "proposals.hpp"

namespace shingle::nccl_tuner {

/// Fresh memory is all zeros. The file has this struct's size.
struct Shared {
  static constexpr std::uint32_t layout = 0x53480002;  // change it with this struct
  static constexpr std::uint32_t most_ranks = 1024;
  enum Verdict : std::uint32_t { forming, complete, abandoned };

  // Written under the file's lock.
  std::uint32_t version = 0;
  std::uint32_t ranks = 0, joined = 0;
  std::uint32_t differences = 0;
  std::int64_t created_ns = 0;
  Credentials first;  ///< of the first rank to join
  std::array<std::int32_t, most_ranks> process{};

  std::atomic<std::uint32_t> verdict{forming};
  Proposal proposal;
};

class Segment final : public Meeting {
 public:
  /// Joins the ranks of a communicator. The name is removed once all have joined, so that nothing is left
  /// behind. Throws Error with the reason if there is no such memory.
  Segment(std::uint64_t communicator_id, std::uint32_t ranks, const Credentials& credentials,
          std::chrono::microseconds deadline);
  ~Segment() override;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  /// The first rank's deadline applies. A rank that is late or gets no memory makes the result false for the
  /// others.
  bool complete() override;
  std::uint32_t differences() const override { return shared_->differences; }
  /// True on the first rank to join.
  bool leads() const override { return place_ == 0; }
  Agreement& agreement() override { return *proposals_; }

 private:
  bool join(const std::string& name, std::uint32_t ranks, const Credentials& credentials);

  std::string name_;
  std::chrono::microseconds deadline_;
  Shared* shared_ = nullptr;
  std::uint32_t place_ = 0;
  std::optional<Proposals> proposals_;
};

}  // namespace shingle::nccl_tuner
