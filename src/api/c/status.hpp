// Exceptions as status codes: the only place where the C functions catch.
#pragma once

#include <string>

#include "shingle/base/error.hpp"
#include "shingle/shingle.h"

namespace shingle::c {

/// Keeps the current exception's text for shingle_last_error() and returns its status. Call it in a handler.
shingle_status keep_error() noexcept;

/// Runs the body of a C function. No exception leaves it.
template <class Body>
shingle_status guarded(Body&& body) noexcept {
  try {
    body();
    return SHINGLE_OK;
  } catch (...) {
    return keep_error();
  }
}

/// Throws InvalidArgument if a pointer from the caller is null.
inline void require_not_null(const void* pointer, const char* argument) {
  if (pointer == nullptr) throw InvalidArgument(std::string(argument) + " is null");
}

}  // namespace shingle::c
