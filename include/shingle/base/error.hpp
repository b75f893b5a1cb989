// The hierarchy of exceptions (DESIGN: "Errors"). An expected failure is a Result (base/result.hpp) instead.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

namespace shingle {

/// Base of every exception that Shingle throws. `what()` is one line that tells the user what to do.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, int rank = -1,
                 std::source_location where = std::source_location::current())
      : std::runtime_error(message), rank_(rank), where_(where) {}

  /// The rank that failed; -1 if the failure is not of one rank.
  int rank() const noexcept { return rank_; }
  /// Source location of the throw.
  const std::source_location& where() const noexcept { return where_; }

 private:
  int rank_;
  std::source_location where_;
};

/// A value from the caller is wrong: a size, a flag, a field of a file.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// The request has a meaning, but this build or this machine cannot serve it.
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// A file cannot be read or written.
class IoError : public Error {
 public:
  using Error::Error;
};

/// A wait passed its deadline, or was aborted because another rank failed. The message holds the diagnosis:
/// rank, lane, step, counter, value seen, target, and the ranks that should have added.
class Timeout : public Error {
 public:
  using Error::Error;
};

/// A call of the CUDA runtime failed. `code()` is its cudaError_t.
class CudaError : public Error {
 public:
  CudaError(const std::string& call, int code, int rank,
            std::source_location where = std::source_location::current())
      : Error(call, rank, where), code_(code) {}
  int code() const noexcept { return code_; }

 private:
  int code_;
};

/// A call of NCCL failed. `code()` is its ncclResult_t.
class NcclError : public Error {
 public:
  NcclError(const std::string& call, int code, int rank,
            std::source_location where = std::source_location::current())
      : Error(call, rank, where), code_(code) {}
  int code() const noexcept { return code_; }

 private:
  int code_;
};

/// A call of MPI failed. `code()` is MPI's error code.
class MpiError : public Error {
 public:
  MpiError(const std::string& call, int code, int rank,
           std::source_location where = std::source_location::current())
      : Error(call, rank, where), code_(code) {}
  int code() const noexcept { return code_; }

 private:
  int code_;
};

}  // namespace shingle
