// Processes of a world, real ones and impostors that speak its protocol.
#pragma once

#include <cstdint>
#include <thread>

#include "backend/launch.hpp"
#include "net/rendezvous.hpp"
#include "net/wire.hpp"

namespace shingle::test {

/// A process of this host, as a launcher describes it.
inline Launched process(int rank, int size, int port) {
  return {.by = "torchrun",
          .rank = rank,
          .size = size,
          .local_rank = rank,
          .local_size = size,
          .master_host = "127.0.0.1",
          .master_port = port};
}

/// Tries until somebody listens there. Throws net::NetError where it is turned away.
inline net::Joined join_as(const net::Address& at, const net::Token& token, std::int32_t rank,
                           std::int32_t size) {
  const auto deadline = net::deadline_in(10e6);
  for (;;) try {
      return net::join(at, {"shingle world 1", token}, net::Packer().number(rank).number(size).take(),
                       deadline);
    } catch (const net::Unreachable&) {
      if (net::Clock::now() >= deadline) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

/// A connection and nothing more.
inline net::Socket dial(const net::Address& at) {
  const auto deadline = net::deadline_in(10e6);
  for (;;) try {
      return net::connect_to(at, deadline);
    } catch (const net::Unreachable&) {
      if (net::Clock::now() >= deadline) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

}  // namespace shingle::test
