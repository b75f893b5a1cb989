// Why two processes fail to connect, or lose their connection. These errors do not leave the layers above,
// which add the rank that a connection belongs to.
#pragma once

#include <stdexcept>

namespace shingle::net {

class NetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Nothing listens at the address, or the name is unknown.
class Unreachable : public NetError {
 public:
  using NetError::NetError;
};
/// The other end closed the connection, or broke it.
class Lost : public NetError {
 public:
  using NetError::NetError;
};
/// The deadline passed.
class Late : public NetError {
 public:
  using NetError::NetError;
};
/// The data violates the protocol: another protocol, or more bytes than expected.
class Broken : public NetError {
 public:
  using NetError::NetError;
};
/// The other end did not prove that it knows the job's token.
class Untrusted : public NetError {
 public:
  using NetError::NetError;
};

}  // namespace shingle::net
