// The ranks of a communicator on several hosts meet at an address. A rank on that address's host listens
// there and leads; the others connect to it. Only processes with the same token meet.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "meeting.hpp"
#include "net/rendezvous.hpp"

namespace shingle::nccl_tuner {

class Star final : public Meeting {
 public:
  /// The address serves one communicator at a time; ranks of other communicators retry. Throws Error if the
  /// kernel returns no random bytes.
  Star(net::Address address, net::Token token, std::uint64_t communicator_id, std::uint32_t ranks,
       const Credentials& credentials, std::chrono::microseconds deadline);

  bool complete() override;
  std::string trouble() const override { return trouble_; }
  std::uint32_t differences() const override { return differences_; }
  bool leads() const override { return leads_; }
  Agreement& agreement() override { return *agreement_; }

 private:
  bool lead(net::Socket listener, net::Clock::time_point end);
  bool follow(net::Clock::time_point end);

  const net::Address address_;
  const net::Meeting meeting_;
  const std::uint64_t communicator_id_;
  const std::uint32_t ranks_;
  const Credentials credentials_;
  const std::chrono::microseconds deadline_;
  const std::string who_;  // random id, so that a retry counts as the same rank
  bool leads_ = false;
  std::uint32_t differences_ = 0;
  std::string trouble_;
  std::unique_ptr<Agreement> agreement_;
};

}  // namespace shingle::nccl_tuner
