// The ranks of a communicator of several hosts meet at an address: one that is on its host listens there, and
// leads; the others connect to it.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "meeting.hpp"
#include "remote_proposals.hpp"
#include "settings.hpp"

namespace shingle::nccl_tuner {

class Star final : public Meeting {
 public:
  /// The address serves one communicator at a time; the others' ranks try again.
  Star(Address address, std::uint64_t communicator_id, std::uint32_t ranks, const Credentials& credentials,
       std::chrono::microseconds deadline)
      : address_(std::move(address)),
        communicator_id_(communicator_id),
        ranks_(ranks),
        credentials_(credentials),
        deadline_(deadline) {}

  bool complete() override;
  std::uint32_t differences() const override { return differences_; }
  bool leads() const override { return leads_; }
  Agreement& agreement() override { return *agreement_; }

 private:
  bool lead(const net::Socket& listener, net::Clock::time_point end);
  bool follow(net::Clock::time_point end);

  const Address address_;
  const std::uint64_t communicator_id_;
  const std::uint32_t ranks_;
  const Credentials credentials_;
  const std::chrono::microseconds deadline_;
  bool leads_ = false;
  std::uint32_t differences_ = 0;
  std::unique_ptr<Agreement> agreement_;
};

}  // namespace shingle::nccl_tuner
