// Why two processes do not come together, or no longer do. None leaves the layers above: they know whom a
// connection belongs to, and say so.
#pragma once

#include <stdexcept>

namespace shingle::net {

class NetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Nobody listens there, or the name is unknown.
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
/// What came is not what was agreed: another protocol, or more bytes than are expected.
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
