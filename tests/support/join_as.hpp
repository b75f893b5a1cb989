// Somebody who speaks the protocol of a world's processes, and says of itself what a test likes.
#pragma once

#include <cstdint>
#include <thread>

#include "net/rendezvous.hpp"
#include "net/wire.hpp"

namespace shingle::test {

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
