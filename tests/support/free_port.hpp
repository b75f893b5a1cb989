// A place where processes of a test can meet.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "net/socket.hpp"

namespace shingle::test {

/// A port whose successor is free: processes listen there.
inline int free_port() {
  const net::Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port) - 1;
}

}  // namespace shingle::test
