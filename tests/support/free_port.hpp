// A place where processes of a test can meet.
#pragma once

#include <random>

#include "net/error.hpp"
#include "net/socket.hpp"

namespace shingle::test {

/// A port that is free, as is its successor: processes listen there. The kernel gives ports from 32768 on to
/// outgoing connections, so one of those would be free now and another test's a moment later.
inline int free_port() {
  constexpr int first = 20000, last = 32000;
  const auto is_free = [](int port) {
    try {
      net::listen_on({"127.0.0.1", port});
      return true;
    } catch (const net::Unreachable&) {
      return false;
    }
  };
  static std::minstd_rand random(std::random_device{}());
  for (;;) {
    const int port = std::uniform_int_distribution(first, last)(random);
    if (is_free(port) && is_free(port + 1)) return port;
  }
}

}  // namespace shingle::test
