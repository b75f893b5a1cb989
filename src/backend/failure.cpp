#include "failure.hpp"

#include "shingle/base/error.hpp"

namespace shingle {

bool FirstFailure::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (error_) return false;
  error_ = std::move(error);
  stopped_.store(true);
  return true;
}

std::exception_ptr FirstFailure::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

std::string FirstFailure::reason() const {
  try {
    if (const auto first = error()) std::rethrow_exception(first);
  } catch (const std::exception& failure) {
    return failure.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
  return {};
}

void FirstFailure::require() const {
  if (stopped()) throw Timeout("the world is broken by an earlier failure: " + reason());
}

}  // namespace shingle
