// A value, or the reason why there is none: for failure that a caller expects, such as an infeasible plan.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "shingle/base/error.hpp"

namespace shingle {

/// Why something cannot be had, in one line fit for a user.
struct Reason {
  std::string text;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Reason reason) : state_(std::move(reason)) {}

  explicit operator bool() const noexcept { return std::holds_alternative<T>(state_); }
  bool has_value() const noexcept { return static_cast<bool>(*this); }

  /// The value; throws Unsupported with the reason where there is none.
  T& value() & {
    require();
    return std::get<T>(state_);
  }
  const T& value() const& {
    require();
    return std::get<T>(state_);
  }
  T&& value() && {
    require();
    return std::get<T>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  /// The reason; only where there is no value.
  const std::string& reason() const { return std::get<Reason>(state_).text; }

 private:
  void require() const {
    if (!has_value()) throw Unsupported(reason());
  }
  std::variant<T, Reason> state_;
};

}  // namespace shingle
